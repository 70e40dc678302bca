// For tests: an environment with one variable set, or without it.
#pragma once

#include <string>

#include "base/environment.hpp"

namespace base::tests {

inline Environment with(Environment all, const std::string& name, const std::string& value) {
  all[name] = value;
  return all;
}
inline Environment without(Environment all, const std::string& name) {
  all.erase(name);
  return all;
}

}  // namespace base::tests
