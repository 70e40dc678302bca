// The provenance as rows. Its providers are the harness and the program; their shape is taken as it comes.
#include <fmt/format.h>

#include <algorithm>

#include "reports/view.hpp"

namespace reports::view {

namespace {

constexpr std::size_t kValueBytes = 160;
constexpr std::size_t kMembers = 16;  // a larger object (a whole configuration) is not for reading

// {"value": .., "origin": ..}
bool has_origin(const Json& item) { return item.is_object() && item.contains("value") && item.contains("origin"); }

void add(std::vector<Row>& rows, const std::string& name, const Json& item);

// A table of settings: those that somebody has set, and how many are as they come.
void add_settings(std::vector<Row>& rows, const std::string& name, const Json& table) {
  std::size_t defaults = 0;
  for (const auto& [key, item] : table.items()) {
    if (item.at("origin") == "default") {
      ++defaults;
    } else {
      add(rows, fmt::format("{}.{}", name, key), item);
    }
  }
  if (defaults > 0) rows.emplace_back(name, fmt::format("{} more at their defaults, in report.json", defaults));
}

void add(std::vector<Row>& rows, const std::string& name, const Json& item) {
  if (item.is_object() && !item.empty() && std::all_of(item.begin(), item.end(), has_origin)) {
    add_settings(rows, name, item);
  } else if (has_origin(item)) {
    rows.emplace_back(
        name, cut(one_line(fmt::format("{} ({})", value(item.at("value")), value(item.at("origin")))), kValueBytes));
  } else if (item.is_object() && item.size() > kMembers) {
    rows.emplace_back(name, fmt::format("{} values, in report.json", item.size()));
  } else if (item.is_object()) {
    for (const auto& [key, member] : item.items())
      add(rows, name.empty() ? key : fmt::format("{}.{}", name, key), member);
  } else if (item.is_array() && !item.empty() && item.front().is_object()) {
    for (std::size_t i = 0; i < item.size(); ++i) add(rows, fmt::format("{}[{}]", name, i), item[i]);
  } else if (!item.is_null() && !(item.is_array() && item.empty())) {
    rows.emplace_back(name, cut(one_line(value(item)), kValueBytes));
  }
}

Flag flag(const std::string& name, const Json& entry) {
  if (!entry.is_object()) return {name, value(entry), ""};
  const auto word = [&](const char* key) { return entry.contains(key) ? value(entry.at(key)) : std::string(); };
  return {name, word("value"), word("origin")};
}

}  // namespace

std::vector<Row> environment(const Run& run) {
  std::vector<Row> rows;
  if (!run.provenance.is_object()) return rows;
  for (const auto& [key, item] : run.provenance.items()) {
    if (key != "flags") add(rows, key, item);
  }
  return rows;
}

// As {"NSA_USE_FA2": {"value": .., "origin": ..}}, {"NSA_USE_FA2": ..} or [{"name": .., "value": .., "origin": ..}].
std::vector<Flag> flags(const Run& run) {
  std::vector<Flag> found;
  if (!run.provenance.is_object() || !run.provenance.contains("flags")) return found;
  const Json& table = run.provenance.at("flags");
  if (table.is_object()) {
    for (const auto& [name, entry] : table.items()) {
      if (entry.is_object() && !entry.contains("value")) {  // one level down: {"raw": {...}, "effective": {...}}
        for (const auto& [inner, item] : entry.items()) found.push_back(flag(fmt::format("{}.{}", name, inner), item));
      } else {
        found.push_back(flag(name, entry));
      }
    }
  } else if (table.is_array()) {
    for (const auto& entry : table) {
      if (entry.is_object() && entry.contains("name")) found.push_back(flag(value(entry.at("name")), entry));
    }
  }
  return found;
}

}  // namespace reports::view
