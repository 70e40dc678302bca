// What a fleet keeps of one run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "base/fnv1a.hpp"
#include "reports/compare_parts.hpp"
#include "reports/fleet.hpp"
#include "reports/view.hpp"

namespace reports {

namespace {

constexpr std::int64_t kMostRanks = 100'000;
constexpr std::size_t kMostEntries = 20000;  // of each kind: a folder may hold anything
constexpr const char *kLoad = "load", *kGpuState = "gpu.state", *kClocks = "gpu.clocks_under_load", *kTrace = "trace/";
constexpr std::size_t kValueBytes = 160, kMessageBytes = 600, kHostNameBytes = 200;

// A long value is told by its beginning and a hash of all of it, so that two that differ stay different.
std::string shortened(const std::string& text) {
  if (text.size() <= kValueBytes) return text;
  return fmt::format("{} ({:016x})", view::cut(text, kValueBytes - 40), base::fnv1a(base::kFnvOffset, text));
}

std::string text_at(const Json& json, const char* pointer) {
  const Json::json_pointer where(pointer);
  return json.is_object() && json.contains(where) && json.at(where).is_string() ? json.at(where).get<std::string>()
                                                                                : "";
}

void refuse_too_many(std::size_t n, const char* what) {
  if (n > kMostEntries)
    throw std::invalid_argument(fmt::format("more than {} {}: no run of a fleet", kMostEntries, what));
}

// By whom a host is known: in a launch of several processes a host, with the rank (harness/launch.hpp).
std::string name_of(const Run& run) {
  const std::string launched = text_at(run.provenance, "/launch/name");
  const std::string host = text_at(run.provenance, "/host/hostname");
  return view::cut(!launched.empty() ? launched : host, kHostNameBytes);
}

// -- what went in

// Different on every host by their nature, or told in other words.
bool is_own(const std::string& name) {
  if (name.starts_with("launch."))
    return name != "launch.launcher" && name != "launch.size" && name != "launch.job" && name != "launch.local_size";
  return name == "host.hostname" || name.ends_with(".bus_id") || name.ends_with(".uuid") || name.ends_with(".origin");
}

std::optional<FleetHost::Gpu> gpu_of(const Run& run) {
  if (run.device != "cuda") return std::nullopt;
  return FleetHost::Gpu{text_at(run.provenance, "/gpus/0/uuid"), text_at(run.provenance, "/gpus/0/bus_id"),
                        text_at(run.provenance, "/environment/CUDA_VISIBLE_DEVICES")};
}

void add_provenance(const Run& run, FleetHost& host) {
  std::vector<std::pair<std::string, Json>> leaves;
  comparing::flatten("", run.provenance, leaves);
  refuse_too_many(leaves.size(), "values in the provenance");
  const bool gpu_by_rank = !text_at(run.provenance, "/launch/gpu").empty();
  for (const auto& [name, value] : leaves) {
    if (is_own(name) || (gpu_by_rank && name == "environment.CUDA_VISIBLE_DEVICES")) continue;
    const bool has_origin = value.is_object() && value.contains("value") && value.contains("origin");
    host.facts.emplace(view::cut(name, kHostNameBytes), shortened(view::value(has_origin ? value.at("value") : value)));
  }
}

// What preflight saw of the GPU and does not change from minute to minute.
void add_gpu(const Case& c, FleetHost& host) {
  if (!c.facts.is_object() || !c.facts.contains(kGpuState) || !c.facts.at(kGpuState).is_object()) return;
  const Json& state = c.facts.at(kGpuState);
  for (const char* key : {"name", "total_bytes", "sm_max_mhz", "power_limit_w", "power_default_limit_w"})
    if (state.contains(key)) host.facts.emplace(fmt::format("gpu.{}", key), shortened(view::value(state.at(key))));
}

void add_plan(const Run& run, FleetHost& host) {
  std::uint64_t hash = base::kFnvOffset;
  std::size_t cases = 0;
  for (const Suite& suite : run.suites)
    for (const Case& c : suite.cases) {
      hash = base::fnv1a(base::fnv1a(hash, c.id), "\n");
      ++cases;
    }
  host.facts["plan.cases"] = fmt::format("{} ({:016x})", view::plural(cases, "case"), hash);
  host.facts["plan.level"] = run.level;
  host.facts["plan.device"] = run.device;
  host.facts["plan.seed"] = std::to_string(run.master_seed);
  host.facts["plan.planted_faults"] = shortened(view::planted_faults(run));
}

std::optional<std::int64_t> whole_at(const Json& launch, const char* key, std::int64_t least, std::int64_t most) {
  if (!launch.contains(key)) return std::nullopt;
  const Json& told = launch.at(key);
  if (told.is_number_integer())
    if (const auto value = told.get<std::int64_t>(); value >= least && value <= most) return value;
  throw std::invalid_argument(fmt::format("launch.{} is {}, allowed is an integer from {} to {}", key,
                                          view::cut(dump(told), kHostNameBytes), least, most));
}

void add_launch(const Run& run, FleetHost& host) {
  const Json::json_pointer where("/launch");
  if (!run.provenance.is_object() || !run.provenance.contains(where) || !run.provenance.at(where).is_object()) return;
  const Json& launch = run.provenance.at(where);
  host.size = whole_at(launch, "size", 1, kMostRanks);
  host.rank = whole_at(launch, "rank", 0, host.size.value_or(kMostRanks) - 1);
  host.launch = view::cut(
      fmt::format("{} {}", text_at(run.provenance, "/launch/launcher"), text_at(run.provenance, "/launch/job")),
      kHostNameBytes);
}

std::string kind_of(const Run& run) {
  if (run.device != "cuda") return "CPU " + text_at(run.provenance, "/host/cpu");
  const std::string gpu = text_at(run.provenance, "/gpus/0/name");
  return gpu.empty() ? "GPU" : gpu;
}

// -- what came out

void add_findings(const std::vector<Finding>& findings, const std::string& where, FleetHost& host) {
  for (const Finding& f : findings) {
    auto at = std::find_if(host.findings.begin(), host.findings.end(),
                           [&](const FleetHost::Found& found) { return found.code == f.code; });
    if (at == host.findings.end())
      at = host.findings.insert(at, {f.code, f.title, f.category, view::cut(f.message, kMessageBytes), where,
                                     view::cut(f.next, kMessageBytes), f.severity, 0});
    if (f.severity > at->severity) {  // the worst one speaks
      at->severity = f.severity;
      at->message = view::cut(f.message, kMessageBytes);
      at->where = where;
    }
    ++at->times;
  }
}

// Of amounts, clocks and loads nobody expects the same bits.
bool is_of_the_machine(const std::string& unit) {
  static constexpr std::string_view kUnits[] = {"B",  "byte", "bytes", "KiB", "MiB",   "GiB", "KB",  "MB",
                                                "GB", "MHz",  "W",     "C",   "cores", "h",   "min", "samples"};
  return view::is_speed(unit) || std::find(std::begin(kUnits), std::end(kUnits), unit) != std::end(kUnits);
}

bool is_end_of_interval(const Case& c, const std::string& name) {
  for (const std::string_view suffix : {"_low", "_high"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string of = name.substr(0, name.size() - suffix.size());
    if (std::any_of(c.metrics.begin(), c.metrics.end(), [&](const Metric& m) { return m.name == of; })) return true;
  }
  return false;
}

void add_metrics(const Case& c, FleetHost& host) {
  const bool timed =
      std::any_of(c.metrics.begin(), c.metrics.end(), [](const Metric& m) { return view::is_speed(m.unit); });
  const bool busy = comparing::busy(c);
  for (const Metric& metric : c.metrics) {
    const auto value = as_number(metric.value);
    if (!value || is_end_of_interval(c, metric.name)) continue;
    const std::string name = view::cut(fmt::format("{}: {}", c.id, metric.name), kHostNameBytes);
    const bool ratio = metric.unit.empty() || metric.unit == "1";
    if (!std::isfinite(*value)) {
      host.no_number.insert(name);
      continue;
    }
    if (is_of_the_machine(metric.unit))
      host.figures.emplace(name, FleetHost::Measured{metric.unit, *value, busy});
    else if (!(ratio && timed))  // a ratio beside times is one of them
      host.bits.emplace(name, shortened(dump(metric.value)));
  }
  if (!c.facts.is_object() || !c.facts.contains(kClocks)) return;
  const Json& clocks = c.facts.at(kClocks);
  if (!clocks.is_object() || !clocks.contains("sm_mhz_median")) return;
  if (const auto mhz = as_number(clocks.at("sm_mhz_median")); mhz && std::isfinite(*mhz))
    host.figures.emplace(c.id + ": SM clock under load", FleetHost::Measured{"MHz", *mhz, false});
}

// The hashes of every step and stage that a case has traced (compare_trace.hpp), as one.
void add_trace(const Case& c, FleetHost& host) {
  std::uint64_t hash = base::kFnvOffset;
  std::size_t steps = 0;
  if (!c.facts.is_object()) return;
  for (const auto& [key, value] : c.facts.items()) {
    if (!key.starts_with(kTrace)) continue;
    hash = base::fnv1a(base::fnv1a(hash, key), dump(value));
    ++steps;
  }
  if (steps > 0)
    host.bits.emplace(view::cut(c.id + ": trace", kHostNameBytes),
                      fmt::format("{:016x} of {}", hash, view::plural(steps, "step")));
}

}  // namespace

bool fact_of_fleet(std::string_view key) {
  return key == kLoad || key == kGpuState || key == kClocks || key.starts_with(kTrace);
}

FleetHost host_of(const Run& run, const std::string& folder) {
  constexpr std::size_t kReasons = 8;
  FleetHost host;
  host.name = name_of(run);
  host.folder = folder;
  host.state = run.complete && !run.interruption ? FleetHost::State::ended : FleetHost::State::unfinished;
  host.run_id = view::cut(run.id, kHostNameBytes);
  host.level = run.level;
  host.device = view::cut(run.device, kHostNameBytes);
  host.started = view::cut(run.started, kHostNameBytes);
  host.duration_s = run.duration_s;
  const Assessment assessment = assess(run);
  host.verdict = assessment.verdict;
  host.exit_code = assessment.exit_code;
  for (std::size_t i = 0; i < std::min(kReasons, assessment.reasons.size()); ++i)
    host.reasons.push_back(view::cut(assessment.reasons[i], kMessageBytes));
  host.totals = count(run.suites);
  host.kind = view::cut(kind_of(run), kHostNameBytes);
  host.gpu = gpu_of(run);
  add_launch(run, host);
  add_provenance(run, host);
  add_plan(run, host);
  add_findings(run.findings, "", host);
  for (const Suite& suite : run.suites) {
    host.suites.emplace_back(suite.name, outcome(suite));
    for (const Case& c : suite.cases) {
      add_findings(c.findings, c.id, host);
      add_gpu(c, host);
      if (!executed(outcome(c))) continue;
      add_metrics(c, host);
      add_trace(c, host);
    }
  }
  refuse_too_many(host.figures.size() + host.bits.size() + host.no_number.size(), "figures");
  refuse_too_many(host.findings.size(), "finding codes");
  return host;
}

FleetHost missing_host(const std::string& name, const std::string& folder, const std::string& why) {
  FleetHost host;
  host.name = name;
  host.folder = folder;
  host.trouble = why;
  return host;
}

FleetHost unreadable_host(const std::string& name, const std::string& folder, const std::string& trouble,
                          bool incompatible) {
  FleetHost host;
  host.name = name;
  host.folder = folder;
  host.state = FleetHost::State::unreadable;
  host.trouble = trouble;
  host.incompatible = incompatible;
  host.exit_code = incompatible ? ExitCode::incompatible : ExitCode::usage;
  return host;
}

}  // namespace reports
