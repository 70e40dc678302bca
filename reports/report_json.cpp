// report.json and suites/NAME.json, as schema/report-1.schema.json describes them.
#include <algorithm>

#include "reports/writers.hpp"

namespace reports {

namespace {

Json strings(const std::vector<std::string>& items) {
  Json array = Json::array();
  for (const auto& item : items) array.push_back(item);
  return array;
}

const Json& object_or(const Json& value, const Json& fallback) { return value.is_object() ? value : fallback; }

Json finding_json(const Finding& f) {
  Json object{{"code", f.code},
              {"severity", to_string(f.severity)},
              {"category", f.category},
              {"title", f.title},
              {"message", f.message},
              {"cause", f.cause},
              {"next", f.next},
              {"repro", f.repro},
              {"evidence", object_or(f.evidence, Json::object())}};
  if (!f.follows_from.empty()) object["follows_from"] = f.follows_from;
  return object;
}

Json findings_json(const std::vector<Finding>& findings) {
  Json array = Json::array();
  for (const auto& f : findings) array.push_back(finding_json(f));
  return array;
}

Json causes_json(const std::vector<LikelyCause>& causes) {
  Json array = Json::array();
  for (const auto& c : causes) {
    Json consequences = Json::array();
    for (const auto& [code, title, findings] : c.consequences)
      consequences.push_back({{"code", code}, {"title", title}, {"findings", findings}});
    array.push_back({{"id", c.id},
                     {"what", c.what},
                     {"weight", c.weight},
                     {"severity", to_string(c.severity)},
                     {"because", strings(c.because)},
                     {"next", c.next},
                     {"confirm", c.confirm},
                     {"codes", strings(c.codes)},
                     {"consequences", std::move(consequences)}});
  }
  return array;
}

// The words of the shared part: {planned, executed, every status, passed, failed, skipped}.
Json totals_json(const Totals& totals) {
  Json object{{"planned", totals.planned}, {"executed", totals.executed}};
  for (const auto& [status, n] : totals.by_status) object[std::string(to_string(status))] = n;
  object["passed"] = totals.passed;
  object["failed"] = totals.failed;
  object["skipped"] = totals.skipped;
  return object;
}

// What a status must and must not carry (the schema's if/then): a case without a result says why; a pass has no excuse.
void add_reason(Json& object, const Case& c, Status status) {
  if (status == Status::pass) return;
  std::string reason = c.reason, code = c.reason_code;
  if (reason.empty() && !executed(status)) reason = "no reason was recorded";
  if (code.empty() && !executed(status)) code = "unknown";
  const bool told =
      std::any_of(c.findings.begin(), c.findings.end(), [](const Finding& f) { return failing(f.severity); });
  if (reason.empty() && executed(status) && !told) reason = "ended without a finding";
  if (!code.empty()) object["reason_code"] = code;
  if (!reason.empty()) object["reason"] = reason;
  if (!c.last_phase.empty() || status == Status::crash || status == Status::hang) object["last_phase"] = c.last_phase;
}

Json case_json(const Run& run, const Case& c) {
  const Status status = outcome(c);
  Json object{{"id", c.id},
              {"hash", c.hash},
              {"name", c.name},
              {"params", object_or(c.params, Json::object())},
              {"level", c.level},
              {"required", c.required},
              {"status", to_string(status)}};
  add_reason(object, c, status);
  object["duration_s"] = c.duration_s;
  object["seed"] = c.seed;
  object["checks"] = Json::array();
  for (const auto& check : c.checks) {
    object["checks"].push_back({{"name", check.name},
                                {"pass", check.pass},
                                {"measured", check.measured},
                                {"comparator", check.comparator},
                                {"bound", check.bound},
                                {"unit", check.unit}});
  }
  object["metrics"] = Json::array();
  for (const auto& m : c.metrics) object["metrics"].push_back({{"name", m.name}, {"value", m.value}, {"unit", m.unit}});
  object["findings"] = findings_json(c.findings);
  object["facts"] = object_or(c.facts, Json::object());
  object["artifacts"] = strings(c.artifacts);
  object["repro"] = c.repro;
  if (const auto bundle = run.bundles.find(c.id); bundle != run.bundles.end()) {
    object["bundle"] = bundle->second.path;
    object["replay"] = bundle->second.command;
  }
  return object;
}

Json suite_part(const Run& run, const Suite& suite) {
  Json object{{"name", suite.name},
              {"purpose", suite.purpose},
              {"outcome", to_string(outcome(suite))},
              {"duration_s", suite.duration_s},
              {"requires", strings(suite.requires_suites)},
              {"totals", totals_json(count({suite}))},
              {"cases", Json::array()}};
  for (const auto& c : suite.cases) object["cases"].push_back(case_json(run, c));
  return object;
}

Json run_json(const Run& run, ExitCode exit_code) {
  Json object{{"id", run.id},
              {"argv", run.argv.is_array() ? run.argv : Json::array()},
              {"level", run.level},
              {"device", run.device},
              {"started", run.started},
              {"ended", run.ended},
              {"duration_s", run.duration_s},
              {"harness_s", run.harness_s},
              {"master_seed", run.master_seed},
              {"partial", run.partial},
              {"complete", run.complete},
              {"torn_tail", run.torn_tail}};
  if (run.interruption) object["interruption"] = static_cast<int>(*run.interruption);
  object["exit_code"] = static_cast<int>(exit_code);
  object["faults"] = run.faults.is_array() ? run.faults : Json::array();
  return object;
}

}  // namespace

Json to_json(const Run& run) {
  const Assessment assessment = assess(run);
  Json report{{"schema", kReportSchema},
              {"schema_version", kReportSchemaVersion},
              {"run", run_json(run, assessment.exit_code)},
              {"provenance", object_or(run.provenance, Json::object())},
              {"level", run.level},
              {"verdict", to_string(assessment.verdict)},
              {"scope", assessment.scope},
              {"reasons", strings(assessment.reasons)},
              {"causes", causes_json(run.causes)},
              {"totals", totals_json(count(run.suites))},
              {"suites", Json::array()}};
  for (const auto& suite : run.suites) report["suites"].push_back(suite_part(run, suite));
  report["findings"] = findings_json(run.findings);
  report["not_tested"] = strings(assessment.not_tested);
  return report;
}

Json suite_to_json(const Run& run, const Suite& suite) {
  const Assessment assessment = assess(run);
  Json report{{"schema", kSuiteReportSchema},
              {"schema_version", kReportSchemaVersion},
              {"run", run_json(run, assessment.exit_code)},
              {"verdict", to_string(assessment.verdict)}};
  report.update(suite_part(run, suite));
  report["findings"] = Json::array();
  for (const auto& c : suite.cases) {
    for (const auto& f : c.findings) {
      report["findings"].push_back(finding_json(f));
      report["findings"].back()["case"] = c.id;
    }
  }
  return report;
}

}  // namespace reports
