#include "base/environment.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "base/parse_number.hpp"

namespace base {

Environment environment() {
  Environment all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const auto equals = text.find('='); equals != std::string::npos)
      all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

std::optional<std::string> variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string Variables::text(const std::string& name) const {
  const auto found = environment_.find(name);
  return found == environment_.end() ? "" : found->second;
}

std::optional<std::int64_t> Variables::number(const std::string& name, std::int64_t least, std::int64_t most,
                                              const char* what) {
  if (!has(name)) return std::nullopt;
  const auto value = parse_number<std::int64_t>(text(name));
  if (value && *value >= least && *value <= most) return value;
  wrong(name, fmt::format("an integer from {} to {} ({})", least, most, what));
  return std::nullopt;
}

void Variables::wrong(const std::string& name, const std::string& allowed) {
  mistake(fmt::format("{} is '{}', allowed is {}", name, text(name), allowed));
}

}  // namespace base
