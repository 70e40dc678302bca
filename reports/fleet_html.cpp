// fleet.html: the same as fleet.md, with the hosts' suites as cells.
#include <fmt/format.h>

#include <algorithm>

#include "reports/fleet_parts.hpp"
#include "reports/html_page.hpp"
#include "reports/html_text.hpp"
#include "reports/view.hpp"

namespace reports {

namespace {

using html::breakable;
using html::code_element;
using html::Html;

constexpr std::size_t kPageNames = 40, kPageRows = 1000;

// A list of hosts; behind the first ones it folds.
std::string hosts_of(const Fleet& fleet, const std::vector<std::size_t>& hosts) {
  if (hosts.size() <= kPageNames) return breakable(fleets::names(fleet, hosts, kPageNames));
  return fmt::format("<details><summary>{}</summary>{}</details>", esc(fleets::names(fleet, hosts, 3)),
                     breakable(fleets::names(fleet, hosts, hosts.size())));
}

void write_findings(Html& out, const Fleet& fleet) {
  out.line("<h2 id=\"findings\">Findings</h2>");
  if (fleet.findings.empty()) out.line("<p>None.</p>");
  for (const FleetFinding& finding : fleet.findings) {
    const Finding& f = finding.first;
    out.line("<div class=\"card {}\"><h3>{} {} <span class=\"{}\">{}</span></h3>", html::tone(f.severity), esc(f.code),
             esc(f.title), html::tone(f.severity), to_string(f.severity));
    out.line("<p><b>{}</b>: {}</p>", fleets::amount(fleet, finding.hosts), hosts_of(fleet, finding.hosts));
    out.line("<p>{}{}</p>", finding.where.empty() ? "" : code_element(finding.where) + ": ", breakable(f.message));
    if (!f.next.empty()) out.line("<p><b>Next step.</b> {}</p>", breakable(f.next));
    out.line("</div>");
  }
}

void write_slow_hosts(Html& out, const Fleet& fleet) {
  out.line("<h2 id=\"slow\">Slow hosts</h2><p>{}</p>", breakable(fleets::about_slow_hosts(fleet)));
  if (fleet.slow.found.empty()) return out.line("<p>None.</p>");
  out.table({"host", "figure", "value", "median", "slower by", "chance"});
  for (std::size_t i = 0; i < std::min(kPageRows, fleet.slow.found.size()); ++i) {
    const SlowHost& slow = fleet.slow.found[i];
    const FleetFigure& figure = fleet.figures[slow.figure];
    out.row({code_element(fleet.hosts[slow.host].name), code_element(figure.name),
             esc(view::measure(slow.value, figure.unit)), esc(view::measure(slow.median, figure.unit)),
             fmt::format("{:.1f} %", slow.behind_percent), fmt::format("{:.1g}", slow.chance)});
  }
  out.end_table();
}

void write_differences(Html& out, const Fleet& fleet) {
  out.line("<h2 id=\"differences\">In what hosts differ</h2>");
  if (fleet.differences.empty()) return out.line("<p>In nothing that the runs record.</p>");
  out.table({"what", "kind", "value", "hosts"});
  std::size_t rows = 0;
  std::string own;
  for (const FleetDifference& row : fleet.differences) {
    if (row.individual) own += fmt::format("{}{}", own.empty() ? "" : ", ", code_element(row.name));
    for (std::size_t i = 0; i < row.groups.size() && !row.individual; ++i) {
      if (++rows > kPageRows) continue;
      const auto& [value, hosts] = row.groups[i];
      out.row({i == 0 ? code_element(row.name) : "", i == 0 ? std::string(to_string(row.kind)) : "",
               value.empty() ? "not there" : breakable(value),
               i == 0 && row.majority ? fmt::format("{} (most)", hosts.size()) : hosts_of(fleet, hosts)});
    }
  }
  out.end_table();
  if (rows > kPageRows) out.line("<p>And {} more, in {}.</p>", rows - kPageRows, kFleetFile);
  if (!own.empty()) out.line("<p>Nearly every host has a value of its own: {}.</p>", own);
}

void write_hosts(Html& out, const Fleet& fleet) {
  out.line("<h2 id=\"hosts\">Hosts</h2>");
  std::vector<std::string> head{"host", "verdict"};
  for (const std::string& suite : fleet.suite_names) head.push_back(esc(suite));
  head.emplace_back("run");
  out.table(head);
  for (const FleetHost& host : fleet.hosts) {
    std::vector<std::string> cells{
        code_element(host.name),
        fmt::format("<b class=\"{}\">{}</b>", html::tone(fleets::verdict_of(host)), esc(fleets::verdict_word(host)))};
    for (const std::string& suite : fleet.suite_names) {
      const auto status = fleets::outcome_of(host, suite);
      cells.push_back(status ? fmt::format("<span class=\"{0}\" title=\"{1}\">{2} {1}</span>", html::tone(*status),
                                           to_string(*status), html::mark(*status))
                             : "");
    }
    cells.push_back(host.has_run() ? code_element(host.folder) : breakable(host.trouble));
    out.row(cells);
  }
  out.end_table();
}

}  // namespace

std::string to_html(const Fleet& fleet) {
  Html out;
  out.begin(fmt::format("{}: fleet report", to_string(fleet.verdict)));
  out.line("<h1>Fleet report: <span class=\"{}\">{}</span></h1>", html::tone(fleet.verdict), to_string(fleet.verdict));
  out.line("<p>{}. Exit code {}.</p><ul>", esc(fleets::counts(fleet)), static_cast<int>(fleet.exit_code));
  for (const std::string& reason : fleet.reasons) out.line("<li>{}</li>", breakable(reason));
  out.line(
      "</ul><nav><a href=\"#findings\">Findings ({})</a> <a href=\"#slow\">Slow hosts</a> <a "
      "href=\"#differences\">Differences</a> <a href=\"#hosts\">Hosts</a></nav>",
      fleet.findings.size());
  write_findings(out, fleet);
  write_slow_hosts(out, fleet);
  write_differences(out, fleet);
  write_hosts(out, fleet);
  return out.end();
}

}  // namespace reports
