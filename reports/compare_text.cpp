// The comparison for a terminal: compact tables, grouped, nothing that is equal.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reports/compare_parts.hpp"
#include "reports/lines.hpp"
#include "reports/text_table.hpp"
#include "reports/view.hpp"

namespace reports {

namespace {

using text::Row;
using text::safe;

constexpr std::size_t kNameBytes = 80, kNoteBytes = 160;

std::string plural(int n, const std::string& noun) { return view::plural(static_cast<std::size_t>(n), noun); }

class Text : public Lines {
 public:
  Text(std::size_t runs, std::size_t rows) : runs_(runs), rows_(rows) {}

  void table(const std::string& title, const std::vector<Row>& rows) {
    text_ += text::table(title, runs_, rows, rows_);
  }
  // As wide as fits beside the others.
  [[nodiscard]] std::size_t cell_bytes() const { return runs_ <= 2 ? 44 : runs_ == 3 ? 28 : 20; }

 private:
  std::size_t runs_, rows_;
};

std::string suite_of(const std::string& case_id) { return case_id.substr(0, case_id.find('/')); }

std::vector<Row> rows_of(const Text& out, const std::vector<Difference>& differences, const std::string& absent) {
  std::vector<Row> rows;
  rows.reserve(differences.size());
  for (const Difference& difference : differences)
    rows.push_back({safe(difference.name, kNameBytes), text::cells(difference.values, absent, out.cell_bytes())});
  return rows;
}

// -- the runs

void write_run(Text& out, std::size_t number, const ComparedRun& run, std::size_t verdict_width,
               std::size_t name_width) {
  const std::string verdict(to_string(run.assessment.verdict));
  out.line("{}  {}  {}  {}, {} on {}, {}, {}", number, text::padded(verdict, verdict_width),
           text::padded(safe(run.name, kNameBytes), name_width), safe(run.id, kNameBytes), run.level,
           safe(run.device, kNameBytes), counts(run.totals), view::duration(run.duration_s));
  if (!run.ended())
    out.line("   unfinished: {}; it is compared as far as it goes, {} of {} cases",
             run.complete && run.interruption
                 ? fmt::format("interrupted with exit code {}", static_cast<int>(*run.interruption))
                 : "its journal has no end",
             run.totals.executed, run.totals.planned);
  if (run.faults.is_array() && !run.faults.empty())
    out.line("   planted faults: {}", safe(view::value(run.faults), kNoteBytes));
  if (run.busy_cases > 0) out.line("   others were at work on the machine in {} of its cases", run.busy_cases);
}

void write_runs(Text& out, const Comparison& all) {
  std::size_t verdict = 0, name = 0;
  for (const ComparedRun& run : all.runs) {
    verdict = std::max(verdict, to_string(run.assessment.verdict).size());
    name = std::max(name, text::width(safe(run.name, kNameBytes)));
  }
  for (std::size_t i = 0; i < all.runs.size(); ++i) write_run(out, i + 1, all.runs[i], verdict, name);
}

// -- what went in

std::string absent_word(const std::string& name) {
  if (name.starts_with("environment.") || name.starts_with("flags.set.")) return "not set";
  if (name.starts_with("suite ") || name.starts_with("case ")) return "not planned";
  return name.find('[') != std::string::npos ? "none" : "not recorded";
}

std::string short_name(const std::string& name) {
  for (const std::string_view prefix : {"settings.values.", "flags.set.", "environment."})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

std::vector<Row> input_rows(const Text& out, const std::vector<Difference>& differences) {
  std::vector<Row> rows;
  for (const Difference& difference : differences) {
    rows.push_back({safe(short_name(difference.name), kNameBytes),
                    text::cells(difference.values, absent_word(difference.name), out.cell_bytes())});
    // "case s_sweep/length[S=7]", "required: preflight/cuda": many of a suite say the same
    if (difference.name.find(' ') != std::string::npos && difference.name.find('/') != std::string::npos)
      rows.back().fold = suite_of(difference.name) + fmt::format("{}", fmt::join(rows.back().cells, "\n"));
  }
  return rows;
}

void write_inputs(Text& out, const Comparison& all) {
  const bool same = all.environment.empty() && all.configuration.empty() && all.plan.empty();
  out.line("\nwhat went in{}", same ? ": no difference is recorded" : "");
  out.table("environment", input_rows(out, all.environment));
  out.table("configuration", input_rows(out, all.configuration));
  out.table("plan", input_rows(out, all.plan));
}

// -- what came out

// What became of a row from run to run; with more than two of them it says at which.
template <typename Of>
std::string steps_text(std::size_t steps, Of of) {
  std::string text;
  for (std::size_t i = 0; i < steps; ++i) {
    const std::string part = of(i);
    if (part.empty()) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : "; ", steps > 1 ? fmt::format("{}: ", i + 2) : "", part);
  }
  return safe(text, kNoteBytes);
}

std::string seen_text(const FindingRow::InRun& in) {
  switch (in.seen) {
    case FindingRow::Seen::found:
      return std::string(to_string(in.severity));
    case FindingRow::Seen::clean:
      return "-";
    case FindingRow::Seen::no_answer:
      return "?";
  }
  return "";
}

// The first of what differs: "error 0.1 -> 0.2 and 3 more".
std::string evidence_text(const FindingRow::InRun& before, const FindingRow::InRun& now) {
  constexpr std::size_t kShown = 2, kBytes = 24;
  const std::vector<Difference> rows = comparing::compare_leaves({before.evidence, now.evidence});
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, rows.size()); ++i) {
    const auto cells = text::cells(rows[i].values, "nothing", kBytes);
    text += fmt::format("{}{} {} -> {}", i == 0 ? "" : ", ", safe(rows[i].name, kBytes), cells[0], cells[1]);
  }
  if (rows.size() > kShown) text += fmt::format(" and {} more", rows.size() - kShown);
  return text.empty() ? "other words" : "evidence: " + text;
}

