// The one command that repeats a case exactly: same case, seed, device, planted faults, settings and environment.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "harness/settings.hpp"

namespace harness {

struct ReproBasis {
  std::string program;
  std::map<std::string, std::string> environment;  // variables that change what the program does
  std::string device;                              // as the user asked for it; "" for the default
  std::vector<std::string> faults;
};

[[nodiscard]] std::string repro_command(const ReproBasis& basis, const Settings& settings, const std::string& case_id);

// For a POSIX shell; plain words stay as they are.
[[nodiscard]] std::string shell_quote(const std::string& word);

}  // namespace harness
