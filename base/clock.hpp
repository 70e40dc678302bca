// Time that passes, in seconds, by a clock that nobody sets.
#pragma once

#include <chrono>

namespace base {

// Since some moment, the same for a whole process: for differences.
[[nodiscard]] inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace base
