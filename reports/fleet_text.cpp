// The fleet for a terminal: what is not as it should be; of a thousand hosts that are READY only their number.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reports/fleet_parts.hpp"
#include "reports/lines.hpp"
#include "reports/text_table.hpp"
#include "reports/view.hpp"

namespace reports {

namespace {

using text::padded;
using text::safe;

constexpr std::size_t kRows = 24, kHostBytes = 60, kLineBytes = 400;

class FleetText : public Lines {
 public:
  // The first rows of a list, each as `of` says it.
  template <typename List, typename Of>
  void list(const std::string& title, const List& rows, Of of) {
    if (rows.empty()) return;
    line("{}", title);
    for (std::size_t i = 0; i < std::min(kRows, rows.size()); ++i) line("  {}", safe(of(rows[i]), kLineBytes));
    if (rows.size() > kRows) line("  and {} more", rows.size() - kRows);
    blank();
  }
};

// "pass on 998, fail on 2"
std::string outcomes(const Fleet& fleet, const std::string& suite) {
  std::map<Status, std::size_t> hosts;
  for (const FleetHost& host : fleet.hosts)
    if (const auto status = fleets::outcome_of(host, suite)) ++hosts[*status];
  std::string text;
  for (const auto& [status, n] : hosts)
    text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", to_string(status), n);
  return text;
}

// What of a host's suites did not pass.
std::string trouble_of(const FleetHost& host) {
  std::string text = host.trouble;
  for (const auto& [suite, status] : host.suites)
    if (status != Status::pass && status != Status::skip)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", suite, to_string(status));
  if (text.empty() && !host.reasons.empty()) text = host.reasons.front();
  return text;
}

void write_hosts(FleetText& out, const Fleet& fleet) {
  std::vector<const FleetHost*> hosts;
  std::size_t word = 0, name = 0;
  for (const FleetHost& host : fleet.hosts) {
    if (host.state == FleetHost::State::ended && host.verdict == Verdict::ready) continue;
    hosts.push_back(&host);
    word = std::max(word, fleets::verdict_word(host).size());
    name = std::max(name, text::width(safe(host.name, kHostBytes)));
  }
  out.list("hosts that are not READY", hosts, [&](const FleetHost* host) {
    return fmt::format("{}  {}  {}", padded(fleets::verdict_word(*host), word),
                       padded(safe(host->name, kHostBytes), name), trouble_of(*host));
  });
}

std::string finding_line(const Fleet& fleet, const FleetFinding& finding) {
  constexpr std::size_t kNames = 6;
  const Finding& f = finding.first;
  const std::string hosts = finding.hosts.empty() ? "the fleet"
                                                  : fmt::format("{}: {}", fleets::amount(fleet, finding.hosts),
                                                                fleets::names(fleet, finding.hosts, kNames));
  return fmt::format("{:<8} {} {}; {}; {}{}", to_string(f.severity), f.code, f.title, hosts,
                     finding.where.empty() ? "" : finding.where + ": ", f.message);
}

}  // namespace

std::string to_text(const Fleet& fleet) {
  FleetText out;
  out.list("suites", fleet.suite_names,
           [&](const std::string& suite) { return suite + ": " + outcomes(fleet, suite); });
  write_hosts(out, fleet);
  out.list("findings", fleet.findings, [&](const FleetFinding& finding) { return finding_line(fleet, finding); });
  std::vector<const FleetDifference*> told;
  for (const FleetDifference& row : fleet.differences)
    if (!row.individual) told.push_back(&row);
  out.list("in what hosts differ", told, [&](const FleetDifference* row) {
    return fmt::format("{:<10} {}", to_string(row->kind), fleets::in_words(fleet, *row));
  });
  out.list("slow hosts", fleet.slow.found, [&](const SlowHost& slow) { return fleets::in_words(fleet, slow); });
  out.line("{}\n", fleets::about_slow_hosts(fleet));
  out.list("why", fleet.reasons, [](const std::string& reason) { return "- " + reason; });
  out.line("merge: {}; {}, exit code {}", safe(fleets::counts(fleet), kLineBytes), to_string(fleet.verdict),
           static_cast<int>(fleet.exit_code));
  return out.take();
}

}  // namespace reports
