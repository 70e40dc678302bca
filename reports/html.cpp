// report.html: the same model on one page that needs nothing else (no scripts, fonts or images from elsewhere), in the
// reader's light or dark colours.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "reports/chart.hpp"
#include "reports/html_page.hpp"
#include "reports/html_text.hpp"
#include "reports/view.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

using html::breakable;
using html::code_element;
using html::Html;
using html::mark;
using html::status_word;
using html::tone;

std::string suite_anchor(const Suite& suite) { return esc("suite-" + suite.name); }
std::string anchor(const Case& c) { return esc("case-" + c.hash); }
std::string link_to(const Case& c) { return fmt::format("<a href=\"#{}\">{}</a>", anchor(c), code_element(c.id)); }

// One cell a case, in the order of the plan, that leads to it; its tooltip names the case and what became of it.
std::string cells(const Suite& suite) {
  std::string row;
  for (const Case& c : suite.cases) {
    const Status status = outcome(c);
    const std::string title = fmt::format("{}: {}", esc(c.id), to_string(status));
    row += fmt::format("<a class=\"cell {}\" href=\"#{}\" title=\"{}\" aria-label=\"{}\">{}</a>\n", tone(status),
                       anchor(c), title, title, mark(status));
  }
  return row;
}

void write_head(Html& out, const Run& run, const Assessment& assessment) {
  const Totals totals = count(run.suites);
  out.begin(fmt::format("{}: validation report {}", to_string(assessment.verdict), run.id));
  out.line("<h1>Validation report: <span class=\"{}\">{}</span></h1>", tone(assessment.verdict),
           to_string(assessment.verdict));
  if (const auto faults = view::planted_faults(run); !faults.empty()) {
    out.line(
        "<p class=\"banner\"><b>Planted faults: {}</b> - this run tests the harness; its findings say nothing about "
        "the "
        "product.</p>",
        esc(faults));
  }
  if (!run.complete) {
    out.line(
        "<p class=\"banner\"><b>Incomplete run</b> - its journal has no end; what was recorded until {} is below.</p>",
        esc(run.ended));
  }
  if (run.interruption) {
    out.line("<p class=\"banner\"><b>Interrupted run</b> - stopped with exit code {}.</p>",
             static_cast<int>(*run.interruption));
  }
  out.line("<p>{}. The {} level ran on {} for {} and executed {} of {} planned cases: {}. Exit code {}.</p><ul>",
           esc(assessment.scope), esc(run.level), esc(run.device), view::duration(run.duration_s), totals.executed,
           totals.planned, view::counts(totals), static_cast<int>(assessment.exit_code));
  for (const auto& reason : assessment.reasons) out.line("<li>{}</li>", breakable(reason));
  out.line("</ul>");
}

void write_suites(Html& out, const Run& run) {
  out.line("<h2 id=\"suites\">Suites</h2>");
  out.table({"suite", "outcome", "passed", "failed", "skipped", "no result", "time", "key metrics"});
  for (const auto& suite : run.suites) {
    const Totals totals = count({suite});
    out.row({fmt::format("{}<br><span class=\"soft\">{}</span>", esc(suite.name), esc(suite.purpose)),
             status_word(outcome(suite)), std::to_string(totals.passed), std::to_string(totals.failed),
             std::to_string(totals.skipped), without_result(totals), view::duration(suite.duration_s),
             esc(view::key_metrics(suite))});
  }
  out.end_table();
  out.line(
      "<p class=\"soft\">\u2713 passed, \u2717 failed, ! error, crash or hang, ? inconclusive, \u2026 not run, \u2013 "
      "skipped</p>");
  for (const auto& suite : run.suites)
    out.line("<p class=\"cells\"><a href=\"#{}\">{}</a><br>{}</p>", suite_anchor(suite), esc(suite.name), cells(suite));
}

void write_ways(Html& out, const Run& run) {
  const auto ways = view::ways(run);
  if (ways.empty()) return;
  out.line("<h2 id=\"ways\">Ways taken</h2>");
  out.table({"function", "ways"});
  for (const auto& [function, taken] : ways) out.row({code_element(function), breakable(taken)});
  out.end_table();
}

