#include "suites/selftest/baseline.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace suites::selftest {

namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& what, bool incompatible = false) {
  throw BaselineError(fmt::format("{}: {}", name, what), incompatible);
}

std::string text_at(const Json& json, const char* key, const std::string& name) {
  if (!json.contains(key) || !json[key].is_string() || json[key].get<std::string>().empty())
    refuse(name, fmt::format("'{}' must be a text; it is damaged, or no baseline of the self-test", key));
  return json[key].get<std::string>();
}

std::string major_of(const std::string& version) { return version.substr(0, version.find('.')); }

Baseline::Row row_of(const Json& json, const std::string& fault, const std::string& name) {
  const auto wrong = [&](const std::string& what) { refuse(name, fmt::format("fault '{}': {}", fault, what)); };
  if (!json.is_object() || !json.contains("outcome") || !json["outcome"].is_string()) wrong("needs an outcome");
  const auto outcome = parse_outcome(json["outcome"].get<std::string>());
  if (!outcome || *outcome == Outcome::broken)
    wrong(fmt::format("'{}' is no outcome that a baseline holds", json["outcome"].get<std::string>()));
  if (!json.contains("cause_first") || !json["cause_first"].is_boolean()) wrong("needs cause_first: true or false");
  const bool first = json["cause_first"].get<bool>();
  if (first && *outcome != Outcome::caught) wrong("a cause is right first where the fault was caught, and only there");
  return {*outcome, first};
}

}  // namespace

Baseline parse_baseline(const std::string& text, const std::string& name) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) refuse(name, "is empty");
  Json json;
  try {
    json = reports::parse_edited(text);
  } catch (const Json::exception&) {  // is no object
  } catch (const std::invalid_argument& twice) {
    refuse(name, twice.what());
  }
  if (!json.is_object()) refuse(name, "is no JSON object: damaged, or no baseline of the self-test");
  if (const std::string schema = text_at(json, "schema", name); schema != kBaselineSchema)
    refuse(name, fmt::format("schema '{}' is not '{}'", schema, kBaselineSchema));
  if (const std::string version = text_at(json, "schema_version", name);
      major_of(version) != major_of(kBaselineVersion))
    refuse(name, fmt::format("schema version {} cannot be read; this program reads {}", version, kBaselineVersion),
           true);
  Baseline baseline{text_at(json, "level", name), text_at(json, "device", name), {}};
  if (!json.contains("faults") || !json["faults"].is_object() || json["faults"].empty())
    refuse(name, "holds no fault: nothing could get worse than it");
  for (const auto& [fault, row] : json["faults"].items()) baseline.faults[fault] = row_of(row, fault, name);
  return baseline;
}

void check_fits(const Baseline& baseline, const std::string& level, const std::string& device,
                const std::string& name) {
  if (baseline.level != level || baseline.device != device)
    refuse(name,
           fmt::format("is of level {} on {}, this is level {} on {}", baseline.level, baseline.device, level, device),
           true);
}

std::string to_text(const Baseline& baseline) {
  Json faults = Json::object();
  for (const auto& [fault, row] : baseline.faults)
    faults[fault] = {{"outcome", to_string(row.outcome)}, {"cause_first", row.cause_first}};
  // A line a fault, so that a change is read as such.
  std::string text = fmt::format("{{\n  \"schema\": \"{}\",\n  \"schema_version\": \"{}\",\n  \"level\": \"{}\",\n",
                                 kBaselineSchema, kBaselineVersion, baseline.level);
  text += fmt::format("  \"device\": \"{}\",\n  \"faults\": {{", baseline.device);
  const char* separator = "\n";
  for (const auto& [fault, row] : faults.items()) {
    text += fmt::format("{}    {}: {}", separator, reports::dump(Json(fault)), reports::dump(row));
    separator = ",\n";
  }
  return text + "\n  }\n}\n";
}

Baseline baseline_of(std::span<const Trial> trials, const std::string& level, const std::string& device) {
  return with_rows_of({level, device, {}}, trials);
}

Baseline with_rows_of(Baseline old, std::span<const Trial> trials) {
  for (const Trial& trial : trials) old.faults[trial.fault] = {trial.outcome, trial.cause_first};
  return old;
}

Comparison compare(const Baseline& baseline, std::span<const Trial> trials, std::span<const std::string> catalogue) {
  Comparison result;
  for (const Trial& trial : trials) {
    if (trial.outcome == Outcome::broken) continue;
    const auto before = baseline.faults.find(trial.fault);
    if (before == baseline.faults.end()) {
      result.fresh.push_back(trial.fault);
      continue;
    }
    const bool was = before->second.outcome == Outcome::caught, is = trial.outcome == Outcome::caught;
    if (was && !is) result.lost.push_back(trial.fault);
    if (is && !was) result.gained.push_back(trial.fault);
    if (was && is && before->second.cause_first && !trial.cause_first) result.cause_lost.push_back(trial.fault);
  }
  for (const auto& [fault, row] : baseline.faults)
    if (std::find(catalogue.begin(), catalogue.end(), fault) == catalogue.end()) result.gone.push_back(fault);
  return result;
}

}  // namespace suites::selftest
