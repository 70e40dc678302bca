#include "reports/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reports/fields.hpp"
#include "reports/journal.hpp"

namespace reports::records {

namespace {

constexpr std::array<std::string_view, 2> kLevels{"smoke", "standard"};

}  // namespace

std::string level(const Json& object) {
  std::string word = fields::text(object, "level");
  if (std::find(kLevels.begin(), kLevels.end(), word) == kLevels.end()) {
    fields::reject(object, "level", "smoke or standard");
  }
  return word;
}

std::string suite_name(const Json& suite) {
  std::string name = fields::text(suite, "name");
  const bool good = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!good) fields::reject(suite, "name", "letters, digits, '_' and '-'");
  return name;
}

std::vector<std::string> required_suites(const Json& suite) {
  std::vector<std::string> names;
  for (const auto& required : fields::array_or_empty(suite, "requires")) {
    if (!required.is_string()) fields::reject(suite, "requires", "an array of suite names");
    names.push_back(required.get<std::string>());
  }
  return names;
}

Status status(const Json& object) {
  const auto status = parse_status(fields::text(object, "status"));
  if (!status) fields::reject(object, "status", "one of the statuses of reports/status.hpp");
  return *status;
}

ExitCode interruption(const Json& object) {
  const auto value = fields::natural(object, "interruption");
  for (const auto& row : exit_code_table()) {
    if (row.code != ExitCode::ready && static_cast<std::uint64_t>(row.code) == value) return row.code;
  }
  fields::reject(object, "interruption", "an exit code of reports/status.hpp other than 0");
}

Case planned_case(const Json& entry, const std::string& suite) {
  Case c;
  c.suite = suite;
  c.id = fields::text(entry, "id");
  c.hash = fields::text(entry, "hash");
  c.name = fields::text(entry, "name");
  c.params = fields::object_or_empty(entry, "params");
  c.level = level(entry);
  c.required = fields::boolean_or(entry, "required", true);
  c.repro = fields::text_or(entry, "repro", "");
  c.facts = Json::object();
  return c;
}

Finding finding(const Json& object) {
  Finding f;
  f.code = fields::text(object, "code");
  const auto severity = parse_severity(fields::text(object, "severity"));
  if (!severity) fields::reject(object, "severity", "info, warn, degrade, block or isolate");
  f.severity = *severity;
  f.category = fields::text_or(object, "category", "");
  f.title = fields::text_or(object, "title", f.code);
  f.message = fields::prose(object, "message");
  f.cause = fields::text_or(object, "cause", "");
  f.next = fields::text_or(object, "next", "");
  f.repro = fields::text_or(object, "repro", "");
  f.evidence = fields::object_or_empty(object, "evidence");
  return f;
}

Check check(const Json& object) {
  for (const char* key : {"measured", "bound"}) {
    if (!object.contains(key)) fields::reject(object, key, "any value");
  }
  return {fields::prose(object, "name"),
          fields::boolean(object, "pass"),
          object.at("measured"),
          fields::prose(object, "comparator"),
          object.at("bound"),
          fields::text_or(object, "unit", "")};
}

Metric metric(const Json& object) {
  return {fields::prose(object, "name"), fields::measure(object, "value"), fields::text_or(object, "unit", "")};
}

bool nests_deeper(const Json& value, std::size_t depth) {
  std::vector<const Json*> level{&value}, next;
  for (std::size_t at = 0; !level.empty(); ++at, level.swap(next)) {
    next.clear();
    for (const Json* item : level) {
      if (!item->is_structured()) continue;
      if (at == depth) return true;
      for (const Json& child : *item) next.push_back(&child);
    }
  }
  return false;
}

bool nests_deeper(std::string_view text, std::size_t depth) {
  if (text.size() <= depth) return false;
  std::size_t open = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (c == '\\') ++i;  // what it escapes
    } else if (c == '[' || c == '{') {
      if (++open > depth) return true;
    } else if ((c == ']' || c == '}') && open > 0) {
      --open;
    }
  }
  return false;
}

// A gigabyte of a fleet's journals goes through here: one look at a table for each byte that is nothing special.
bool is_one_object(std::string_view text) {
  static constexpr auto kSpecial = [] {
    std::array<bool, 256> special{};
    for (std::size_t control = 0; control < ' '; ++control) special[control] = true;
    for (const char c : {'"', '\\', '[', ']', '{', '}'}) special[static_cast<unsigned char>(c)] = true;
    return special;
  }();
  if (!text.starts_with('{')) return false;
  std::size_t open = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (!kSpecial[c]) continue;
    if (c < ' ') return false;
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      if (c == '\\') ++i;  // what it escapes
    } else if (c == '[' || c == '{') {
      ++open;
    } else if (c == ']' || c == '}') {
      if (open == 0 || --open == 0) return i + 1 == text.size();
    }
  }
  return false;
}

bool is_version(std::string_view text) {
  constexpr std::size_t kDigits = 9;
  for (int part = 0; part < 3; ++part) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    if (digits == 0 || digits > kDigits) return false;
    text.remove_prefix(digits);
    if (part == 2) return text.empty();
    if (text.empty() || text.front() != '.') return false;
    text.remove_prefix(1);
  }
  return false;
}

void check_schema(const Json& object, std::string_view schema, std::string_view own_version, const std::string& where,
                  std::string_view what) {
  const auto word = [&](const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (word("schema") != schema) {
    throw JournalError(fmt::format("{}: schema is '{}', allowed: {}", where, word("schema").substr(0, 60), schema),
                       false);
  }
  const std::string version = word("schema_version");
  if (!is_version(version)) {
    throw JournalError(fmt::format("{}: schema_version is '{}', allowed: a version such as {}", where,
                                   version.substr(0, 60), own_version),
                       false);
  }
  const std::string_view own_major = own_version.substr(0, own_version.find('.'));
  if (std::string_view(version).substr(0, version.find('.')) != own_major) {
    throw JournalError(
        fmt::format("{}: the {} has schema version {}, this program reads {}.x", where, what, version, own_major),
        true);
  }
}

}  // namespace reports::records
