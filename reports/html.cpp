// report.html: the same model on one page that needs nothing else (no scripts, fonts or images from elsewhere), in the
// reader's light or dark colours.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

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
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 70rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word; }
nav a { margin-right: 1rem; } a { color: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
.cells { line-height: 1.35; } .cell { display: inline-block; width: 1.2em; margin: 0 2px 2px 0; text-align: center; text-decoration: none; border: 1px solid; border-radius: 3px; font-size: 12px; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--page); border: 1px solid var(--line); padding: .5rem; overflow-x: auto; white-space: pre-wrap; }
.card, .banner { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--none); border-radius: 4px; padding: .5rem 1rem; margin: 1rem 0; }
.good { color: var(--good); } .mild { color: var(--mild); } .bad { color: var(--bad); } .none { color: var(--none); }
.card.mild, .banner { border-left-color: var(--mild); color: inherit; } .card.bad { border-left-color: var(--bad); color: inherit; }
svg.chart { display: block; max-width: 100%; height: auto; font: 12px system-ui, sans-serif; } svg.chart text { fill: var(--soft); }
svg.chart path { fill: none; } .axis { stroke: var(--soft); } .grid { stroke: var(--line); } svg.chart path.bad { stroke: var(--bad); stroke-width: 2; }
.c0 { --c: #0969da; } .c1 { --c: #bc4c00; } .c2 { --c: #1a7f37; } .c3 { --c: #8250df; } .c4 { --c: #bf3989; } .c5 { --c: #6e7781; }
.c0, .c1, .c2, .c3, .c4, .c5 { fill: var(--c); } .line { stroke: var(--c); stroke-width: 1.5; }
.soft { color: var(--soft); } summary { cursor: pointer; }
figure { margin: 1rem 0; }
:target { outline: 2px solid var(--mild); }
@media (max-width: 40rem) { body { margin: 1rem auto; } }
@media print { body { max-width: none; margin: 0; font-size: 11px; } code, pre { font-size: 10px; } nav { display: none; } .wide, pre { overflow: visible; } .card, tr { break-inside: avoid; } }
)";

// Where a table has no room its rows become lines of text, each cell behind its column's name: every table on a phone,
// those of many columns on paper.
constexpr std::size_t kManyColumns = 5;
std::string rows_as_lines(const char* table, const char* narrower_than) {
  return fmt::format(R"(@media (max-width: {1}) {{
  {0}, {0} tbody, {0} tr {{ display: block; }} {0} thead {{ display: none; }}
  {0} tr {{ padding: .25rem 0; border-bottom: 1px solid var(--line); }} {0} td {{ display: inline; padding: 0; border: none; }}
  {0} td + td::before {{ content: " \b7  " attr(data-head) " "; color: var(--soft); }} }}
)",
                     table, narrower_than);
}

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
  // `head` and `cells` are already escaped.
  void table(const std::vector<std::string>& head) {
    head_ = head;
    line("<div class=\"wide\"><table{}><thead><tr><th>{}</th></tr></thead><tbody>",
         head.size() >= kManyColumns ? " class=\"many\"" : "", fmt::join(head, "</th><th>"));
  }
  void row(const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i)
      text += fmt::format("<td{}>{}</td>", i > 0 && head_.size() > 2 ? " data-head=\"" + head_[i] + '"' : "", cells[i]);
    line("<tr>{}</tr>", text);
  }
  void end_table() { line("</tbody></table></div>"); }
  [[nodiscard]] std::string take() { return view::utf8(text_); }

 private:
  std::vector<std::string> head_;  // of the table that is being written
  std::string text_;
};

// Long names and paths may break behind their own marks, and so need not break within a word; what has no marks, a hash
// for instance, may break where no word reaches.
std::string breakable(const std::string& text) {
  constexpr std::size_t kLongestWord = 24;
  std::string out;
  std::size_t run = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // a character of UTF-8
    if (begins && run++ == kLongestWord) {
      out += "<wbr>";
      run = 1;
    }
    out += esc({c});
    const bool mark = std::string_view("/,=._:(").find(c) != std::string_view::npos;
    if (mark) out += "<wbr>";
    if (mark || c == ' ') run = 0;
  }
  return out;
}

std::string code(const std::string& text) { return "<code>" + breakable(text) + "</code>"; }

std::string suite_anchor(const Suite& suite) { return esc("suite-" + suite.name); }
std::string anchor(const Case& c) { return esc("case-" + c.hash); }
std::string link_to(const Case& c) { return fmt::format("<a href=\"#{}\">{}</a>", anchor(c), code(c.id)); }

std::string status_word(Status status) {
  return fmt::format("<b class=\"{}\">{}</b>", tone(status), to_string(status));
}

// What became of a case, for those who do not tell colours apart.
const char* mark(Status status) {
  switch (status) {
    case Status::pass:
      return "\u2713";
    case Status::fail:
      return "\u2717";
    case Status::error:
    case Status::crash:
    case Status::hang:
    case Status::infra_error:
      return "!";
    case Status::inconclusive:
      return "?";
    case Status::blocked:
    case Status::not_run:
    case Status::cancelled:
      return "\u2026";
    case Status::skip:
      return "\u2013";
  }
  return "!";
}

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
  out.line(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
  out.line("<title>{}: validation report {}</title><style>{}{}{}</style></head><body>", to_string(assessment.verdict),
           esc(run.id), kStyle, rows_as_lines("table", "40rem"), rows_as_lines("table.many", "48rem"));
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
  for (const auto& [function, taken] : ways) out.row({code(function), breakable(taken)});
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
           status_word(status), code(c.id), esc(c.hash), view::duration(c.duration_s));
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
  for (const auto& path : c.artifacts) out.line("<p>artifact {}</p>", code(path));
  if (!c.repro.empty()) out.line("<pre>{}</pre>", esc(c.repro));
  if (const auto bundle = run.bundles.find(c.id); bundle != run.bundles.end())
    out.line("<p>bundle {}</p><pre>{}</pre>", code(bundle->second.path), esc(bundle->second.command));
  out.line("</details>");
}

void write_environment(Html& out, const Run& run) {
  out.line("<h2 id=\"environment\">Environment</h2>");
  out.table({"what", "value"});
  out.row({"run", code(run.id)});
  out.row({"started", esc(run.started)});
  out.row({"master seed", std::to_string(run.master_seed)});
  for (const auto& [name, value] : view::environment(run)) out.row({esc(name), breakable(value)});
  for (const auto& flag : view::flags(run)) {
    out.row({code(flag.name), breakable(flag.value + (flag.origin.empty() ? "" : " (" + flag.origin + ")"))});
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
  out.line("</body></html>");
  return out.take();
}

}  // namespace reports
