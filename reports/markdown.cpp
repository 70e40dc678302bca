// report.md: for the engineer who decides what to do next.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "reports/chart.hpp"
#include "reports/markdown_text.hpp"
#include "reports/view.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

using markdown::code;
using markdown::Markdown;
using markdown::md;

void write_banners(Markdown& out, const Run& run) {
  if (const auto faults = view::planted_faults(run); !faults.empty()) {
    out.line("> **Planted faults: {}** - this run tests the harness; its findings say nothing about the product.\n",
             md(faults));
  }
  if (!run.complete) {
    out.line(
        "> **Incomplete run** - its journal has no end{}. What was recorded until {} is below; cases without a result "
        "are `not_run`.\n",
        run.torn_tail ? " and its last line is cut off" : "", md(run.ended));
  }
  if (run.interruption) {
    out.line("> **Interrupted run** - stopped with exit code {}; the rest was not tested.\n",
             static_cast<int>(*run.interruption));
  }
}

// What a reader wants first: the likeliest cause with its evidence; the others in a line each.
void write_causes(Markdown& out, const Run& run) {
  if (run.causes.empty()) return;
  const LikelyCause& first = run.causes.front();
  out.line("**Most likely: {}**\n", md(view::sentence(first)));
  for (const auto& reason : first.because) out.line("- because {}", md(view::cut(reason, 400)));
  if (!first.consequences.empty()) out.line("- what follows from it: {}", md(view::follows(first)));
  out.line("- next: {}", md(first.next));
  out.blank();
  if (!first.confirm.empty()) {
    out.line("To confirm:\n");
    out.block(first.confirm);
    out.blank();
  }
  constexpr std::size_t kShown = 6;
  if (run.causes.size() > 1) {
    out.line("It does not explain everything. Besides:\n");
    for (std::size_t i = 1; i < std::min(kShown, run.causes.size()); ++i)
      out.line("{}. {} ({})", i + 1, md(view::sentence(run.causes[i])), fmt::join(run.causes[i].codes, ", "));
    if (run.causes.size() > kShown) out.line("\nand {} more, in report.json", run.causes.size() - kShown);
    out.blank();
  }
}

void write_summary(Markdown& out, const Run& run, const Assessment& assessment, const Totals& totals) {
  constexpr std::size_t kReasons = 8;
  out.title("Summary");
  const double share = run.duration_s > 0 ? 100 * run.harness_s / run.duration_s : 0;
  out.line(
      "**{}**: {}. The {} level ran on {} for {} (the harness's own share {:.1f} %) and executed {} of {} planned "
      "cases: "
      "{}. Exit code {}.\n",
      to_string(assessment.verdict), assessment.scope, md(run.level), md(run.device), view::duration(run.duration_s),
      share, totals.executed, totals.planned, view::counts(totals), static_cast<int>(assessment.exit_code));
  for (std::size_t i = 0; i < std::min(kReasons, assessment.reasons.size()); ++i)
    out.line("- {}", md(assessment.reasons[i]));
  if (assessment.reasons.size() > kReasons)
    out.line("- and {} more, in report.json", assessment.reasons.size() - kReasons);
  out.blank();
  out.table({"status", "cases"});
  for (const auto& [status, n] : totals.by_status) {
    if (n > 0) out.row({std::string(to_string(status)), std::to_string(n)});
  }
  out.blank();
}

void write_environment(Markdown& out, const Run& run) {
  out.title("Environment");
  out.table({"what", "value"});
  std::string argv;
  for (const auto& word : run.argv) argv += fmt::format("{}{}", argv.empty() ? "" : " ", view::value(word));
  out.row({"run", code(run.id)});
  out.row({"command", code(argv)});
  out.row({"started", md(run.started)});
  out.row({"level, device", md(run.level) + ", " + md(run.device)});
  out.row({"master seed", std::to_string(run.master_seed)});
  for (const auto& [name, value] : view::environment(run)) out.row({md(name), md(value)});
  out.blank();
  const auto flags = view::flags(run);
  if (flags.empty()) return;
  out.table({"flag", "value", "origin"});
  for (const auto& flag : flags) out.row({code(flag.name), md(flag.value), md(flag.origin)});
  out.blank();
}

void write_results(Markdown& out, const Run& run) {
  out.title("Results");
  out.table({"suite", "outcome", "passed", "failed", "skipped", "no result", "time", "key metrics"});
  for (const auto& suite : run.suites) {
    const Totals totals = count({suite});
    out.row({md(suite.name), fmt::format("**{}**", to_string(outcome(suite))), std::to_string(totals.passed),
             std::to_string(totals.failed), std::to_string(totals.skipped), without_result(totals),
             view::duration(suite.duration_s), md(view::key_metrics(suite))});
  }
  out.blank();
  bool any = false;
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      const Status status = outcome(c);
      if (!executed(status) || tally(status) == Tally::passed) continue;
      if (!any) out.table({"case that did not pass", "status", "why"});
      any = true;
      out.row({code(c.id), std::string(to_string(status)), md(view::cut(view::why(c), 240))});
    }
  }
  if (any) out.blank();
}

void write_ways(Markdown& out, const Run& run) {
  const auto ways = view::ways(run);
  if (ways.empty()) return;
  out.title("Ways taken");
  out.table({"function", "ways"});
  for (const auto& [function, taken] : ways) out.row({code(function), md(taken)});
  out.blank();
}

void write_occurrences(Markdown& out, const view::FindingGroup& group) {
  constexpr std::size_t kShown = 5;
  const auto& all = group.occurrences;
  for (std::size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const auto& [finding, where] = all[i];
    out.line("- {}: {}", where ? code(where->id) : "the run", md(view::cut(finding->message, 600)));
  }
  if (all.size() > kShown) out.line("- and {} more, in report.json", all.size() - kShown);
  out.blank();
}

