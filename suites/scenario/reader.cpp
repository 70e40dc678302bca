#include "suites/scenario/reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/nearest.hpp"

namespace suites::scenario {

namespace {

[[noreturn]] void fail(const std::string& what) { throw ScenarioError(what, false); }

bool among(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

std::string joined(const std::string& place, const std::string& key) {
  return place.ends_with(":") ? place + " " + key : place + "." + key;
}

}  // namespace

Json parse_object(const std::string& text, const std::string& file) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) fail(file + ": is empty");
  Json json;
  try {
    json = reports::parse_edited(text);
  } catch (const Json::exception& error) {
    fail(fmt::format("{}: is damaged, or no JSON: {}", file, error.what()));
  } catch (const std::invalid_argument& twice) {
    fail(fmt::format("{}: {}", file, twice.what()));
  }
  if (!json.is_object()) fail(file + ": is no JSON object");
  return json;
}

Reader::Reader(const Json& json, std::string place) : json_(&json), place_(std::move(place)) {
  if (!json.is_object()) fail(place_ + ": must be an object");
}

void Reader::refuse(const std::string& key, const std::string& what) const {
  fail(fmt::format("{}: {}", joined(place_, key), what));
}

const Json* Reader::find(const char* key) {
  asked_.insert(key);
  const auto it = json_->find(key);
  return it == json_->end() ? nullptr : &*it;
}

const Json& Reader::need(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) refuse(key, "is missing");
  return *value;
}

bool Reader::has(const char* key) { return find(key) != nullptr; }

std::string Reader::text(const char* key) {
  const Json& value = need(key);
  if (!value.is_string() || value.get<std::string>().empty()) refuse(key, "must be a text that is not empty");
  return value.get<std::string>();
}

std::string Reader::text_or(const char* key, const std::string& otherwise) { return has(key) ? text(key) : otherwise; }

void Reader::must_be_known(const std::string& key, const std::string& name, const std::vector<std::string>& known,
                           const char* what) const {
  if (among(known, name)) return;
  const std::string near = base::nearest(name, known);
  refuse(key,
         fmt::format("'{}' is no {}{}", name, what, near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

std::string Reader::one_of(const char* key, const std::vector<std::string>& allowed, const char* what) {
  std::string value = text(key);
  if (!among(allowed, value))
    refuse(key, fmt::format("'{}' is no {}; allowed: {}", value, what, fmt::join(allowed, ", ")));
  return value;
}

std::vector<std::string> Reader::texts(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array() || value->empty()) refuse(key, "must be a list of texts that is not empty");
  std::vector<std::string> all;
  for (const Json& one : *value) {
    if (!one.is_string() || one.get<std::string>().empty()) refuse(key, "must be a list of texts, none of them empty");
    all.push_back(one.get<std::string>());
    if (std::count(all.begin(), all.end(), all.back()) > 1) refuse(key, fmt::format("'{}' stands twice", all.back()));
  }
  return all;
}

std::vector<std::string> Reader::known_texts(const char* key, const std::vector<std::string>& known, const char* what) {
  std::vector<std::string> all = texts(key);
  for (const std::string& one : all) must_be_known(key, one, known, what);
  return all;
}

bool Reader::flag(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) refuse(key, "must be true or false");
  return value->get<bool>();
}

std::optional<double> Reader::number(const char* key) {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) refuse(key, "must be a finite number");
  return value->get<double>();
}

const Json& Reader::any(const char* key) { return need(key); }

std::vector<Reader> Reader::objects(const char* key) {
  const Json& value = need(key);
  if (!value.is_array() || value.empty()) refuse(key, "must be a list that is not empty");
  std::vector<Reader> all;
  for (std::size_t i = 0; i < value.size(); ++i)
    all.emplace_back(value[i], fmt::format("{}[{}]", joined(place_, key), i));
  return all;
}

Reader Reader::object(const char* key) { return {need(key), joined(place_, key)}; }

std::map<std::string, std::string> Reader::text_map(const char* key, const std::vector<std::string>& known,
                                                    const char* what) {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_object() || value->empty()) refuse(key, "must be an object that is not empty");
  std::map<std::string, std::string> all;
  for (const auto& [name, text] : value->items()) {
    must_be_known(key, name, known, what);
    if (!text.is_string()) refuse(joined(key, name), "must be a text");
    all[name] = text.get<std::string>();
  }
  return all;
}

void Reader::done() const {
  for (const auto& [key, value] : json_->items()) {
    if (asked_.contains(key)) continue;
    const std::string near = base::nearest(key, asked_);
    refuse(key, fmt::format("is no key that is known here{}",
                            near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  }
}

}  // namespace suites::scenario