std::string changed_text(const FindingRow& row, std::size_t step) {
  const FindingRow::InRun &before = row.by_run[step], &now = row.by_run[step + 1];
  std::string text;
  for (const std::string& what : row.steps[step].what) {
    text += text.empty() ? "" : "; ";
    if (what == "severity")
      text += fmt::format("severity {} -> {}", to_string(before.severity), to_string(now.severity));
    else if (what == "place" && before.where != now.where)
      text += fmt::format("moved from {}", before.where.empty() ? "the run" : before.where);
    else if (what == "place")
      text += "another place";
    else
      text += evidence_text(before, now);
  }
  return text;
}

std::string finding_text(const FindingRow& row, std::size_t step) {
  switch (row.steps[step].change) {
    case FindingRow::Change::none:
    case FindingRow::Change::same:
      return "";
    case FindingRow::Change::changed:
      return changed_text(row, step);
    case FindingRow::Change::appeared:
      return "new";
    case FindingRow::Change::gone:
      return "gone";
    case FindingRow::Change::first_told:
      return "new; nobody could tell before";
    case FindingRow::Change::no_longer_told:
      return "nobody can tell now";
  }
  return "";
}

// 2: another result; 1: other evidence only; 0: still there, the same.
int weight(const FindingRow& row) {
  int most = 0;
  for (const FindingRow::Step& step : row.steps) {
    if (step.change == FindingRow::Change::none || step.change == FindingRow::Change::same) continue;
    most = std::max(most, step.what == std::vector<std::string>{"evidence"} ? 1 : 2);
  }
  return most;
}

void write_findings(Text& out, const Comparison& all) {
  std::vector<Row> rows;
  for (const int wanted : {2, 1}) {
    for (const FindingRow& finding : all.findings) {
      if (weight(finding) != wanted) continue;
      const std::string& where = finding.by_run.back().where;
      Row row{safe(fmt::format("{} {}", finding.code, where.empty() ? "the run" : where), kNameBytes), {}};
      for (const FindingRow::InRun& in : finding.by_run) row.cells.push_back(seen_text(in));
      row.note = steps_text(finding.steps.size(), [&](std::size_t i) { return finding_text(finding, i); });
      if (wanted == 2) row.note += fmt::format(" ({})", safe(finding.title, kNameBytes));
      row.fold = fmt::format("{} {}\n{}", finding.code, fmt::join(row.cells, "\n"), wanted == 2 ? row.note : "");
      rows.push_back(std::move(row));
    }
  }
  out.table("findings", rows);
  if (const auto same = std::count_if(all.findings.begin(), all.findings.end(),
                                      [](const FindingRow& finding) { return weight(finding) == 0; });
      same > 0)
    out.line("  {} still there, the same in all runs", view::plural(static_cast<std::size_t>(same), "finding"));
}

void write_causes(Text& out, const Comparison& all) {
  std::vector<Row> rows = rows_of(out, all.causes, "-");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& values = all.causes[i].values;
    const auto last = std::find_if(values.rbegin(), values.rend(), [](const Json& value) { return !value.is_null(); });
    rows[i].note = safe(last->at("what").get<std::string>(), kNoteBytes);
  }
  out.table("likely causes", rows);
}

void write_outcomes(Text& out, const Comparison& all) {
  std::vector<Row> rows = rows_of(out, all.outcomes, "not planned");
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].fold = fmt::format("{}\n{}", suite_of(all.outcomes[i].name), fmt::join(rows[i].cells, "\n"));
  out.table("outcomes", rows);
}

// Those that hold in one run and fail in another, then those of which something else is asked.
void write_checks(Text& out, const Comparison& all) {
  std::vector<Row> rows;
  for (const bool wanted : {true, false}) {
    for (const CheckRow& check : all.checks) {
      if (check.decides != wanted) continue;
      rows.push_back({safe(check.name, kNameBytes), text::cells(check.values, "not reached", out.cell_bytes()), "",
                      safe(check.where, kNameBytes), wanted ? "" : suite_of(check.where)});
    }
  }
  out.table("checks", rows);
}

