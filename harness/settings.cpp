#include "harness/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>

#include "base/nearest.hpp"
#include "base/parse_number.hpp"
#include "base/utf8.hpp"
#include "base/yaml.hpp"
#include "harness/compare.hpp"

namespace harness {

namespace {

std::string_view type_name(SettingType type) {
  switch (type) {
    case SettingType::integer:
      return "an integer";
    case SettingType::real:
      return "a number";
    case SettingType::boolean:
      return "true or false";
    case SettingType::text:
      return "a text";
    case SettingType::integer_list:
      return "a list of integers";
    case SettingType::real_list:
      return "a list of numbers";
    case SettingType::text_list:
      return "a list of texts";
  }
  throw std::logic_error("SettingType outside its enumeration");
}

bool is_list(SettingType type) {
  return type == SettingType::integer_list || type == SettingType::real_list || type == SettingType::text_list;
}

SettingType element_of(SettingType type) {
  if (type == SettingType::integer_list) return SettingType::integer;
  if (type == SettingType::real_list) return SettingType::real;
  return type == SettingType::text_list ? SettingType::text : type;
}

// A '+' may stand before it.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  return base::parse_number<Number>(text.substr(text.starts_with('+') ? 1 : 0));
}

// What is allowed, in words, for messages.
std::string allowed_words(const SettingSpec& spec) {
  if (!spec.allowed.empty()) return spec.allowed;
  if (!spec.one_of.empty()) return fmt::format("one of {}", fmt::join(spec.one_of, ", "));
  std::string words{type_name(spec.type)};
  if (spec.minimum > -1e300) words += fmt::format(", at least {:g}", spec.minimum);
  if (spec.maximum < 1e300) words += fmt::format(", at most {:g}", spec.maximum);
  return words;
}

bool element_fits(const SettingSpec& spec, const std::string& text) {
  const auto in_range = [&spec](double value) { return within(value, spec.minimum, spec.maximum); };
  const SettingType type = element_of(spec.type);
  if (type == SettingType::integer) {
    const auto value = parse_number<std::int64_t>(text);
    return value && in_range(static_cast<double>(*value));
  }
  if (type == SettingType::real) {
    const auto value = parse_number<double>(text);
    return value && in_range(*value);
  }
  if (type == SettingType::boolean) return text == "true" || text == "false";
  return spec.one_of.empty() || std::find(spec.one_of.begin(), spec.one_of.end(), text) != spec.one_of.end();
}

// A text as a YAML scalar that reads back as itself; quoted only where it must be.
std::string quote_if_needed(const std::string& text, bool in_list) {
  const bool blank_ends = !text.empty() && (text.front() == ' ' || text.back() == ' ');
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  const bool special = text.find('\n') != std::string::npos ||
                       (in_list && (text.empty() || text.find_first_of(",[]{}\"'#:&*!|>%@`") != std::string::npos));
  return blank_ends || quoted || special ? nlohmann::json(text).dump() : text;
}

YAML::Node one_document(const std::string& text) {
  const std::vector<YAML::Node> documents = base::load_yaml(text);
  if (documents.size() > 1) throw YAML::Exception(documents[1].Mark(), "more than one document");
  return documents.empty() ? YAML::Node() : documents[0];
}

// The elements of a value as plain texts; a scalar has one.
std::vector<std::string> elements(const SettingSpec& spec, const std::string& text) {
  if (spec.type == SettingType::text && !text.starts_with('"') && !text.starts_with('\'')) return {text};
  YAML::Node node = one_document(text);
  if (is_list(spec.type) && node.IsScalar()) node = one_document("[" + text + "]");  // --set lengths=128,512
  if (is_list(spec.type) != node.IsSequence()) throw YAML::Exception(node.Mark(), "a list, or not a list");
  std::vector<std::string> result;
  if (node.IsScalar()) result.push_back(node.Scalar());
  for (const auto& item : node) result.push_back(item.as<std::string>());
  if (!is_list(spec.type) && result.size() != 1) throw YAML::Exception(node.Mark(), "not one value");
  return result;
}

std::string canonical(const SettingSpec& spec, const std::vector<std::string>& items) {
  if (!is_list(spec.type)) return spec.type == SettingType::text ? quote_if_needed(items.at(0), false) : items.at(0);
  std::vector<std::string> quoted;
  quoted.reserve(items.size());
  for (const std::string& item : items) quoted.push_back(quote_if_needed(item, true));
  return fmt::format("[{}]", fmt::join(quoted, ", "));
}

std::string absolute_where_a_path(const SettingSpec& spec, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code error;  // what cannot be looked at is refused by whoever reads it
  const bool is_path =
      spec.path_to == PathTo::any || (spec.path_to == PathTo::file && fs::is_regular_file(text, error));
  if (text.empty() || !is_path) return text;
  const fs::path path = fs::absolute(text, error).lexically_normal();
  return error ? text : path.string();
}

// Checks one value and returns its canonical text; throws UsageError with `where` in front.
std::string checked(const SettingSpec& spec, const std::string& text, const std::string& where) {
  const auto refuse = [&] {
    return UsageError(
        fmt::format("{}: {} is '{}', allowed is {} ({})", where, spec.key, text, allowed_words(spec), spec.meaning));
  };
  if (base::first_not_utf8(text) < text.size()) throw refuse();  // JSON reports could not hold it
  std::vector<std::string> items;
  try {
    items = elements(spec, text);
  } catch (const YAML::Exception&) {
    throw refuse();
  }
  if (!std::all_of(items.begin(), items.end(), [&](const std::string& item) { return element_fits(spec, item); }))
    throw refuse();
  if (spec.path_to != PathTo::none) items.at(0) = absolute_where_a_path(spec, items.at(0));
  return canonical(spec, items);
}

// A value of a configuration file as the text that --set would have. Maps have no such text.
std::string text_of(const SettingSpec& spec, const YAML::Node& node) {
  if (node.IsScalar()) return spec.type == SettingType::text ? quote_if_needed(node.Scalar(), false) : node.Scalar();
  if (!node.IsSequence()) return YAML::Dump(node);
  std::vector<std::string> items;
  for (const auto& item : node)
    items.push_back(item.IsScalar() ? quote_if_needed(item.Scalar(), true) : YAML::Dump(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

struct Leaf {
  std::string key;
  YAML::Node value;
  int line;
};

bool is_prefix_of_any(const std::string& key, const std::vector<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& k) { return k.starts_with(key + "."); });
}

// The leaves of a nested mapping, with dotted keys. A map is entered only while some declared key lies below it, so
// that a misspelt section is one error and not one for each of its keys.
void flatten(const YAML::Node& map, const std::string& prefix, const std::vector<std::string>& keys,
             std::vector<Leaf>& leaves) {
  for (const auto& entry : map) {
    const std::string key =
        prefix + (entry.first.IsScalar() ? entry.first.Scalar() : "<" + YAML::Dump(entry.first) + ">");
    if (entry.second.IsMap() && is_prefix_of_any(key, keys))
      flatten(entry.second, key + ".", keys, leaves);
    else
      leaves.push_back({key, entry.second, entry.first.Mark().line + 1});
  }
}

std::vector<std::string> keys_of(std::span<const SettingSpec> specs) {
  std::vector<std::string> keys;
  for (const SettingSpec& spec : specs) keys.push_back(spec.key);
  return keys;
}

const SettingSpec& find_spec(std::span<const SettingSpec> specs, const std::string& key, const std::string& where) {
  const auto at = std::find_if(specs.begin(), specs.end(), [&](const SettingSpec& spec) { return spec.key == key; });
  if (at != specs.end()) return *at;
  const std::string near = base::nearest(key, keys_of(specs));
  throw UsageError(fmt::format("{}: unknown key '{}'{} (`list --settings` shows all)", where, key,
                               near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

YAML::Node load_map(const std::filesystem::path& file) {
  try {
    const std::vector<YAML::Node> documents = base::load_yaml_file(file);
    if (documents.size() > 1)
      throw UsageError(fmt::format("{}:{}: a configuration is one YAML document, here begins a second", file.string(),
                                   documents[1].Mark().line + 1));
    const YAML::Node root = documents.empty() ? YAML::Node() : documents[0];
    if (!root.IsMap() && !root.IsNull())
      throw UsageError(
          fmt::format("{}:{}: wanted is a mapping of keys to values", file.string(), root.Mark().line + 1));
    return root;
  } catch (const YAML::ParserException& e) {
    throw UsageError(fmt::format("{}:{}: not YAML: {}", file.string(), e.mark.line + 1, e.msg));
  } catch (const YAML::Exception& e) {
    throw UsageError(fmt::format("{}: cannot be read as YAML: {}", file.string(), e.what()));
  } catch (const std::system_error& e) {  // too many links, no permission
    const std::string reason = e.code() == std::errc::no_such_file_or_directory ? "no such configuration file"
                               : e.code() != std::errc::not_supported ? "cannot be read: " + e.code().message()
                               : std::filesystem::is_directory(file)  ? "is a directory, and no configuration file"
                                                                      : "is no regular file, and no configuration file";
    throw UsageError(fmt::format("{}: {}", file.string(), reason));
  }
}

}  // namespace

Settings::Settings(std::vector<SettingSpec> specs) : specs_(std::move(specs)) {
  for (const SettingSpec& spec : specs_) {
    try {
      const std::string text = checked(spec, spec.default_value, "default");
      if (!values_.emplace(spec.key, SettingValue{text, "default"}).second)
        throw std::logic_error(fmt::format("setting '{}' is declared twice", spec.key));
    } catch (const UsageError& e) {
      throw std::logic_error(fmt::format("setting declared with a bad default: {}", e.what()));
    }
  }
}

void Settings::load_file(const std::filesystem::path& file) {
  std::vector<Leaf> leaves;
  flatten(load_map(file), "", keys_of(specs_), leaves);
  std::vector<std::string> problems;
  std::set<std::string> seen;
  std::map<std::string, SettingValue> values = values_;  // all of a file or nothing of it
  for (const Leaf& leaf : leaves) {
    const std::string origin = fmt::format("{}:{}", file.string(), leaf.line);
    try {
      const SettingSpec& spec = find_spec(specs_, leaf.key, origin);
      if (!seen.insert(leaf.key).second) throw UsageError(fmt::format("{}: key '{}' stands twice", origin, leaf.key));
      values[leaf.key] = {checked(spec, text_of(spec, leaf.value), origin), origin};
    } catch (const UsageError& e) {
      problems.push_back(e.what());
    }
  }
  if (!problems.empty()) throw UsageError(fmt::format("{}", fmt::join(problems, "\n")));
  values_ = std::move(values);
}

void Settings::set(const std::string& key, const std::string& value, const std::string& origin) {
  const SettingSpec& spec = find_spec(specs_, key, origin);
  values_[key] = {checked(spec, value, origin), origin};
}

const SettingValue& Settings::value(std::string_view key, SettingType type) const {
  const auto spec = std::find_if(specs_.begin(), specs_.end(), [&](const SettingSpec& s) { return s.key == key; });
  if (spec == specs_.end()) throw std::logic_error(fmt::format("setting '{}' is not declared", key));
  if (spec->type != type) throw std::logic_error(fmt::format("setting '{}' is {}", key, type_name(spec->type)));
  return values_.at(spec->key);
}

namespace {

std::vector<std::string> items_of(const SettingValue& value, SettingType type) {
  SettingSpec spec;
  spec.type = type;
  return elements(spec, value.text);
}

// Of text that was checked when the setting was set.
template <typename Number>
Number number_of(const std::string& text) {
  const auto number = parse_number<Number>(text);
  if (!number) throw std::logic_error(fmt::format("'{}' was taken for a number", text));
  return *number;
}

template <typename Number>
std::vector<Number> numbers_of(const SettingValue& value, SettingType type) {
  std::vector<Number> result;
  for (const std::string& item : items_of(value, type)) result.push_back(number_of<Number>(item));
  return result;
}

}  // namespace

std::int64_t Settings::integer(std::string_view key) const {
  return number_of<std::int64_t>(value(key, SettingType::integer).text);
}
double Settings::real(std::string_view key) const { return number_of<double>(value(key, SettingType::real).text); }
bool Settings::boolean(std::string_view key) const { return value(key, SettingType::boolean).text == "true"; }
std::string Settings::text(std::string_view key) const {
  return items_of(value(key, SettingType::text), SettingType::text).at(0);
}
std::vector<std::int64_t> Settings::integers(std::string_view key) const {
  return numbers_of<std::int64_t>(value(key, SettingType::integer_list), SettingType::integer_list);
}
std::vector<double> Settings::reals(std::string_view key) const {
  return numbers_of<double>(value(key, SettingType::real_list), SettingType::real_list);
}
std::vector<std::string> Settings::texts(std::string_view key) const {
  return items_of(value(key, SettingType::text_list), SettingType::text_list);
}

}  // namespace harness
