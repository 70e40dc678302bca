#include "suites/throughput/baseline.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <optional>
#include <vector>

#include "reports/writers.hpp"
#include "suites/codes.hpp"
#include "suites/subject.hpp"

namespace suites::throughput_cases {

using harness::Context;
using harness::Json;
using probes::Change;
using probes::Decision;
using probes::Timed;

std::string gpu_name(const Context& context) {
  if (!context.cuda()) return "";
  return at::cuda::getDeviceProperties(device_of(context).index())->name;
}

Json identity(const Context& context, const nsa::Config& config) {
  Json json = {{"device", context.cuda() ? gpu_name(context) : "cpu"}};
  if (!context.cuda()) {
    const Json host = context.planned_provenance().value("host", Json::object());
    json["cpu"] = fmt::format("{}, {} cores", host.value("cpu", "?"), host.value("cores", 0));
  }
  for (const auto& [key, value] : nsa::flatten(config)) {
    const bool shape = key == "train.precision" || key == "train.seq_len" || key == "train.batch_size" ||
                       key == "train.accumulate_grad_batches" || key == "train.gradient_checkpointing";
    if (key.starts_with("model.") || key.starts_with("nsa.") || shape) json[key] = value;
  }
  return json;
}

Json Comparable::to_json() const {
  Json json = {{"identity", identity}, {"timed", Json::object()}};
  for (const auto& [name, times] : timed) json["timed"][name] = times.to_json();
  return json;
}

namespace {

// What the harness recorded of the machine while a case took its times.
std::string disturbance_of(const Json& facts) {
  const Json load = facts.value("load", Json::object());
  return load.value("busy", false) ? load.value("in_words", "a load that is not described") : "";
}

}  // namespace

Baseline read_baseline(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "report.json" : path;
  const auto fail = [&](const std::string& reason) {
    return std::runtime_error(fmt::format("throughput.baseline: {}: {}", file.string(), reason));
  };
  std::ifstream stream(file);
  if (!stream) throw fail("cannot be read");
  Baseline baseline;
  try {
    const Json report = Json::parse(stream);
    const std::string version = report.at("schema_version"), own = reports::kReportSchemaVersion;
    if (version.substr(0, version.find('.')) != own.substr(0, own.find('.')))
      throw fail(fmt::format("it is a report of version {}; this program reads {}", version, own));
    baseline.run_id = report.at("run").at("id");
    baseline.faults = report.at("run").value("faults", Json::array());
    baseline.provenance = report.at("provenance");
    for (const Json& suite : report.at("suites")) {
      if (suite.at("name").get<std::string>() != "throughput") continue;
      for (const Json& c : suite.at("cases")) {
        if (!c.at("facts").contains("comparable")) continue;
        const Json& left = c.at("facts").at("comparable");
        Comparable comparable{left.at("identity"), {}};
        for (const auto& [name, times] : left.at("timed").items()) comparable.timed[name] = Timed::from_json(times);
        comparable.disturbed_by = disturbance_of(c.at("facts"));
        baseline.by_case[c.at("name").get<std::string>()] = std::move(comparable);
      }
    }
  } catch (const Json::exception& error) {
    throw fail(std::string("it is not a report: ") + error.what());
  } catch (const std::invalid_argument& error) {
    throw fail(error.what());
  }
  return baseline;
}

std::string refusal(const Json& theirs, const Json& mine) {
  std::string differences;
  const auto text = [](const Json& json, const std::string& key) {
    return json.contains(key) ? reports::dump(json.at(key)) : std::string("nothing");
  };
  Json keys = theirs;
  keys.update(mine);
  for (const auto& [key, value] : keys.items()) {
    if (text(theirs, key) == text(mine, key)) continue;
    differences += fmt::format("{}{} is {} there and {} here", differences.empty() ? "" : "; ", key, text(theirs, key),
                               text(mine, key));
  }
  return differences;
}

namespace {

// What may explain a change and does not forbid the comparison.
Json other_differences(const Json& theirs, const Json& mine) {
  static const std::array<const char*, 5> kPlaces = {"/build/build_id", "/torch/version", "/cuda/driver",
                                                     "/cuda/runtime", "/flags/effective"};
  Json differences = Json::object();
  for (const char* place : kPlaces) {
    const Json::json_pointer pointer(place);
    const Json before = theirs.contains(pointer) ? theirs.at(pointer) : Json(),
               now = mine.contains(pointer) ? mine.at(pointer) : Json();
    if (before == now) continue;
    if (!before.is_object() || !now.is_object()) {
      differences[place] = {{"baseline", before}, {"now", now}};
      continue;
    }
    for (const auto& [key, value] : now.items()) {
      const Json old = before.value(key, Json());
      if (old != value) differences[fmt::format("{}/{}", place, key)] = {{"baseline", old}, {"now", value}};
    }
  }
  return differences;
}

// Times of this run that others disturbed are compared with nothing.
std::optional<Decision> disturbed(const Context& context) {
  const base::Load load = context.load();
  if (!load.busy()) return std::nullopt;
  Decision decision;
  decision.reason = "this run's times were taken on a busy machine: " + load.describe();
  return decision;
}

// Two measurements must agree on a change; one is enough to find none.
Decision decide_twice(const Context& context, const Timed& before, const Timed& now, const Remeasure& again,
                      const std::string& name, const probes::DecisionLimits& limits) {
  if (const auto cannot_tell = disturbed(context)) return *cannot_tell;
  const Decision first = probes::decide(before, now, limits);
  if (first.change == Change::same || first.change == Change::unusable) return first;
  Decision second = probes::decide(before, again(name), limits);
  if (const auto cannot_tell = disturbed(context)) return *cannot_tell;
  if (first.change == Change::ambiguous || second.change == first.change || second.change == Change::unusable)
    return second;
  second.reason =
      fmt::format("measured twice, it is {} and then {}", probes::words(first.change), probes::words(second.change));
  second.change = Change::ambiguous;
  return second;
}

void tell(Context& context, const std::string& name, const Decision& decision, const Json& evidence) {
  const std::string times = decision.change == Change::unusable
                                ? decision.reason
                                : fmt::format(
                                      "{:.3f} times the baseline's time (interval {:.3f} to {:.3f}, threshold "
                                      "{:.1f} %){}{}",
                                      decision.ratio, decision.interval.low, decision.interval.high,
                                      100 * decision.threshold, decision.reason.empty() ? "" : ": ", decision.reason);
  const std::string message = fmt::format("{}: {}: {}", probes::words(decision.change), name, times);
  context.expect("not_slower " + name, decision.change != Change::slower, message, codes::kSlower, evidence);
  if (decision.change == Change::faster) context.finding(codes::kFaster, message, evidence);
  if (decision.change == Change::ambiguous || decision.change == Change::unusable)
    context.finding(codes::kCannotTell, message, evidence);
}

void unusable(Context& context, const std::string& reason, const Json& evidence) {
  context.fact("baseline", {{"decision", probes::to_string(Change::unusable)},
                            {"word", probes::words(Change::unusable)},
                            {"reason", reason},
                            {"evidence", evidence}});
  context.finding(codes::kBaselineUnusable, reason, evidence);
}

}  // namespace

void compare_with_baseline(Context& context, const std::string& case_name, const Comparable& mine,
                           const Remeasure& again) {
  const std::string path = context.settings().text("throughput.baseline");
  if (path.empty()) return;
  std::optional<Baseline> baseline;
  try {
    baseline = read_baseline(path);
  } catch (const std::runtime_error& error) {
    return unusable(context, error.what(), {{"path", path}});
  }
  Json evidence = {{"baseline", baseline->run_id}, {"path", path}};
  if (!baseline->faults.empty())
    return unusable(context, "the baseline's run had planted faults: " + reports::dump(baseline->faults), evidence);
  const auto theirs = baseline->by_case.find(case_name);
  if (theirs == baseline->by_case.end())
    return unusable(context, "the baseline holds no times of throughput/" + case_name, evidence);
  if (const std::string why = refusal(theirs->second.identity, mine.identity); !why.empty())
    return unusable(context, "the baseline cannot be compared: " + why, evidence);

  if (!theirs->second.disturbed_by.empty())
    return unusable(context, "the baseline's times were taken on a busy machine: " + theirs->second.disturbed_by,
                    evidence);

  evidence["other_differences"] = other_differences(baseline->provenance, context.planned_provenance());
  const probes::DecisionLimits limits{.least_effect = context.settings().real("throughput.least_effect_percent") / 100};
  std::vector<std::pair<std::string, Decision>> decisions;
  std::vector<double> p;
  for (const auto& [name, now] : mine.timed) {
    const auto before = theirs->second.timed.find(name);
    if (before == theirs->second.timed.end()) continue;
    decisions.emplace_back(name, decide_twice(context, before->second, now, again, name, limits));
    if (decisions.back().second.change != Change::unusable) p.push_back(decisions.back().second.p);
  }
  if (decisions.empty()) return unusable(context, "the baseline holds none of this case's measurements", evidence);

  const std::vector<double> corrected = probes::holm(p);
  std::size_t next = 0;
  Json rows = Json::array();
  for (const auto& [name, decision] : decisions) {
    Json row = decision.to_json();
    row["measurement"] = name;
    if (decision.change != Change::unusable) row["p_holm"] = reports::number(corrected[next++]);
    rows.push_back(row);
    Json of_row = evidence;
    of_row["row"] = row;
    tell(context, name, decision, of_row);
  }
  evidence["rows"] = rows;
  context.fact("baseline", evidence);
}

}  // namespace suites::throughput_cases