void write_finding(Html& out, const Run& run, const view::FindingGroup& group) {
  constexpr std::size_t kRows = 12, kShown = 10;
  const Finding& f = group.first();
  out.line("<div class=\"card {}\" id=\"{}\"><h3>{} {} <span class=\"{}\">{}</span></h3><ul>", tone(group.severity),
           esc(f.code), esc(f.code), esc(f.title), tone(group.severity), to_string(group.severity));
  for (std::size_t i = 0; i < std::min(kShown, group.occurrences.size()); ++i) {
    const auto& [finding, where] = group.occurrences[i];
    out.line("<li>{}: {}</li>", where ? link_to(*where) : "the run", breakable(view::cut(finding->message, 600)));
  }
  if (group.occurrences.size() > kShown)
    out.line("<li>and {} more, in report.json</li>", group.occurrences.size() - kShown);
  out.line("</ul>");
  if (!f.cause.empty()) out.line("<p><b>Likely cause.</b> {}</p>", breakable(f.cause));
  const auto evidence = view::evidence(f.evidence, kRows);
  if (!evidence.rows.empty()) {
    out.table({"evidence", "value"});
    for (const auto& [name, value] : evidence.rows) out.row({breakable(name), breakable(value)});
    if (evidence.left_out > 0) out.row({"...", fmt::format("{} more, in report.json", evidence.left_out)});
    out.end_table();
  }
  for (const auto& [name, text] : evidence.texts)
    out.line("<p class=\"soft\">{}</p><pre>{}</pre>", esc(name), esc(text));
  if (!f.next.empty()) out.line("<p><b>Next step.</b> {}</p>", breakable(f.next));
  if (!f.repro.empty()) out.line("<pre>{}</pre>", esc(f.repro));
  if (const std::string command = view::replay_command(run, group); !command.empty())
    out.line("<p class=\"soft\">its bundle (--minimize makes it smaller)</p><pre>{}</pre>", esc(command));
  if (const std::string command = view::python_command(group); !command.empty())
    out.line("<p class=\"soft\">in Python alone</p><pre>{}</pre>", esc(command));
  out.line("</div>");
}

// What a reader wants first.
void write_causes(Html& out, const Run& run) {
  if (run.causes.empty()) return;
  const LikelyCause& first = run.causes.front();
  out.line("<div class=\"card {}\" id=\"cause\"><h2>Most likely: {}</h2><ul>", tone(first.severity),
           breakable(view::sentence(first)));
  for (const auto& reason : first.because) out.line("<li>because {}</li>", breakable(view::cut(reason, 400)));
  out.line("</ul><p><b>Next step.</b> {}</p>", breakable(first.next));
  if (!first.confirm.empty()) out.line("<p>To confirm:</p><pre>{}</pre>", esc(first.confirm));
  if (run.causes.size() > 1) {
    out.line("<p>It does not explain everything. Besides:</p><ol start=\"2\">");
    for (std::size_t i = 1; i < run.causes.size(); ++i)
      out.line("<li>{} <a href=\"#{}\">{}</a></li>", breakable(view::sentence(run.causes[i])),
               esc(run.causes[i].codes.front()), esc(run.causes[i].codes.front()));
    out.line("</ol>");
  }
  out.line("</div>");
}

// Findings that only follow from a cause, folded: one line a code.
void write_consequences(Html& out, const Run& run) {
  for (const LikelyCause& cause : run.causes) {
    const auto groups = view::findings(run, cause.id);
    if (groups.empty()) continue;
    out.line("<details><summary>{} from {}</summary><ul>",
             groups.size() == 1 ? "One finding follows" : fmt::format("{} findings follow", groups.size()),
             esc(cause.codes.front()));
    for (const auto& group : groups) {
      const auto& [finding, where] = group.occurrences.front();
      out.line("<li>{} {} ({}), for example {}: {}</li>", esc(finding->code), esc(finding->title),
               view::plural(group.occurrences.size(), "time"), where ? link_to(*where) : "the run",
               breakable(view::cut(finding->message, 160)));
    }
    out.line("</ul></details>");
  }
}

void write_table(Html& out, const Table& table) {
  std::vector<std::string> cells;
  cells.reserve(table.head.size());
  for (const auto& name : table.head) cells.push_back(esc(name));
  out.table(cells);
  for (const auto& row : table.rows) {
    cells.clear();
    for (const auto& cell : row) cells.push_back(breakable(view::cut(cell, 160)));
    out.row(cells);
  }
  out.end_table();
}

void write_chart(Html& out, const Chart& chart) {
  out.line("<figure><figcaption>{}</figcaption>{}<details><summary class=\"soft\">as a table</summary>",
           esc(chart.title), svg(chart));
  write_table(out, table_of(chart));
  out.line("</details></figure>");
}

void write_figures(Html& out, const Run& run) {
  const auto charts = view::charts(run);
  if (charts.empty()) return;
  out.line("<h2 id=\"figures\">Figures</h2>");
  for (const auto& [where, chart] : charts) {
    out.line("<p class=\"soft\">{}</p>", link_to(*where));
    write_chart(out, chart);
  }
}

