// The keys of a configuration file as ONE table: name, how to read and write the value, and its range. Parsing,
// validation, flattening and drift all walk it, so a key cannot be known to one of them and unknown to another.
// Private to config*.cpp, but for the limits, which the operators of python/ have too.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"

namespace nsa {

inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;  // of a sequence, a block, a window
inline constexpr std::int64_t kMostBlocks = 65536;                  // chosen for a token

struct Key {
  std::string_view name;  // "model.dim"
  std::string allowed;    // "must be an integer from 1 to 131072"
  bool is_text = false;   // takes any scalar; the others refuse a quoted one, which is text in YAML
  // Stores the value that `text` stands for; false when it is not of the type (the configuration is unchanged). A
  // number beyond its type's range is stored as the nearest end of it, so that `in_range` refuses it.
  std::function<bool(Config&, std::string_view text)> parse;
  std::function<std::string(const Config&)> format;  // canonical text
  std::function<bool(const Config&)> in_range;       // false for NaN
  bool operational = false;                          // changes no number that a run computes
};
[[nodiscard]] std::span<const Key> config_keys();

using KeySet = std::set<std::string, std::less<>>;

// An error of the values, with every key that takes part in it, the most telling first.
struct Problem {
  ConfigError error;
  std::vector<std::string_view> keys;
};
// Values out of range, then combinations that cannot work. Keys in `broken` (already reported) are left out, and so are
// combinations with a broken key: one mistake gives one message.
[[nodiscard]] std::vector<Problem> config_problems(const Config& config, KeySet broken);

}  // namespace nsa
