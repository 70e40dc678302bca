#include "reports/tests/support/fleet_sample.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "reports/tests/support/sample.hpp"

namespace reports::sample {

namespace {

const char* word(FleetTrouble trouble) {
  switch (trouble) {
    case FleetTrouble::missing:
      return "missing";
    case FleetTrouble::unexpected:
      return "unexpected";
    case FleetTrouble::unreadable:
      return "unreadable";
    case FleetTrouble::twice:
      return "twice";
    case FleetTrouble::other_validation:
      return "other_validation";
    case FleetTrouble::other_machine:
      return "other_machine";
    case FleetTrouble::slow:
      return "slow";
    case FleetTrouble::other_bits:
      return "other_bits";
    case FleetTrouble::no_number:
      return "no_number";
  }
  throw std::logic_error("FleetTrouble outside its enumeration");
}

}  // namespace

Run run_of_host(const std::string& name) {
  Run run = run_of({Status::pass, Status::pass});
  run.id = "run of " + name;
  run.provenance = {{"program", {{"name", "p"}, {"version", "1"}}},
                    {"build", {{"build_id", "b1"}, {"source_hash", "s1"}}},
                    {"host", {{"hostname", name}, {"kernel", "6.1"}, {"cpu", "C"}, {"cores", 8}}},
                    {"gpus", {{{"name", "NVIDIA H200"}, {"bus_id", "bus of " + name}}}},
                    {"cuda", {{"driver", "580.82"}, {"runtime", "13.0"}}},
                    {"torch", {{"version", "2.11"}, {"threads", 8}}},
                    {"environment", Json::object()},
                    {"flags", {{"effective", {{"NSA_X", {{"value", "1"}, {"origin", "default"}}}}}}},
                    {"settings", {{"values", {{"run.hang_s", {{"value", "30"}, {"origin", "default"}}}}}}}};
  std::vector<Case>& cases = run.suites[0].cases;
  cases[0].metrics = {{"tokens_per_s", 1000, "tok/s"}, {"step", 20.5, "ms"}, {"use", 80, "%"}};
  cases[1].metrics = {{"loss", 5.25, "nat"}};
  return run;
}

std::vector<Run> runs_of_hosts(std::size_t n) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < n; ++i) runs.push_back(run_of_host(fmt::format("node{:02}", i)));
  return runs;
}

FleetOptions options() {
  FleetOptions options;
  options.code = [](FleetTrouble trouble) {
    Finding finding;
    finding.code = finding.title = word(trouble);
    finding.category = "environment";
    finding.next = "a next step";
    const bool warning = trouble == FleetTrouble::other_machine || trouble == FleetTrouble::other_bits;
    finding.severity = warning ? Severity::warn : Severity::degrade;
    return finding;
  };
  return options;
}

Fleet fleet_of(const std::vector<Run>& runs, FleetOptions with) {
  std::vector<FleetHost> hosts;
  for (const Run& run : runs) hosts.push_back(host_of(run, "run/" + run.id.substr(run.id.rfind(' ') + 1)));
  return merge(std::move(hosts), with);
}

const FleetFinding* find(const Fleet& fleet, const std::string& code) {
  for (const FleetFinding& finding : fleet.findings)
    if (finding.first.code == code) return &finding;
  return nullptr;
}

}  // namespace reports::sample
