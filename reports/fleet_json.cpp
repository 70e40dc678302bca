// fleet.json, as schema/fleet-1.schema.json describes it. Hosts are named by their place in "hosts".
#include "reports/fleet_parts.hpp"

namespace reports {

namespace {

Json host_json(const FleetHost& host) {
  Json object{{"name", host.name}, {"folder", host.folder}, {"state", to_string(host.state)}};
  if (!host.has_run()) {
    object["trouble"] = host.trouble;
    return object;
  }
  object["run"] = host.run_id;
  if (host.rank) object["rank"] = *host.rank;
  object["level"] = host.level;
  object["device"] = host.device;
  object["kind"] = host.kind;
  object["started"] = host.started;
  object["duration_s"] = number(host.duration_s);
  object["verdict"] = to_string(host.verdict);
  object["exit_code"] = static_cast<int>(host.exit_code);
  object["reasons"] = host.reasons;
  object["totals"] = {{"planned", host.totals.planned},
                      {"executed", host.totals.executed},
                      {"passed", host.totals.passed},
                      {"failed", host.totals.failed},
                      {"skipped", host.totals.skipped}};
  object["suites"] = Json::object();
  for (const auto& [suite, status] : host.suites) object["suites"][suite] = to_string(status);
  return object;
}

Json finding_json(const FleetFinding& finding) {
  const Finding& f = finding.first;
  return {{"code", f.code},
          {"title", f.title},
          {"severity", to_string(f.severity)},
          {"category", f.category},
          {"of_fleet", finding.of_fleet},
          {"hosts", finding.hosts},
          {"times", finding.times},
          {"case", finding.where},
          {"message", f.message},
          {"next", f.next}};
}

Json difference_json(const FleetDifference& row) {
  Json values = Json::array();
  for (const auto& [value, hosts] : row.groups) values.push_back({{"value", value}, {"hosts", hosts}});
  return {{"name", row.name},
          {"kind", to_string(row.kind)},
          {"majority", row.majority},
          {"individual", row.individual},
          {"values", std::move(values)}};
}

Json slow_json(const Fleet& fleet) {
  Json found = Json::array();
  for (const SlowHost& slow : fleet.slow.found) {
    const FleetFigure& figure = fleet.figures[slow.figure];
    found.push_back({{"host", slow.host},
                     {"figure", figure.name},
                     {"unit", figure.unit},
                     {"kind", figure.kind},
                     {"value", number(slow.value)},
                     {"median", number(slow.median)},
                     {"behind_percent", number(slow.behind_percent)},
                     {"chance", number(slow.chance)}});
  }
  return {{"false_alarm_rate", kFalseAlarmRate},
          {"least_hosts", kLeastHosts},
          {"figures", fleet.slow.figures},
          {"figures_of_few_hosts", fleet.slow.figures_of_few},
          {"comparisons", fleet.slow.comparisons},
          {"method", fleets::about_slow_hosts(fleet)},
          {"found", std::move(found)}};
}

}  // namespace

Json to_json(const Fleet& fleet) {
  Json hosts = Json::array(), findings = Json::array(), differences = Json::array();
  for (const FleetHost& host : fleet.hosts) hosts.push_back(host_json(host));
  for (const FleetFinding& finding : fleet.findings) findings.push_back(finding_json(finding));
  for (const FleetDifference& row : fleet.differences) differences.push_back(difference_json(row));
  Json json{{"schema", kFleetSchema},
            {"schema_version", kFleetSchemaVersion},
            {"verdict", to_string(fleet.verdict)},
            {"exit_code", static_cast<int>(fleet.exit_code)},
            {"reasons", fleet.reasons},
            {"expected", fleet.expected ? Json(*fleet.expected) : Json()},
            {"suites", fleet.suite_names},
            {"hosts", std::move(hosts)},
            {"findings", std::move(findings)},
            {"differences", std::move(differences)},
            {"slow_hosts", slow_json(fleet)}};
  return json;
}

}  // namespace reports
