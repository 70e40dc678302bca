// What is different between runs: in what went in (environment, configuration, plan), then in what came out (verdict,
// causes, findings, outcomes, ways, checks, figures). compare() is a pure function of the runs; what is equal in all of
// them is in none of its lists. Two writers lay it out: to_text() and to_json() (schema/comparison-1.schema.json).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/model.hpp"

namespace reports {

inline constexpr const char* kComparisonSchema = "nsa-validate/comparison";
inline constexpr const char* kComparisonSchemaVersion = "1.0.0";

struct NamedRun {
  std::string name;  // what it is called for the reader: the path that was given
  Run run;           // its causes found (causes.hpp)
};

// A run, as it stands at the head.
struct ComparedRun {
  std::string name, id, level, device, started;
  double duration_s = 0;
  Assessment assessment;
  Totals totals;
  bool complete = false;  // the journal has its end
  std::optional<ExitCode> interruption;
  Json argv, faults;
  int busy_cases = 0;  // in which other processes were at work (fact "load")
  [[nodiscard]] bool ended() const { return complete && !interruption; }
};

// One thing that is not the same in all runs; of its lists, one entry a run.
struct Difference {
  std::string name;          // "gpus[0].name", "settings.values.run.seed"
  std::vector<Json> values;  // null: that run does not have it, or does not say
};
// From run `step` to the one after it. A value with its origin, {"value", "origin"}, has the same effect whoever set
// it.
[[nodiscard]] bool differs(const Difference& row, std::size_t step);
[[nodiscard]] bool differs_in_effect(const Difference& row, std::size_t step);

// A check of a case that holds in one run and fails in another (`decides`), or of which something else is asked.
struct CheckRow {
  std::string where, name;   // case, check
  std::vector<Json> values;  // {"pass", "comparator", "bound"}; null: the case did not come to it
  bool decides = false;
};

// A finding, followed through the runs: the same code in the same case, at the same place where a case has several.
struct FindingRow {
  enum class Seen {
    found,
    clean,     // its case ran to its end without it
    no_answer  // its case was not planned, did not run, or did not get to its end
  };
  struct InRun {
    Seen seen = Seen::no_answer;
    std::string where;  // id of the case, "" for a finding of the run
    Severity severity = Severity::info;
    std::string message;
    Json evidence;
  };
  enum class Change {
    none,           // in neither of the two
    same,           // still there
    changed,        // still there, with another severity, place or evidence
    appeared,       // new
    gone,           // its case is clean now
    first_told,     // there now, and nobody could tell before
    no_longer_told  // it was there, and nobody can tell now
  };
  struct Step {
    Change change = Change::none;
    std::vector<std::string> what;  // of `changed`: "severity", "place", "evidence"
  };
  std::string code, title;
  std::vector<InRun> by_run;
  std::vector<Step> steps;  // steps[i]: from run i to run i + 1
};

// A metric of a case. A change is one only beyond the noise that the report itself knows: the intervals of the two
// values and, where the case measured it, the difference that a build shows against itself.
struct Figure {
  struct InRun {
    bool ran = false;           // the case was executed
    std::optional<Json> value;  // nothing: it did not tell this figure
    std::string unit;
    std::optional<std::pair<double, double>> interval;
    double noise_percent = 0;  // 0: not measured
    bool busy = false;         // others were at work meanwhile
  };
  enum class Change {
    same,
    changed,       // beyond the noise
    within_noise,  // the intervals meet, or the change is below the noise
    no_interval,   // another number; one of the two has no interval, so nobody can judge it
    machine_busy,  // beyond the noise, and others were at work: not judged
    not_finite,    // NaN or infinite in one, or differently so in both
    missing,       // the case ran in both, and one of them does not tell it
    other_unit,    // cannot be compared
    not_run        // the case did not run in one of them: its outcome says that
  };
  struct Step {
    Change change = Change::same;
    std::optional<double> percent;  // of the value before; nothing from zero, or where one is no number
  };
  std::string where, name;  // case, metric
  std::vector<InRun> by_run;
  std::vector<Step> steps;
};

// The judgement from one run to the next.
struct ComparedStep {
  int in_both = 0;   // cases that ran in both
  int went_in = 0;   // differences in effect
  int origins = 0;   // settings that only came from elsewhere
  int came_out = 0;  // results that differ: verdict, findings, outcomes, ways, checks, figures beyond the noise
  int inexact = 0;   // of those figures that nobody can judge: that are no times, so that the same seed gives the same
  int not_judged = 0;   // figures, evidence and bounds that differ, and nothing says whether that means something
  std::string verdict;  // a sentence when the two sides do not fit together, or nothing is different; else ""
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::vector<Difference> environment, configuration, plan;  // what went in
  std::vector<Difference> verdict, causes;                   // causes: {"rank", "severity", "what"}
  std::vector<FindingRow> findings;                          // all of them, also those still there
  std::vector<Difference> outcomes;                          // {"status", "reason_code"}; null: not planned
  std::vector<Difference> ways;  // by function: the backends, variants and kernels that ran in cases that all runs ran
  std::vector<CheckRow> checks;
  std::vector<Figure> figures;
  int equal_figures = 0, never_finite = 0;  // never_finite: NaN or infinite in every run, and in no list
  std::vector<ComparedStep> steps;
};

// Of two runs or more, in their order, each against the one before it. Throws std::invalid_argument: fewer than two,
// or the same run twice, by its id.
[[nodiscard]] Comparison compare(const std::vector<NamedRun>& runs);

// Text for a terminal, at most `rows` rows of each table. Its last line begins with "compare: " and says how much is
// different.
[[nodiscard]] std::string to_text(const Comparison& comparison, std::size_t rows = 24);
[[nodiscard]] Json to_json(const Comparison& comparison);

// Words of the JSON: "appeared", "within_noise", ...
[[nodiscard]] std::string_view to_string(FindingRow::Seen seen);
[[nodiscard]] std::string_view to_string(FindingRow::Change change);
[[nodiscard]] std::string_view to_string(Figure::Change change);

}  // namespace reports
