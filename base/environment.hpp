// The environment of this process as values: who decides by it is a function of a map, which tests can make.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace base {

using Environment = std::map<std::string, std::string>;

[[nodiscard]] Environment environment();  // of this process; an entry without '=' is left out
[[nodiscard]] std::optional<std::string> variable(
    const std::string& name);  // of this process; nothing where it is not set

// Reads variables and gathers what is wrong with them, one line each: the variable, its value, what is allowed.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  [[nodiscard]] bool has(const std::string& name) const { return environment_.contains(name); }
  [[nodiscard]] std::string text(const std::string& name) const;  // "" where it is not set
  // Nothing where it is not set, or wrong. `what` it is, for the message.
  std::optional<std::int64_t> number(const std::string& name, std::int64_t least, std::int64_t most, const char* what);
  void wrong(const std::string& name, const std::string& allowed);  // "NAME is 'x', allowed is ..."
  void mistake(std::string sentence) { mistakes_.push_back(std::move(sentence)); }

  [[nodiscard]] const std::vector<std::string>& mistakes() const { return mistakes_; }

 private:
  const Environment& environment_;
  std::vector<std::string> mistakes_;
};

}  // namespace base
