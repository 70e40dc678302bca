// report.html: the same model on one page that needs nothing else (no scripts, fonts or images from elsewhere), in the
// reader's light or dark colours.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "reports/chart.hpp"
#include "reports/html_text.hpp"
#include "reports/view.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --text: #1c2128; --soft: #59636e; --page: #ffffff; --card: #f6f8fa; --line: #d1d9e0;
        --good: #1a7f37; --mild: #9a6700; --bad: #cf222e; --none: #8c959f; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9198a1; --page: #0d1117; --card: #161b22; --line: #3d444d;
          --good: #3fb950; --mild: #d29922; --bad: #f85149; --none: #6e7681; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--page); border: 1px solid var(--line); padding: .5rem; overflow-x: auto; white-space: pre-wrap; }
.card, .banner { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--none); border-radius: 4px; padding: .5rem 1rem; margin: 1rem 0; }
.good { color: var(--good); } .mild { color: var(--mild); } .bad { color: var(--bad); } .none { color: var(--none); }
.card.mild, .banner { border-left-color: var(--mild); color: inherit; } .card.bad { border-left-color: var(--bad); color: inherit; }
svg rect.good { fill: var(--good); } svg rect.mild { fill: var(--mild); } svg rect.bad { fill: var(--bad); } svg rect.none { fill: var(--none); }
svg.chart { display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg.chart text { fill: var(--soft); }
svg.chart path { fill: none; } .axis { stroke: var(--soft); } .grid { stroke: var(--line); } svg.chart path.bad { stroke: var(--bad); stroke-width: 2; }
.c0 { --c: #0969da; } .c1 { --c: #bc4c00; } .c2 { --c: #1a7f37; } .c3 { --c: #8250df; } .c4 { --c: #bf3989; } .c5 { --c: #6e7781; }
.c0, .c1, .c2, .c3, .c4, .c5 { fill: var(--c); } .line { stroke: var(--c); stroke-width: 1.5; }
.soft { color: var(--soft); } summary { cursor: pointer; }
)";

const char* tone(Status status) {
  switch (status) {
    case Status::pass:
      return "good";
    case Status::inconclusive:
    case Status::blocked:
    case Status::not_run:
    case Status::cancelled:
      return "mild";
    case Status::fail:
    case Status::error:
    case Status::crash:
    case Status::hang:
    case Status::infra_error:
      return "bad";
    case Status::skip:
      return "none";
  }
  return "bad";
}

const char* tone(Severity severity) {
  switch (severity) {
    case Severity::info:
      return "none";
    case Severity::warn:
    case Severity::degrade:
      return "mild";
    case Severity::block:
    case Severity::isolate:
      return "bad";
  }
  return "bad";
}

const char* tone(Verdict verdict) {
  switch (verdict) {
    case Verdict::ready:
      return "good";
    case Verdict::conditional:
      return "mild";
    case Verdict::not_ready:
      return "bad";
  }
  return "bad";
}

class Html {
 public:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  // `cells` are already escaped.
  void row(const std::vector<std::string>& cells) { line("<tr><td>{}</td></tr>", fmt::join(cells, "</td><td>")); }
  void table(const std::vector<std::string>& head) {
    line("<table><thead><tr><th>{}</th></tr></thead><tbody>", fmt::join(head, "</th><th>"));
  }
  void end_table() { line("</tbody></table>"); }
  [[nodiscard]] std::string take() { return view::utf8(text_); }

 private:
  std::string text_;
};

std::string code(const std::string& text) { return "<code>" + esc(text) + "</code>"; }

std::string status_word(Status status) {
  return fmt::format("<b class=\"{}\">{}</b>", tone(status), to_string(status));
}

// One coloured cell a case, in the order of the plan; its tooltip names the case and what became of it.
std::string strip(const Suite& suite) {
  constexpr std::size_t kCell = 10, kPitch = 12, kPerRow = 40;
  const std::size_t n = suite.cases.size(), rows = (n + kPerRow - 1) / kPerRow;
  std::string svg = fmt::format("<svg role=\"img\" aria-label=\"{} cases of {}\" width=\"{}\" height=\"{}\">", n,
                                esc(suite.name), std::min(n, kPerRow) * kPitch, rows * kPitch);
  for (std::size_t i = 0; i < n; ++i) {
    const Case& c = suite.cases[i];
    const Status status = outcome(c);
    svg += fmt::format(
        "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2\"><title>{}: {}</title></rect>",
        tone(status), i % kPerRow * kPitch, i / kPerRow * kPitch, kCell, kCell, esc(c.id), to_string(status));
  }
  return svg + "</svg>";
}

void write_head(Html& out, const Run& run, const Assessment& assessment) {
  const Totals totals = count(run.suites);
  out.line(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
  out.line("<title>{}: validation report {}</title><style>{}</style></head><body>", to_string(assessment.verdict),
           esc(run.id), kStyle);
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
  for (const auto& reason : assessment.reasons) out.line("<li>{}</li>", esc(reason));
  out.line("</ul>");
}

void write_suites(Html& out, const Run& run) {
  out.line("<h2>Suites</h2>");
  out.table({"suite", "outcome", "cases", "passed", "failed", "skipped", "no result", "time", "key metrics"});
  for (const auto& suite : run.suites) {
    const Totals totals = count({suite});
    out.row({fmt::format("{}<br><span class=\"soft\">{}</span>", esc(suite.name), esc(suite.purpose)),
             status_word(outcome(suite)), strip(suite), std::to_string(totals.passed), std::to_string(totals.failed),
             std::to_string(totals.skipped), without_result(totals), view::duration(suite.duration_s),
             esc(view::key_metrics(suite))});
  }
  out.end_table();
}

void write_finding(Html& out, const view::FindingGroup& group) {
  constexpr std::size_t kRows = 12, kShown = 10;
  const Finding& f = group.first();
  out.line("<div class=\"card {}\"><h3>{} {} <span class=\"{}\">{}</span></h3><ul>", tone(group.severity), esc(f.code),
           esc(f.title), tone(group.severity), to_string(group.severity));
  for (std::size_t i = 0; i < std::min(kShown, group.occurrences.size()); ++i) {
    const auto& [finding, where] = group.occurrences[i];
    out.line("<li>{}: {}</li>", where ? code(where->id) : "the run", esc(view::cut(finding->message, 600)));
  }
  if (group.occurrences.size() > kShown)
    out.line("<li>and {} more, in report.json</li>", group.occurrences.size() - kShown);
  out.line("</ul>");
  if (!f.cause.empty()) out.line("<p><b>Likely cause.</b> {}</p>", esc(f.cause));
  if (const auto evidence = view::evidence(f.evidence, kRows); !evidence.rows.empty()) {
    out.table({"evidence", "value"});
    for (const auto& [name, value] : evidence.rows) out.row({esc(name), esc(value)});
    if (evidence.left_out > 0) out.row({"...", fmt::format("{} more, in report.json", evidence.left_out)});
    out.end_table();
  }
  if (!f.next.empty()) out.line("<p><b>Next step.</b> {}</p>", esc(f.next));
  if (!f.repro.empty()) out.line("<pre>{}</pre>", esc(f.repro));
  out.line("</div>");
}

void write_table(Html& out, const Table& table) {
  std::vector<std::string> cells;
  for (const auto& name : table.head) cells.push_back(esc(name));
  out.table(cells);
  for (const auto& row : table.rows) {
    cells.clear();
    for (const auto& cell : row) cells.push_back(esc(view::cut(cell, 160)));
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
  out.line("<h2>Figures</h2>");
  for (const auto& [where, chart] : charts) {
    out.line("<p class=\"soft\">{}</p>", code(where->id));
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

void write_case(Html& out, const Case& c) {
  const Status status = outcome(c);
  out.line("<details><summary>{} {} <span class=\"soft\">{}, {}</span></summary>", status_word(status), code(c.id),
           esc(c.hash), view::duration(c.duration_s));
  if (const auto why = view::why(c); !why.empty()) out.line("<p>{}</p>", esc(why));
  if (!c.checks.empty()) {
    out.table({"check", "measured", "bound", "held"});
    for (const auto& check : c.checks) {
      out.row({esc(check.name), esc(view::cut(view::measure(check.measured, check.unit), 160)),
               esc(check.comparator + " " + view::cut(view::measure(check.bound, check.unit), 160)),
               check.pass ? "yes" : "<b class=\"bad\">no</b>"});
    }
    out.end_table();
  }
  if (!c.metrics.empty()) {
    out.table({"metric", "value"});
    for (const auto& m : c.metrics) out.row({esc(m.name), esc(view::measure(m.value, m.unit))});
    out.end_table();
  }
  write_facts(out, c.facts);
  for (const auto& path : c.artifacts) out.line("<p>artifact {}</p>", code(path));
  if (!c.repro.empty()) out.line("<pre>{}</pre>", esc(c.repro));
  out.line("</details>");
}

void write_environment(Html& out, const Run& run) {
  out.line("<h2>Environment</h2>");
  out.table({"what", "value"});
  out.row({"run", code(run.id)});
  out.row({"started", esc(run.started)});
  out.row({"master seed", std::to_string(run.master_seed)});
  for (const auto& [name, value] : view::environment(run)) out.row({esc(name), esc(value)});
  for (const auto& flag : view::flags(run)) {
    out.row({code(flag.name), esc(flag.value + (flag.origin.empty() ? "" : " (" + flag.origin + ")"))});
  }
  out.end_table();
}

}  // namespace

std::string to_html(const Run& run) {
  Html out;
  const Assessment assessment = assess(run);
  write_head(out, run, assessment);
  write_suites(out, run);
  out.line("<h2>Findings</h2>");
  const auto groups = view::findings(run);
  if (groups.empty()) out.line("<p>None.</p>");
  for (const auto& group : groups) write_finding(out, group);
  out.line("<h2>What was not tested</h2><ul>");
  for (const auto& item : assessment.not_tested) out.line("<li>{}</li>", esc(item));
  out.line("</ul><h2>Next steps</h2><ol>");
  for (const auto& step : view::next_steps(run, assessment)) out.line("<li>{}</li>", esc(step));
  out.line("</ol>");
  write_figures(out, run);
  write_environment(out, run);
  out.line("<h2>Cases</h2>");
  for (const auto& suite : run.suites) {
    out.line("<h3>{}</h3>", esc(suite.name));
    for (const auto& c : suite.cases) write_case(out, c);
  }
  out.line("</body></html>");
  return out.take();
}

}  // namespace reports
