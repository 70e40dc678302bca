// Configuration files: YAML to Config, every problem at once, each with the line where it stands.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "base/files.hpp"
#include "base/nearest.hpp"
#include "base/yaml.hpp"
#include "nsa/config.hpp"
#include "nsa/config_schema.hpp"

namespace nsa {

namespace {

constexpr std::array<std::string_view, 3> kSections = {"model", "nsa", "train"};

// How a file sets a key: the value as it is written, and "configs/x.yaml:7".
struct Setting {
  std::string value, where;
};

// What a file sets: the configuration over the defaults, how each key is set, and what is wrong so far.
struct Reading {
  Config config;
  std::map<std::string, Setting, std::less<>> settings;
  KeySet broken;
  std::vector<ConfigError> errors;
};

std::string place(const std::string& name, const YAML::Mark& mark) {
  return mark.line < 0 ? name : fmt::format("{}:{}", name, mark.line + 1);
}

// A value as messages show it: short and on one line.
std::string shown(const YAML::Node& node) {
  if (node.IsMap()) return "(a mapping)";
  if (node.IsSequence()) return "(a list)";
  if (!node.IsScalar()) return "(nothing)";
  std::string text = node.Scalar().substr(0, 60);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  if (node.Scalar().size() > 60) text += "...";
  return node.Tag() == "!" || text.empty() ? '"' + text + '"' : text;
}

const Key* find_key(std::string_view name) {
  const auto keys = config_keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

// The key of this name, in whatever section it stands; "" where there is none.
std::string_view key_named(std::string_view word) {
  for (const auto& known : config_keys())
    if (base::edit_distance(known.name.substr(known.name.find('.') + 1), word) == 0) return known.name;
  return "";
}

// For a key that is not in the table: the same key in another section, else the nearest of its own section.
std::string unknown_key(std::string_view section, std::string_view key) {
  if (const auto same = key_named(key); !same.empty()) return fmt::format("is not a key; did you mean {}?", same);
  std::vector<std::string_view> own;
  std::string list;
  for (const auto& known : config_keys()) {
    const auto dot = known.name.find('.');
    if (known.name.substr(0, dot) != section) continue;
    own.push_back(known.name.substr(dot + 1));
    list += (list.empty() ? "" : ", ") + std::string(own.back());
  }
  if (const auto near = base::nearest(key, own); !near.empty())
    return fmt::format("is not a key; did you mean {}.{}?", section, near);
  return fmt::format("is not a key; {} has {}", section, list);
}

// Calls `visit(key text, value, place)` for every pair of a mapping; a key that is no scalar, or that stands there
// twice, is an error (yaml-cpp keeps both and would answer with the first).
template <typename Visit>
void for_each_pair(const YAML::Node& map, const std::string& prefix, const std::string& name, Reading& reading,
                   Visit visit) {
  std::map<std::string, std::string> seen;
  for (const auto& pair : map) {
    const std::string where = place(name, pair.first.Mark());
    if (!pair.first.IsScalar()) {
      reading.errors.push_back({prefix + shown(pair.first), "", "is not a key; keys are plain words", where});
      continue;
    }
    const auto& key = pair.first.Scalar();
    const auto [first, fresh] = seen.emplace(key, where);
    if (fresh) {
      visit(key, pair.second, where);
    } else {
      reading.errors.push_back(
          {prefix + key, shown(pair.second), fmt::format("is set twice, first at {}", first->second), where});
    }
  }
}

void read_value(const Key& key, const YAML::Node& value, const std::string& where, Reading& reading) {
  reading.settings.emplace(key.name, Setting{shown(value), where});
  const bool quoted = value.IsScalar() && value.Tag() == "!";
  if (value.IsScalar() && (key.is_text || !quoted) && key.parse(reading.config, value.Scalar())) return;
  reading.errors.push_back({std::string(key.name), shown(value), key.allowed, where});
  reading.broken.emplace(key.name);
}

void read_section(const std::string& section, const YAML::Node& map, const std::string& where, const std::string& name,
                  Reading& reading) {
  if (std::find(kSections.begin(), kSections.end(), section) == kSections.end()) {
    std::string allowed = "is not a section; the sections are model, nsa and train";
    if (const auto near = base::nearest(section, kSections); !near.empty())
      allowed = fmt::format("is not a section; did you mean {}?", near);
    else if (const auto same = key_named(section); !same.empty())
      allowed = fmt::format("is not a key; did you mean {}?", same);
    reading.errors.push_back({section, shown(map), allowed, where});
    return;
  }
  if (!map.IsMap()) {
    reading.errors.push_back({section, shown(map), "must be a mapping of keys", where});
    return;
  }
  for_each_pair(map, section + ".", name, reading,
                [&](const std::string& key, const YAML::Node& value, const std::string& at) {
                  const std::string full = section + "." + key;
                  if (const Key* known = find_key(full))
                    read_value(*known, value, at, reading);
                  else
                    reading.errors.push_back({full, shown(value), unknown_key(section, key), at});
                });
}

// Names, types and structure; nothing about ranges and combinations.
Reading read_yaml(const std::string& yaml, const std::string& name) {
  Reading reading;
  reading.config.source = name;
  std::vector<YAML::Node> documents;
  try {
    documents = base::load_yaml(yaml);
  } catch (const YAML::Exception& error) {
    const std::string where =
        error.mark.line < 0 ? name : fmt::format("{}:{}:{}", name, error.mark.line + 1, error.mark.column + 1);
    throw ConfigInvalid({{"malformed YAML", "", error.msg, where}});
  }
  if (documents.size() > 1)
    throw ConfigInvalid({{"document 2", "", "a configuration is one YAML document", place(name, documents[1].Mark())}});
  if (documents.empty() || !documents[0].IsMap())
    throw ConfigInvalid({{"configuration", documents.empty() ? "(nothing)" : shown(documents[0]),
                          "must be a mapping with the sections model, nsa and train", name}});
  for_each_pair(documents[0], "", name, reading,
                [&](const std::string& section, const YAML::Node& map, const std::string& where) {
                  read_section(section, map, where, name, reading);
                });
  if (reading.settings.empty() && reading.errors.empty())
    reading.errors.push_back({"configuration", "(nothing)", "must set at least one key", name});
  return reading;
}

void apply(const Override& setting, Reading& reading) {
  const auto refuse = [&](std::string allowed) {
    reading.errors.push_back({setting.key, setting.value, std::move(allowed), setting.where});
  };
  const Key* key = find_key(setting.key);
  if (key == nullptr) {
    const auto dot = std::min(setting.key.find('.'), setting.key.size());
    return refuse(unknown_key(setting.key.substr(0, dot), setting.key.substr(std::min(dot + 1, setting.key.size()))));
  }
  reading.settings.insert_or_assign(setting.key, Setting{setting.value, setting.where});
  if (key->parse(reading.config, setting.value)) return;
  refuse(key->allowed);
  reading.broken.emplace(key->name);
}

// Ranges and combinations of what was read, each problem with its place; throws for all problems together.
Config checked(Reading reading) {
  for (auto& [error, keys] : config_problems(reading.config, reading.broken)) {
    // Where the first of the keys stands that the file sets: the defaults are in order, so there is one.
    const auto set = std::find_if(keys.begin(), keys.end(), [&](auto key) { return reading.settings.contains(key); });
    error.where = set == keys.end() ? reading.config.source : reading.settings.find(*set)->second.where;
    if (const auto own = reading.settings.find(error.key); own != reading.settings.end())
      error.value = own->second.value;
    reading.errors.push_back(std::move(error));
  }
  if (!reading.errors.empty()) throw ConfigInvalid(std::move(reading.errors));
  return reading.config;
}

std::string read_file(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& reason) {
    throw ConfigInvalid({{"configuration file", "", reason, file.string()}});
  };
  std::string text;
  try {
    text = base::read_head(file, base::YamlLimits().bytes + 1);  // one byte more, so that too long is seen
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::no_such_file_or_directory) refuse("does not exist");
    if (error.code() == std::errc::not_supported) refuse("is not a regular file");
    refuse("cannot be read: " + error.code().message());
  }
  return text;
}

}  // namespace

Config parse_config(const std::string& yaml, const std::string& name) { return checked(read_yaml(yaml, name)); }

Config load_config(const std::filesystem::path& file) { return load_config(file, {}); }

Config load_config(const std::filesystem::path& file, std::span<const Override> overrides) {
  Reading reading = read_yaml(read_file(file), file.string());
  for (const auto& setting : overrides) apply(setting, reading);
  return checked(std::move(reading));
}

std::vector<Drift> drift(const Config& config, const std::filesystem::path& expected_file) {
  Reading expected = read_yaml(read_file(expected_file), expected_file.string());
  if (!expected.errors.empty()) throw ConfigInvalid(std::move(expected.errors));
  std::vector<Drift> differences;
  for (const auto& key : config_keys()) {
    const auto set = expected.settings.find(key.name);
    if (set == expected.settings.end()) continue;
    const std::string want = key.format(expected.config), got = key.format(config);
    if (want != got) differences.push_back({std::string(key.name), want, got, set->second.where});
  }
  return differences;
}

}  // namespace nsa
