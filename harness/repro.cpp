#include "harness/repro.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace harness {

std::string shell_quote(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string("_-./=:,@%+").find(static_cast<char>(c)) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'')
      quoted += "'\\''";
    else
      quoted += c;
  }
  return quoted + "'";
}

std::string repro_command(const ReproBasis& basis, const Settings& settings, const std::string& case_id) {
  std::string command;
  for (const auto& [name, value] : basis.environment) command += fmt::format("{}={} ", name, shell_quote(value));
  command += fmt::format("{} --case {} --seed {}", shell_quote(basis.program), shell_quote(case_id),
                         settings.integer("run.seed"));
  if (!basis.device.empty()) command += " --device " + basis.device;
  for (const std::string& fault : basis.faults) command += " --inject " + shell_quote(fault);
  for (const auto& [key, value] : settings.values()) {
    if (value.origin != "default" && key != "run.seed" && key != "run.device")
      command += " --set " + shell_quote(key + "=" + value.text);
  }
  return command;
}

}  // namespace harness
