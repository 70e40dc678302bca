// merge(): from hosts to a verdict on all of them.
#include "reports/fleet.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <unordered_map>

#include "reports/fleet_parts.hpp"
#include "reports/view.hpp"

namespace reports {

namespace fleets {

namespace {

using State = FleetHost::State;

// -- who is there

// "node07" is also node07.3, node07.cluster and node07:gpu1
bool is_called(const FleetHost& host, const std::string& name) {
  return host.name == name || host.name.starts_with(name + ".") || host.on_host == name ||
         host.on_host.starts_with(name + ".");
}

void add_missing_names(std::vector<FleetHost>& hosts, const std::vector<std::string>& names) {
  std::vector<FleetHost> missing;
  for (const std::string& name : names)
    if (std::none_of(hosts.begin(), hosts.end(), [&](const FleetHost& host) { return is_called(host, name); }))
      missing.push_back(missing_host(name, "", "expected, and no folder is of this host"));
  std::move(missing.begin(), missing.end(), std::back_inserter(hosts));
}

// A launch knows how many it is of; a host that is missing by its name, or cannot be read, may be any of those that are
// not there.
void add_missing_ranks(std::vector<FleetHost>& hosts) {
  std::map<std::string, std::pair<std::int64_t, std::set<std::int64_t>>> launches;
  for (const FleetHost& host : hosts)
    if (host.rank && host.size) {
      auto& [size, ranks] = launches[host.launch];
      size = std::max(size, *host.size);
      ranks.insert(*host.rank);
    }
  const auto named = static_cast<std::size_t>(
      std::count_if(hosts.begin(), hosts.end(), [](const FleetHost& host) { return !host.has_run(); }));
  std::vector<FleetHost> missing;
  for (const auto& [launch, told] : launches)
    for (std::int64_t rank = 0; rank < told.first; ++rank)
      if (!told.second.contains(rank))
        missing.push_back(missing_host(fmt::format("rank {} of {}", rank, told.first), "",
                                       fmt::format("{}: the others say that there are {}", launch, told.first)));
  missing.resize(missing.size() - std::min(missing.size(), named));
  std::move(missing.begin(), missing.end(), std::back_inserter(hosts));
}

void add_missing_number(std::vector<FleetHost>& hosts, std::size_t expected) {
  for (std::size_t i = hosts.size(); i < expected; ++i)
    hosts.push_back(missing_host(fmt::format("one of {}", expected), "", "expected, and no folder is of it"));
}

// -- findings of the fleet

class Findings {
 public:
  Findings(Fleet& fleet, const FleetOptions& options) : fleet_(fleet), options_(options) {}

  // One finding for all hosts with this trouble; the first message speaks.
  void add(FleetTrouble trouble, const std::vector<std::size_t>& hosts, const std::string& message) {
    auto at = where_.find(trouble);
    if (at == where_.end()) {
      FleetFinding finding;
      finding.first = options_.code(trouble);
      finding.first.message = message;
      finding.of_fleet = true;
      at = where_.emplace(trouble, fleet_.findings.size()).first;
      fleet_.findings.push_back(std::move(finding));
    }
    FleetFinding& finding = fleet_.findings[at->second];
    ++finding.times;
    for (const std::size_t host : hosts)
      if (std::find(finding.hosts.begin(), finding.hosts.end(), host) == finding.hosts.end())
        finding.hosts.push_back(host);
  }

