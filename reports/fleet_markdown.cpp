// fleet.md
#include <fmt/format.h>

#include <algorithm>

#include "reports/fleet_parts.hpp"
#include "reports/markdown_text.hpp"
#include "reports/view.hpp"

namespace reports {

namespace {

using markdown::code;
using markdown::Markdown;
using markdown::md;

constexpr std::size_t kMarkdownNames = 20, kMarkdownRows = 200;

void write_rest(Markdown& out, std::size_t rows, std::size_t columns) {
  if (rows <= kMarkdownRows) return;
  std::vector<std::string> cells(columns);
  cells[0] = fmt::format("and {} more, in {}", rows - kMarkdownRows, kFleetFile);
  out.row(cells);
}

void write_findings(Markdown& out, const Fleet& fleet) {
  out.title("Findings");
  if (fleet.findings.empty()) return out.line("None.\n");
  out.table({"finding", "severity", "hosts", "which", "for example", "next step"});
  for (const FleetFinding& finding : fleet.findings) {
    const Finding& f = finding.first;
    out.row({md(f.code + " " + f.title), std::string(to_string(f.severity)), std::to_string(finding.hosts.size()),
             md(fleets::names(fleet, finding.hosts, kMarkdownNames)),
             (finding.where.empty() ? "" : code(finding.where) + ": ") + md(view::cut(f.message, 400)), md(f.next)});
  }
  out.blank();
}

void write_hosts(Markdown& out, const Fleet& fleet) {
  out.title("Hosts");
  std::vector<std::string> head{"host", "verdict", "exit code"};
  for (const std::string& suite : fleet.suite_names) head.push_back(md(suite));
  head.emplace_back("run");
  out.table(head);
  for (const FleetHost& host : fleet.hosts) {
    std::vector<std::string> cells{code(host.name), md(fleets::verdict_word(host)),
                                   host.has_run() ? std::to_string(static_cast<int>(host.exit_code)) : ""};
    for (const std::string& suite : fleet.suite_names) {
      const auto status = fleets::outcome_of(host, suite);
      cells.emplace_back(!status ? "" : *status == Status::pass ? "pass" : fmt::format("**{}**", to_string(*status)));
    }
    cells.push_back(host.has_run() ? code(host.folder) : md(host.trouble));
    out.row(cells);
  }
  out.blank();
}

void write_differences(Markdown& out, const Fleet& fleet) {
  out.title("In what hosts differ");
  const auto told = std::count_if(fleet.differences.begin(), fleet.differences.end(),
                                  [](const FleetDifference& row) { return !row.individual; });
  if (told == 0) out.line("In nothing that the runs record.\n");
  if (told > 0) out.table({"what", "kind", "value", "hosts"});
  std::size_t rows = 0;
  for (const FleetDifference& row : fleet.differences)
    for (std::size_t i = 0; i < row.groups.size() && !row.individual; ++i) {
      if (++rows > kMarkdownRows) continue;
      const auto& [value, hosts] = row.groups[i];
      const bool most = i == 0 && row.majority;
      out.row({i == 0 ? code(row.name) : "", i == 0 ? std::string(to_string(row.kind)) : "",
               value.empty() ? "not there" : md(value),
               most ? fmt::format("{} (most)", hosts.size()) : md(fleets::names(fleet, hosts, kMarkdownNames))});
    }
  if (told > 0) {
    write_rest(out, rows, 4);
    out.blank();
  }
  std::string own;
  for (const FleetDifference& row : fleet.differences)
    if (row.individual) own += fmt::format("{}{}", own.empty() ? "" : ", ", code(row.name));
  if (!own.empty()) out.line("Nearly every host has a value of its own: {}.\n", own);
}

void write_slow_hosts(Markdown& out, const Fleet& fleet) {
  out.title("Slow hosts");
  out.line("{}\n", fleets::about_slow_hosts(fleet));
  if (fleet.slow.found.empty()) return out.line("None.\n");
  out.table({"host", "figure", "value", "median", "slower by", "chance"});
  for (std::size_t i = 0; i < std::min(kMarkdownRows, fleet.slow.found.size()); ++i) {
    const SlowHost& slow = fleet.slow.found[i];
    const FleetFigure& figure = fleet.figures[slow.figure];
    out.row({code(fleet.hosts[slow.host].name), code(figure.name), md(view::measure(slow.value, figure.unit)),
             md(view::measure(slow.median, figure.unit)), fmt::format("{:.1f} %", slow.behind_percent),
             fmt::format("{:.1g}", slow.chance)});
  }
  write_rest(out, fleet.slow.found.size(), 6);
  out.blank();
}

}  // namespace

std::string to_markdown(const Fleet& fleet) {
  Markdown out;
  out.line("# Fleet report: {}\n", to_string(fleet.verdict));
  out.line("**{}**: {}. Exit code {}.\n", to_string(fleet.verdict), md(fleets::counts(fleet)),
           static_cast<int>(fleet.exit_code));
  for (const std::string& reason : fleet.reasons) out.line("- {}", md(reason));
  out.blank();
  write_findings(out, fleet);
  write_slow_hosts(out, fleet);
  write_differences(out, fleet);
  write_hosts(out, fleet);
  return out.take();
}

}  // namespace reports