void write_evidence(Markdown& out, const Finding& finding) {
  constexpr std::size_t kRows = 12;
  const auto evidence = view::evidence(finding.evidence, kRows);
  if (!evidence.rows.empty()) {
    out.table({"evidence", "value"});
    for (const auto& [name, value] : evidence.rows) out.row({md(name), md(value)});
    if (evidence.left_out > 0) out.row({"...", fmt::format("{} more, in report.json", evidence.left_out)});
    out.blank();
  }
  for (const auto& [name, text] : evidence.texts) {
    out.line("{}:\n", md(name));
    out.block(text);
    out.blank();
  }
}

void write_findings(Markdown& out, const Run& run) {
  out.title("Findings");
  const auto groups = view::findings(run);
  if (groups.empty()) out.line("None.\n");
  int number = 0;
  for (const auto& group : groups) {
    const Finding& f = group.first();
    out.line("### {}. {} {} - {}\n", ++number, md(f.code), md(f.title), to_string(group.severity));
    out.line("Category {}, {}.\n", f.category.empty() ? "none" : md(f.category),
             view::plural(group.occurrences.size(), "occurrence"));
    write_occurrences(out, group);
    if (!f.cause.empty()) out.line("**Likely cause.** {}\n", md(f.cause));
    write_evidence(out, f);
    if (!f.next.empty()) out.line("**Next step.** {}\n", md(f.next));
    for (const auto& [title, command] :
         {std::pair{"Repeat it:", f.repro},
          {"Replay its bundle (--minimize makes it smaller):", view::replay_command(run, group)},
          {"Repeat it in Python alone:", view::python_command(group)}}) {
      if (command.empty()) continue;
      out.line("**{}**\n", title);
      out.block(command);
      out.blank();
    }
  }
}

// Findings that only follow from a cause: counted, and one of each shown.
void write_consequences(Markdown& out, const Run& run) {
  bool any = false;
  for (const LikelyCause& cause : run.causes) {
    for (const auto& group : view::findings(run, cause.id)) {
      if (!any) {
        out.title("What follows from these");
        out.table({"finding", "times", "follows from", "for example"});
      }
      any = true;
      const auto& [finding, where] = group.occurrences.front();
      out.row({md(finding->code + " " + finding->title), std::to_string(group.occurrences.size()),
               md(fmt::format("{}", fmt::join(cause.codes, ", "))),
               (where ? code(where->id) + ": " : "") + md(view::cut(finding->message, 160))});
    }
  }
  if (any) out.blank();
}

void write_performance(Markdown& out, const Run& run) {
  constexpr std::size_t kRates = 40;
  const auto gates = view::gates(run);
  const auto rates = view::rates(run);
  if (gates.empty() && rates.empty()) return;
  out.title("Performance against gates");
  if (!gates.empty()) {
    out.table({"case", "gate", "measured", "bound", "held"});
    for (const auto& [where, check] : gates) {
      out.row({code(where->id), md(check->name), md(view::measure(check->measured, check->unit)),
               md(check->comparator + " " + view::measure(check->bound, check->unit)), check->pass ? "yes" : "**no**"});
    }
    out.blank();
  }
  if (rates.empty()) return;
  out.table({"case", "metric", "value"});
  for (std::size_t i = 0; i < std::min(kRates, rates.size()); ++i) {
    out.row({code(rates[i].where->id), md(rates[i].metric->name),
             md(view::measure(rates[i].metric->value, rates[i].metric->unit))});
  }
  if (rates.size() > kRates) out.row({"...", "", fmt::format("{} more, in report.json", rates.size() - kRates)});
  out.blank();
}

void write_figures(Markdown& out, const Run& run) {
  constexpr std::size_t kRows = 12;
  const auto charts = view::charts(run);
  if (charts.empty()) return;
  out.title("Figures");
  for (const auto& [where, chart] : charts) {
    out.line("**{}** ({})\n", md(chart.title), code(where->id));
    const Table whole = table_of(chart), table = thinned(whole, kRows);
    std::vector<std::string> cells;
    cells.reserve(table.head.size());
    for (const auto& name : table.head) cells.push_back(md(name));
    out.table(cells);
    for (const auto& row : table.rows) {
      cells.clear();
      for (const auto& cell : row) cells.push_back(md(cell));
      out.row(cells);
    }
    out.blank();
    if (whole.rows.size() > table.rows.size())
      out.line("{} of {} points; all of them, drawn, in report.html.\n", table.rows.size(), whole.rows.size());
  }
}

void write_list(Markdown& out, const std::string& title, const std::vector<std::string>& items, bool numbered) {
  out.title(title);
  for (std::size_t i = 0; i < items.size(); ++i)
    out.line("{} {}", numbered ? fmt::format("{}.", i + 1) : "-", md(items[i]));
  out.blank();
}

}  // namespace

std::string to_markdown(const Run& run) {
  Markdown out;
  const Assessment assessment = assess(run);
  out.line("# Validation report: {}\n", to_string(assessment.verdict));
  write_banners(out, run);
  write_causes(out, run);
  write_summary(out, run, assessment, count(run.suites));
  write_findings(out, run);
  write_consequences(out, run);
  write_results(out, run);
  write_ways(out, run);
  write_performance(out, run);
  write_figures(out, run);
  write_list(out, "What was not tested", assessment.not_tested, false);
  write_list(out, "Next steps", view::next_steps(run, assessment), true);
  write_environment(out, run);
  return out.take();
}

}  // namespace reports