 private:
  Fleet& fleet_;
  const FleetOptions& options_;
  std::map<FleetTrouble, std::size_t> where_;
};

std::string at(const FleetHost& host) { return fmt::format("{} ({})", host.name, host.folder); }

void add_states(const Fleet& fleet, const FleetOptions& options, Findings& to) {
  for (std::size_t i = 0; i < fleet.hosts.size(); ++i) {
    const FleetHost& host = fleet.hosts[i];
    if (host.state == State::missing)
      to.add(FleetTrouble::missing, {i}, fmt::format("{}: {}", host.name, host.trouble));
    if (host.state == State::unreadable)
      to.add(FleetTrouble::unreadable, {i}, fmt::format("{}: {}", host.name, host.trouble));
    const auto is_it = [&](const std::string& name) { return is_called(host, name); };
    const auto& names = options.expected_names;
    if (host.has_run() && !names.empty() && std::none_of(names.begin(), names.end(), is_it))
      to.add(FleetTrouble::unexpected, {i}, fmt::format("{} is not among the expected hosts", at(host)));
  }
  const auto there = static_cast<std::size_t>(std::count_if(
      fleet.hosts.begin(), fleet.hosts.end(), [](const FleetHost& host) { return host.state != State::missing; }));
  if (options.expected_number && there > *options.expected_number)
    to.add(FleetTrouble::unexpected, {}, fmt::format("expected are {}, there are {}", *options.expected_number, there));
}

void add_twice(const Fleet& fleet, Findings& to) {
  std::unordered_map<std::string, std::size_t> seen;
  for (std::size_t i = 0; i < fleet.hosts.size(); ++i) {
    const FleetHost& host = fleet.hosts[i];
    if (!host.has_run()) continue;
    std::vector<std::string> keys = {"run " + host.run_id, "host " + host.name};
    const bool job_is_told = !host.launch.empty() && host.launch.back() != ' ';  // "torchrun ": which, nobody knows
    if (host.rank && job_is_told) keys.push_back(fmt::format("rank {} of {}", *host.rank, host.launch));
    for (const std::string& key : keys) {
      const auto [first, fresh] = seen.try_emplace(key, i);
      if (fresh) continue;
      const FleetHost& other = fleet.hosts[first->second];
      to.add(FleetTrouble::twice, {first->second, i},
             fmt::format("{} and {} are the same {}", other.folder, host.folder, key));
      break;
    }
  }
}

// Those that do not say what most say; where there is no majority, all.
std::vector<std::size_t> odd_ones(const FleetDifference& row) {
  std::vector<std::size_t> hosts;
  for (std::size_t i = row.majority ? 1 : 0; i < row.groups.size(); ++i)
    hosts.insert(hosts.end(), row.groups[i].hosts.begin(), row.groups[i].hosts.end());
  return hosts;
}

FleetTrouble trouble_of(FleetDifference::Kind kind) {
  switch (kind) {
    case FleetDifference::Kind::validation:
      return FleetTrouble::other_validation;
    case FleetDifference::Kind::machine:
      return FleetTrouble::other_machine;
    case FleetDifference::Kind::bits:
      return FleetTrouble::other_bits;
  }
  throw std::logic_error("FleetDifference::Kind outside its enumeration");
}

void add_differences(const Fleet& fleet, Findings& to) {
  for (const FleetDifference& row : fleet.differences)
    if (!row.individual) to.add(trouble_of(row.kind), odd_ones(row), in_words(fleet, row));
}

void add_no_numbers(const Fleet& fleet, Findings& to) {
  std::set<std::string> finite;
  for (const FleetHost& host : fleet.hosts) {
    for (const auto& [name, value] : host.figures) finite.insert(name);
    for (const auto& [name, value] : host.bits) finite.insert(name);
  }
  for (std::size_t i = 0; i < fleet.hosts.size(); ++i)
    for (const std::string& name : fleet.hosts[i].no_number)
      if (finite.contains(name))
        to.add(FleetTrouble::no_number, {i},
               fmt::format("{}: {} is no finite number, and is one on other hosts", at(fleet.hosts[i]), name));
}

// -- slow hosts

// Towards which side a figure is slow; nothing for what is no speed (bytes, shares).
std::optional<bool> more_is_faster(const std::string& unit) {
  if (unit.size() > 2 && unit.ends_with("/s")) return true;
  if (unit == "MHz") return true;
  for (const char* time : {"s", "ms", "us", "ns"})
    if (unit == time) return false;
  return std::nullopt;
}

void find_slow(Fleet& fleet, Findings& to) {
  std::map<std::array<std::string, 3>, FleetFigure> all;
  for (std::size_t i = 0; i < fleet.hosts.size(); ++i) {
    const FleetHost& host = fleet.hosts[i];
    for (const auto& [name, measured] : host.figures) {
      const auto direction = more_is_faster(measured.unit);
      if (!direction || measured.busy) continue;
      FleetFigure& figure = all[{name, measured.unit, host.kind}];
      if (figure.values.empty()) figure = {name, measured.unit, host.kind, *direction, {}};
      figure.values.push_back({i, measured.value});
    }
  }
  for (auto& [key, figure] : all) fleet.figures.push_back(std::move(figure));
  fleet.slow = find_slow_hosts(fleet.figures);
  for (const SlowHost& slow : fleet.slow.found) to.add(FleetTrouble::slow, {slow.host}, in_words(fleet, slow));
}

// -- findings of the hosts

void add_findings_of_hosts(Fleet& fleet) {
  std::map<std::string, std::size_t> where;
  for (std::size_t i = 0; i < fleet.hosts.size(); ++i)
    for (const FleetHost::Found& found : fleet.hosts[i].findings) {
      const auto [at, fresh] = where.try_emplace(found.code, fleet.findings.size());
      if (fresh) fleet.findings.emplace_back();
      FleetFinding& finding = fleet.findings[at->second];
      if (fresh || found.severity > finding.first.severity) {  // the worst one speaks
        finding.first = {found.code, found.severity, found.category, found.title, found.message, "", found.next, "",
                         {}};
        finding.where = found.where;
      }
      finding.hosts.push_back(i);
      finding.times += found.times;
    }
}

// -- the verdict

ExitCode exit_code_of(FleetTrouble trouble, const Fleet& fleet) {
  switch (trouble) {
    case FleetTrouble::missing:
    case FleetTrouble::unexpected:
    case FleetTrouble::other_validation:
    case FleetTrouble::other_machine:
    case FleetTrouble::other_bits:
    case FleetTrouble::no_number:
      return ExitCode::inconclusive;
    case FleetTrouble::unreadable:
      return std::any_of(fleet.hosts.begin(), fleet.hosts.end(),
                         [](const FleetHost& h) { return h.state == State::unreadable && !h.incompatible; })
                 ? ExitCode::usage
                 : ExitCode::incompatible;
    case FleetTrouble::twice:
      return ExitCode::usage;
    case FleetTrouble::slow:
      return ExitCode::performance;
  }
  throw std::logic_error("FleetTrouble outside its enumeration");
}

constexpr std::array kTroubles{FleetTrouble::missing, FleetTrouble::unexpected,       FleetTrouble::unreadable,
                               FleetTrouble::twice,   FleetTrouble::other_validation, FleetTrouble::other_machine,
                               FleetTrouble::slow,    FleetTrouble::other_bits,       FleetTrouble::no_number};

void decide(Fleet& fleet, const FleetOptions& options) {
  fleet.verdict = Verdict::ready;
  fleet.exit_code = ExitCode::ready;
  const auto mark = [&](Verdict verdict, ExitCode code) {
    fleet.verdict = std::max(fleet.verdict, verdict);
    fleet.exit_code = worse(fleet.exit_code, code);
  };
  if (fleet.hosts.empty()) mark(Verdict::conditional, ExitCode::nothing_executed);
  for (const FleetHost& host : fleet.hosts) {
    if (host.state == State::ended && host.verdict == Verdict::ready && host.exit_code == ExitCode::ready) continue;
    mark(std::max(verdict_of(host), Verdict::conditional),
         host.exit_code == ExitCode::ready ? ExitCode::inconclusive : host.exit_code);
  }
  for (const FleetTrouble trouble : kTroubles) {
    const std::string code = options.code(trouble).code;
    for (const FleetFinding& finding : fleet.findings)
      if (finding.of_fleet && finding.first.code == code && failing(finding.first.severity))
        mark(finding.first.severity == Severity::degrade ? Verdict::conditional : Verdict::not_ready,
             exit_code_of(trouble, fleet));
  }
}

void give_reasons(Fleet& fleet) {
  constexpr std::size_t kNames = 8;
  const auto add = [&](const std::string& word, auto is_one) {
    std::vector<std::size_t> hosts;
    for (std::size_t i = 0; i < fleet.hosts.size(); ++i)
      if (is_one(fleet.hosts[i])) hosts.push_back(i);
    if (!hosts.empty()) fleet.reasons.push_back(fmt::format("{}: {}", word, names(fleet, hosts, kNames)));
  };
  const auto in_state = [](State state) { return [state](const FleetHost& host) { return host.state == state; }; };
  const auto judged = [](Verdict verdict) {
    return [verdict](const FleetHost& host) { return host.has_run() && host.verdict == verdict; };
  };
  add("NOT READY", judged(Verdict::not_ready));
  add("missing", in_state(State::missing));
  add("cannot be read", in_state(State::unreadable));
  add("still running", in_state(State::running));
  add("without its end", in_state(State::unfinished));
  add("CONDITIONAL",
      [&](const FleetHost& host) { return host.state == State::ended && host.verdict == Verdict::conditional; });
  for (const FleetFinding& finding : fleet.findings)
    if (finding.of_fleet && failing(finding.first.severity))
      fleet.reasons.push_back(fmt::format("{} finding {} ({}): {}", to_string(finding.first.severity),
                                          finding.first.code, finding.first.title, finding.first.message));
  if (fleet.verdict == Verdict::ready)
    fleet.reasons.push_back(fleet.hosts.size() == 1 ? "the host is READY"
                                                    : fmt::format("all {} are READY", amount(fleet)));
}

void list_suites(Fleet& fleet) {
  std::set<std::string> seen;
  for (const FleetHost& host : fleet.hosts)
    for (const auto& [suite, status] : host.suites)
      if (seen.insert(suite).second) fleet.suite_names.push_back(suite);
}

}  // namespace

Verdict verdict_of(const FleetHost& host) { return host.has_run() ? host.verdict : Verdict::conditional; }

}  // namespace fleets

Fleet merge(std::vector<FleetHost> hosts, const FleetOptions& options) {
  Fleet fleet;
  fleets::name_by_gpu(hosts, options.expected_names);
  fleets::add_missing_names(hosts, options.expected_names);
  fleets::add_missing_ranks(hosts);
  if (options.expected_number) fleets::add_missing_number(hosts, *options.expected_number);
  std::stable_sort(hosts.begin(), hosts.end(), [](const FleetHost& a, const FleetHost& b) { return a.name < b.name; });
  fleet.hosts = std::move(hosts);
  fleet.expected = options.expected_number;
  if (!options.expected_names.empty()) fleet.expected = options.expected_names.size();
  fleets::list_suites(fleet);
  fleets::Findings findings(fleet, options);
  fleets::add_states(fleet, options, findings);
  fleets::add_twice(fleet, findings);
  fleets::find_differences(fleet);
  fleets::add_differences(fleet, findings);
  fleets::add_no_numbers(fleet, findings);
  fleets::find_slow(fleet, findings);
  fleets::add_findings_of_hosts(fleet);
  std::stable_sort(fleet.findings.begin(), fleet.findings.end(),
                   [](const FleetFinding& a, const FleetFinding& b) { return a.first.severity > b.first.severity; });
  fleets::decide(fleet, options);
  fleets::give_reasons(fleet);
  return fleet;
}

}  // namespace reports
