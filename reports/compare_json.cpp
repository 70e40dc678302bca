// The comparison for scripts, as schema/comparison-1.schema.json describes it.
#include "reports/compare.hpp"

namespace reports {

namespace {

Json run_json(const ComparedRun& run) {
  Json totals{{"planned", run.totals.planned}, {"executed", run.totals.executed}};
  for (const auto& [status, n] : run.totals.by_status) totals[std::string(to_string(status))] = n;
  Json object{{"name", run.name},
              {"id", run.id},
              {"argv", run.argv.is_array() ? run.argv : Json::array()},
              {"level", run.level},
              {"device", run.device},
              {"started", run.started},
              {"duration_s", run.duration_s},
              {"complete", run.complete}};
  if (run.interruption) object["interruption"] = static_cast<int>(*run.interruption);
  object["verdict"] = to_string(run.assessment.verdict);
  object["exit_code"] = static_cast<int>(run.assessment.exit_code);
  object["scope"] = run.assessment.scope;
  object["reasons"] = run.assessment.reasons;
  object["totals"] = std::move(totals);
  object["faults"] = run.faults.is_array() ? run.faults : Json::array();
  object["busy_cases"] = run.busy_cases;
  return object;
}

Json rows_json(const std::vector<Difference>& rows) {
  Json array = Json::array();
  for (const Difference& row : rows) array.push_back({{"name", row.name}, {"values", row.values}});
  return array;
}

Json checks_json(const std::vector<CheckRow>& rows) {
  Json array = Json::array();
  for (const CheckRow& row : rows) array.push_back({{"case", row.where}, {"name", row.name}, {"values", row.values}});
  return array;
}

Json finding_json(const FindingRow& row) {
  Json runs = Json::array(), steps = Json::array();
  for (const FindingRow::InRun& in : row.by_run) {
    runs.push_back({{"seen", to_string(in.seen)}, {"case", in.where.empty() ? Json() : Json(in.where)}});
    if (in.seen != FindingRow::Seen::found) continue;
    runs.back()["severity"] = to_string(in.severity);
    runs.back()["message"] = in.message;
    runs.back()["evidence"] = in.evidence;
  }
  for (const FindingRow::Step& step : row.steps)
    steps.push_back({{"change", to_string(step.change)}, {"what", step.what}});
  return {{"code", row.code}, {"title", row.title}, {"runs", std::move(runs)}, {"steps", std::move(steps)}};
}

Json figure_json(const Figure& figure) {
  Json runs = Json::array(), steps = Json::array();
  for (const Figure::InRun& in : figure.by_run) {
    Json told{{"ran", in.ran}, {"value", in.value.value_or(Json())}, {"unit", in.unit}};
    if (in.interval) told["interval"] = {number(in.interval->first), number(in.interval->second)};
    if (in.noise_percent > 0) told["noise_percent"] = number(in.noise_percent);
    if (in.busy) told["busy"] = true;
    runs.push_back(std::move(told));
  }
  for (const Figure::Step& step : figure.steps)
    steps.push_back({{"change", to_string(step.change)}, {"percent", step.percent ? Json(*step.percent) : Json()}});
  return {{"case", figure.where}, {"name", figure.name}, {"runs", std::move(runs)}, {"steps", std::move(steps)}};
}

Json steps_json(const std::vector<ComparedStep>& steps) {
  Json array = Json::array();
  for (std::size_t i = 0; i < steps.size(); ++i)
    array.push_back({{"from", i},
                     {"to", i + 1},
                     {"cases_in_both", steps[i].in_both},
                     {"went_in", steps[i].went_in},
                     {"origins", steps[i].origins},
                     {"came_out", steps[i].came_out},
                     {"not_judged", steps[i].not_judged},
                     {"inexact", steps[i].inexact},
                     {"verdict", steps[i].verdict}});
  return array;
}

}  // namespace

Json to_json(const Comparison& comparison) {
  Json runs = Json::array(), findings = Json::array(), figures = Json::array();
  for (const ComparedRun& run : comparison.runs) runs.push_back(run_json(run));
  for (const FindingRow& row : comparison.findings) findings.push_back(finding_json(row));
  for (const Figure& figure : comparison.figures) figures.push_back(figure_json(figure));
  return {{"schema", kComparisonSchema},
          {"schema_version", kComparisonSchemaVersion},
          {"runs", std::move(runs)},
          {"steps", steps_json(comparison.steps)},
          {"went_in",
           {{"environment", rows_json(comparison.environment)},
            {"configuration", rows_json(comparison.configuration)},
            {"plan", rows_json(comparison.plan)}}},
          {"came_out",
           {{"verdict", rows_json(comparison.verdict)},
            {"causes", rows_json(comparison.causes)},
            {"findings", std::move(findings)},
            {"outcomes", rows_json(comparison.outcomes)},
            {"ways", rows_json(comparison.ways)},
            {"checks", checks_json(comparison.checks)},
            {"figures", std::move(figures)},
            {"equal_figures", comparison.equal_figures},
            {"never_finite", comparison.never_finite}}}};
}

}  // namespace reports