std::string figure_text(const Figure& figure, std::size_t step) {
  const auto& [change, percent] = figure.steps[step];
  const std::string by = percent ? fmt::format("{:+.{}f} %, ", *percent, std::abs(*percent) < 0.1 ? 4 : 1) : "";
  switch (change) {
    case Figure::Change::same:
    case Figure::Change::not_run:
      return "";
    case Figure::Change::changed:
      return by + "beyond the noise";
    case Figure::Change::within_noise:
      return by + "within noise";
    case Figure::Change::no_interval:
      return by + "no interval: not judged";
    case Figure::Change::machine_busy:
      return by + "the machine was busy: not judged";
    case Figure::Change::not_finite:
      return "not a finite number";
    case Figure::Change::missing:
      return figure.by_run[step + 1].value ? "missing before" : "missing now";
    case Figure::Change::other_unit:
      return "another unit: not compared";
  }
  return "";
}

// How much a figure tells: what is another value first, then what one run lacks, what nobody can judge, and noise.
std::pair<int, double> weight(const Figure& figure) {
  std::pair<int, double> most{0, 0};
  for (const auto& [change, percent] : figure.steps) {
    int kind = 0;
    if (change == Figure::Change::changed || change == Figure::Change::not_finite) kind = 4;
    if (change == Figure::Change::missing || change == Figure::Change::other_unit) kind = 3;
    if (change == Figure::Change::no_interval || change == Figure::Change::machine_busy) kind = 2;
    if (change == Figure::Change::within_noise) kind = 1;
    constexpr double kFromZero = 1e300;
    most = std::max(most, {kind, std::abs(percent.value_or(kFromZero))});
  }
  return most;
}

Row figure_row(const Figure& figure) {
  std::vector<Json> values;
  values.reserve(figure.by_run.size());
  for (const Figure::InRun& in : figure.by_run) values.push_back(in.value.value_or(Json()));
  constexpr std::size_t kBytes = 24, kUnitBytes = 16;
  Row row{safe(figure.name, kNameBytes), text::cells(values, "missing", kBytes)};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Figure::InRun& in = figure.by_run[i];
    if (!in.value && !in.ran) row.cells[i] = "not run";
    if (in.value && in.unit != "1" && !in.unit.empty()) row.cells[i] += " " + safe(in.unit, kUnitBytes);
  }
  row.note = steps_text(figure.steps.size(), [&](std::size_t i) { return figure_text(figure, i); });
  row.group = safe(figure.where, kNameBytes);
  if (weight(figure).first == 3) row.fold = figure.where + "\n" + row.note;  // missing
  return row;
}

// The figures of a case stay together; the case with the one that tells most comes first.
void write_figures(Text& out, const Comparison& all) {
  std::map<std::string, std::pair<int, double>> of_case;
  std::vector<const Figure*> sorted;
  for (const Figure& figure : all.figures) {
    sorted.push_back(&figure);
    of_case[figure.where] = std::max(of_case[figure.where], weight(figure));
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Figure* a, const Figure* b) {
    if (a->where == b->where) return weight(*a) > weight(*b);
    return std::pair(of_case[a->where], b->where) > std::pair(of_case[b->where], a->where);
  });
  std::vector<Row> rows;
  rows.reserve(sorted.size());
  for (const Figure* figure : sorted) rows.push_back(figure_row(*figure));
  out.table("figures", rows);
  if (all.equal_figures > 0) out.line("  {} the same in all runs", plural(all.equal_figures, "figure"));
  if (all.never_finite > 0) out.line("  {} NaN or infinite in all runs", plural(all.never_finite, "figure"));
}

void write_results(Text& out, const Comparison& all) {
  out.line("\nwhat came out");
  out.table("verdict", rows_of(out, all.verdict, "no"));
  write_causes(out, all);
  write_findings(out, all);
  write_outcomes(out, all);
  out.table("ways that ran", rows_of(out, all.ways, "none"));
  write_checks(out, all);
  write_figures(out, all);
}

std::string counted(const ComparedStep& step) {
  const auto differences = [](int n) { return n == 0 ? "no difference" : plural(n, "difference"); };
  return fmt::format("{} in what went in, {} in what came out{}; {} ran in both", differences(step.went_in),
                     differences(step.came_out),
                     step.not_judged > 0 ? fmt::format(", {} not judged", step.not_judged) : "",
                     plural(step.in_both, "case"));
}

}  // namespace

std::string to_text(const Comparison& comparison, std::size_t rows) {
  Text out(comparison.runs.size(), rows);
  write_runs(out, comparison);
  write_inputs(out, comparison);
  write_results(out, comparison);
  out.blank();
  const std::size_t steps = comparison.steps.size();
  const auto which = [&](std::size_t i) { return steps > 1 ? fmt::format("{} -> {}: ", i + 1, i + 2) : ""; };
  std::string last;
  for (std::size_t i = 0; i < steps; ++i) {
    const ComparedStep& step = comparison.steps[i];
    if (!step.verdict.empty()) out.line("{}{}", which(i), step.verdict);
    last += fmt::format("{}{}{}", i == 0 ? "" : " | ", which(i), counted(step));
  }
  out.line("compare: {}", last);
  return out.take();
}

}  // namespace reports