void write_facts(Html& out, const Json& facts) {
  if (!facts.is_object()) return;
  Json rest = Json::object();
  for (const auto& [key, fact] : facts.items()) {
    if (chart_of(fact)) continue;  // stands among the figures
    if (const auto table = table_of(fact)) {
      out.line("<p>{}</p>", esc(key));
      write_table(out, *table);
    } else {
      rest[key] = fact;
    }
  }
  if (!rest.empty()) out.line("<pre>{}</pre>", esc(view::cut(dump(rest, 2), 4000)));
}

void write_case(Html& out, const Run& run, const Case& c) {
  const Status status = outcome(c);
  out.line("<details id=\"{}\"><summary>{} {} <span class=\"soft\">{}, {}</span></summary>", anchor(c),
           status_word(status), code_element(c.id), esc(c.hash), view::duration(c.duration_s));
  for (const Finding& f : c.findings)
    out.line("<p><a href=\"#{}\">{}</a> {}</p>", esc(f.code), esc(f.code), esc(f.title));
  if (const auto why = view::why(c); !why.empty()) out.line("<p>{}</p>", breakable(why));
  if (!c.checks.empty()) {
    out.table({"check", "measured", "bound", "held"});
    for (const auto& check : c.checks) {
      out.row({breakable(check.name), breakable(view::cut(view::measure(check.measured, check.unit), 160)),
               breakable(check.comparator + " " + view::cut(view::measure(check.bound, check.unit), 160)),
               check.pass ? "yes" : "<b class=\"bad\">no</b>"});
    }
    out.end_table();
  }
  if (!c.metrics.empty()) {
    out.table({"metric", "value"});
    for (const auto& m : c.metrics) out.row({breakable(m.name), esc(view::measure(m.value, m.unit))});
    out.end_table();
  }
  write_facts(out, c.facts);
  for (const auto& path : c.artifacts) out.line("<p>artifact {}</p>", code_element(path));
  if (!c.repro.empty()) out.line("<pre>{}</pre>", esc(c.repro));
  if (const auto bundle = run.bundles.find(c.id); bundle != run.bundles.end())
    out.line("<p>bundle {}</p><pre>{}</pre>", code_element(bundle->second.path), esc(bundle->second.command));
  out.line("</details>");
}

void write_environment(Html& out, const Run& run) {
  out.line("<h2 id=\"environment\">Environment</h2>");
  out.table({"what", "value"});
  out.row({"run", code_element(run.id)});
  out.row({"started", esc(run.started)});
  out.row({"master seed", std::to_string(run.master_seed)});
  for (const auto& [name, value] : view::environment(run)) out.row({esc(name), breakable(value)});
  for (const auto& flag : view::flags(run)) {
    out.row({code_element(flag.name), breakable(flag.value + (flag.origin.empty() ? "" : " (" + flag.origin + ")"))});
  }
  out.end_table();
}

}  // namespace

std::string to_html(const Run& run) {
  Html out;
  const Assessment assessment = assess(run);
  write_head(out, run, assessment);
  write_causes(out, run);
  const auto groups = view::findings(run);
  out.line(
      "<nav><a href=\"#findings\">Findings ({})</a> <a href=\"#next\">Next steps</a> <a href=\"#suites\">Suites</a> "
      "<a href=\"#untested\">Not tested</a> <a href=\"#cases\">Cases</a> <a "
      "href=\"#environment\">Environment</a></nav>",
      groups.size());
  out.line("<h2 id=\"findings\">Findings</h2>");
  if (groups.empty()) out.line("<p>None.</p>");
  for (const auto& group : groups) write_finding(out, run, group);
  write_consequences(out, run);
  out.line("<h2 id=\"next\">Next steps</h2><ol>");
  for (const auto& step : view::next_steps(run, assessment)) out.line("<li>{}</li>", breakable(step));
  out.line("</ol>");
  write_suites(out, run);
  write_ways(out, run);
  out.line("<h2 id=\"untested\">What was not tested</h2><ul>");
  for (const auto& item : assessment.not_tested) out.line("<li>{}</li>", breakable(item));
  out.line("</ul>");
  write_figures(out, run);
  out.line("<h2 id=\"cases\">Cases</h2>");
  for (const auto& suite : run.suites) {
    out.line("<h3 id=\"{}\">{}</h3>", suite_anchor(suite), esc(suite.name));
    for (const auto& c : suite.cases) write_case(out, run, c);
  }
  write_environment(out, run);
  return out.end();
}

}  // namespace reports
