// Words about a fleet that all of its texts share. Nothing is escaped here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "reports/fleet_parts.hpp"
#include "reports/view.hpp"

namespace reports {

namespace fleets {

std::string names(const Fleet& fleet, const std::vector<std::size_t>& hosts, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, hosts.size()); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", view::one_line(fleet.hosts[hosts[i]].name));
  if (hosts.size() > most) text += fmt::format(" and {} more", hosts.size() - most);
  return text;
}

std::string in_words(const Fleet& fleet, const FleetDifference& difference) {
  constexpr std::size_t kGroups = 4, kNames = 6;
  std::string text = view::one_line(difference.name) + ": ";
  const auto& groups = difference.groups;
  for (std::size_t i = 0; i < std::min(kGroups, groups.size()); ++i) {
    const std::string value = groups[i].value.empty() ? "not there" : view::one_line(groups[i].value);
    const bool most = i == 0 && difference.majority;
    text += fmt::format("{}{} on {}", i == 0 ? "" : "; ", value,
                        most ? amount(fleet, groups[i].hosts) : names(fleet, groups[i].hosts, kNames));
  }
  if (groups.size() > kGroups) text += fmt::format("; and {} other values", groups.size() - kGroups);
  return text;
}

std::string in_words(const Fleet& fleet, const SlowHost& slow) {
  const FleetFigure& figure = fleet.figures[slow.figure];
  return fmt::format(
      "{}: {} is {:.6g} {}, {:.1f} % slower than the median {:.6g} {} of {} hosts with {} (chance {:.1g})",
      view::one_line(fleet.hosts[slow.host].name), view::one_line(figure.name), slow.value, view::one_line(figure.unit),
      slow.behind_percent, slow.median, view::one_line(figure.unit), figure.values.size(), view::one_line(figure.kind),
      slow.chance);
}

std::string about_slow_hosts(const Fleet& fleet) {
  const SlowHosts& slow = fleet.slow;
  const std::string few = slow.figures_of_few == 0
                              ? ""
                              : fmt::format(" {} of fewer than {} hosts: nothing is said of them.",
                                            view::plural(slow.figures_of_few, "figure"), kLeastHosts);
  if (slow.comparisons == 0)
    return fmt::format(
        "No host was compared with the others by its speed: no figure of at least {} hosts of one kind.{}", kLeastHosts,
        few);
  return fmt::format(
      "{} of speed, {} comparisons of a host with the median of all by their MAD. If figures of healthy hosts are "
      "log-normal, at most {:g} % of healthy fleets have any such host (Student's t of 0.35 (n - 1) degrees, "
      "Bonferroni "
      "over all comparisons); less than {:g} % behind is never slow.{}",
      view::plural(slow.figures, "figure"), slow.comparisons, 100 * kFalseAlarmRate, 100 * kLeastShare, few);
}

std::optional<Status> outcome_of(const FleetHost& host, const std::string& suite) {
  for (const auto& [name, status] : host.suites)
    if (name == suite) return status;
  return std::nullopt;
}

std::string verdict_word(const FleetHost& host) {
  switch (host.state) {
    case FleetHost::State::ended:
      return std::string(to_string(host.verdict));
    case FleetHost::State::unfinished:
    case FleetHost::State::running:
      return fmt::format("{}, {}", to_string(std::max(host.verdict, Verdict::conditional)), to_string(host.state));
    case FleetHost::State::unreadable:
    case FleetHost::State::missing:
      return std::string(to_string(host.state));
  }
  throw std::logic_error("FleetHost::State outside its enumeration");
}

std::string amount(const Fleet& fleet, const std::vector<std::size_t>& hosts) {
  const bool gpus = !hosts.empty() && std::all_of(hosts.begin(), hosts.end(),
                                                  [&](std::size_t i) { return !fleet.hosts[i].on_host.empty(); });
  return view::plural(hosts.size(), gpus ? "GPU" : "host");
}

std::string amount(const Fleet& fleet) {
  std::set<std::string> with_gpus;
  std::size_t gpus = 0;
  for (const FleetHost& host : fleet.hosts) {
    if (host.on_host.empty()) continue;
    with_gpus.insert(host.on_host);
    ++gpus;
  }
  const std::size_t others = fleet.hosts.size() - gpus;
  if (gpus == 0) return view::plural(others, "host");
  return fmt::format("{} of {}{}", view::plural(gpus, "GPU"), view::plural(with_gpus.size(), "host"),
                     others == 0 ? "" : fmt::format(" and {}", view::plural(others, "other host")));
}

std::string counts(const Fleet& fleet) {
  std::vector<std::pair<std::string, std::size_t>> words;
  for (const FleetHost& host : fleet.hosts) {
    const std::string word = verdict_word(host);
    const auto at = std::find_if(words.begin(), words.end(), [&](const auto& entry) { return entry.first == word; });
    if (at == words.end())
      words.emplace_back(word, 1);
    else
      ++at->second;
  }
  std::string text = amount(fleet);
  const char* between = ": ";
  for (const auto& [word, n] : words) {
    text += fmt::format("{}{} {}", between, n, word);
    between = "; ";
  }
  return text;
}

}  // namespace fleets

std::string_view to_string(FleetHost::State state) {
  switch (state) {
    case FleetHost::State::ended:
      return "ended";
    case FleetHost::State::unfinished:
      return "unfinished";
    case FleetHost::State::running:
      return "running";
    case FleetHost::State::unreadable:
      return "unreadable";
    case FleetHost::State::missing:
      return "missing";
  }
  throw std::logic_error("FleetHost::State outside its enumeration");
}

std::string_view to_string(FleetDifference::Kind kind) {
  switch (kind) {
    case FleetDifference::Kind::validation:
      return "validation";
    case FleetDifference::Kind::machine:
      return "machine";
    case FleetDifference::Kind::bits:
      return "bits";
  }
  throw std::logic_error("FleetDifference::Kind outside its enumeration");
}

}  // namespace reports
