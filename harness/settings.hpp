// Layered configuration of a run, with the origin of every value: defaults of the declaration < --config files in order
// < --set key=value. Keys are declared (SettingSpec) by the harness and by the program; an undeclared key is refused
// with the nearest declared one and the place where it stands (file:line or "--set").
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace harness {

enum class SettingType { integer, real, boolean, text, integer_list, real_list, text_list };

// What a text names. A path becomes an absolute one where it is set, so that the command that repeats a case does so
// from any folder: `any` always, `file` where a regular file is there (it may be a name of something else).
enum class PathTo { none, file, any };

struct SettingSpec {
  std::string key;  // dotted: "s_sweep.lengths"
  SettingType type = SettingType::text;
  std::string default_value;  // as it would stand in YAML
  std::string meaning;
  std::string allowed;  // in words, for messages and `list --settings`; empty: any value of the type
  double minimum = -1e300, maximum = 1e300;  // for numbers, and every element of a list
  std::vector<std::string> one_of = {};      // for text; empty: any
  PathTo path_to = PathTo::none;             // for text
};

struct SettingValue {
  std::string text;    // canonical YAML
  std::string origin;  // "default", "configs/ci.yaml:12", "--set"
};

// A usage error: exit code 2. what() has one line a problem.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Settings {
 public:
  explicit Settings(std::vector<SettingSpec> specs);  // throws std::logic_error on a duplicate key or a bad default
  void load_file(const std::filesystem::path& file);  // YAML mapping, nested or dotted; throws UsageError
  void set(const std::string& key, const std::string& value, const std::string& origin);  // throws UsageError

  [[nodiscard]] std::int64_t integer(std::string_view key) const;  // std::logic_error: undeclared or other type
  [[nodiscard]] double real(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::vector<double> reals(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> texts(std::string_view key) const;

  [[nodiscard]] const std::map<std::string, SettingValue>& values() const { return values_; }
  [[nodiscard]] std::span<const SettingSpec> specs() const { return specs_; }

 private:
  std::vector<SettingSpec> specs_;
  std::map<std::string, SettingValue> values_;
  [[nodiscard]] const SettingValue& value(std::string_view key, SettingType type) const;
};

// The harness's own keys, run.*: among them `run.device` ("auto", "cpu" or "cuda"; once the device is known the harness
// sets it to "cpu" or "cuda", before it validates and plans, so that Suite::cases and Program::provenance may read it).
[[nodiscard]] std::vector<SettingSpec> own_settings();

}  // namespace harness
