// The report model: what a run was, planned and found. It is derived from the journal alone (journal.hpp); every
// writer (writers.hpp) is a pure function of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reports/json.hpp"
#include "reports/status.hpp"

namespace reports {

struct Finding {
  std::string code;  // "NSA-A005"; the harness's and the suites' code tables explain it
  Severity severity = Severity::info;
  // environment, init, numerics, gradient, anomaly, routing, memory, crash, performance, harness, infrastructure (about
  // the run itself: exit code 4)
  std::string category;
  std::string title;              // the code's one-line name
  std::string message;            // what was seen here, with the numbers
  std::string cause;              // likely cause, in words
  std::string next;               // next step
  std::string repro;              // one command that repeats it
  Json evidence;                  // object; whatever the check recorded
  std::string follows_from = {};  // id of the likely cause that it is a consequence of; "": it stands for itself
};

// One named comparison. `measured` and `bound` are what was compared, in `unit`.
struct Check {
  std::string name;
  bool pass = false;
  Json measured;
  std::string comparator;  // "<=", ">=", "==", "in"
  Json bound;
  std::string unit;
};

struct Metric {
  std::string name;
  Json value;  // number, or one of the three words for the non-finite
  std::string unit;
};

struct Case {
  std::string id;    // "s_sweep/forward[S=512,dtype=fp32]"
  std::string hash;  // 8 hex digits of the id
  std::string suite;
  std::string name;
  Json params;           // object
  std::string level;     // smoke | standard
  bool required = true;  // false: planned, but its absence does not lower the verdict (a GPU-only case on a CPU)
  Status status = Status::not_run;
  std::string reason_code;  // skip, blocked, not_run: "no_cuda", "blocked_by:preflight", ...
  std::string reason;
  double duration_s = 0;
  std::uint64_t seed = 0;
  std::string last_phase;  // where a crash or hang struck
  std::vector<Check> checks;
  std::vector<Metric> metrics;
  std::vector<Finding> findings;
  Json facts;  // object: tables and records for the reader (effective flags, routes, per-layer statistics, ...)
  std::vector<std::string> artifacts;  // paths relative to the run's folder
  std::string repro;
};

struct Suite {
  std::string name;
  std::string purpose;
  std::vector<std::string> requires_suites;
  std::vector<Case> cases;
  double duration_s = 0;
};

// Everything that the report says, decided in one place by assess().
struct Assessment {
  Verdict verdict = Verdict::not_ready;
  ExitCode exit_code = ExitCode::internal;
  std::vector<std::string> reasons;     // why not READY, or on what evidence READY rests
  std::vector<std::string> not_tested;  // skips, blocked and not-run cases, and what this level never covers
  std::string scope;                    // "ready for the standard level", ...
};

// What most likely made a part of the findings (causes.hpp).
struct LikelyCause {
  struct Consequence {
    std::string code, title;
    int findings = 0;
  };
  std::string id;    // of a rule, or of the code that stands alone
  std::string what;  // one sentence
  int weight = 0;
  Severity severity = Severity::info;     // of the finding that leads
  std::vector<std::string> because;       // what was seen, and what was clean
  std::string next, confirm;              // what to do; one command that shows it
  std::vector<std::string> codes;         // of the findings that point at it, the leading one first
  std::vector<Consequence> consequences;  // findings that only follow from it, by code
};

// Where the bundle of a failing case is (bundle.hpp).
struct BundlePlace {
  std::string path;     // of its folder, relative to the run's
  std::string command;  // that replays it
};

struct Run {
  std::string id;
  Json argv;
  std::string level;
  std::string device;  // cpu | cuda
  std::uint64_t master_seed = 0;
  std::string started, ended;  // RFC 3339
  double duration_s = 0;
  double harness_s = 0;                  // time not spent inside a case: the harness's own share
  bool partial = false;                  // only a part of the level was selected, by name
  bool complete = false;                 // the journal has its run_end
  std::optional<ExitCode> interruption;  // 130/143, or infrastructure (disk full), as the supervisor recorded it
  bool torn_tail = false;                // the last line was cut off (a killed run): expected, and said
  Json provenance;                       // object, by part (harness/provenance.hpp)
  Json faults;                           // array of the planted faults' names; empty on a real run
  std::vector<Suite> suites;
  std::vector<Finding> findings;               // findings that belong to no case
  std::vector<LikelyCause> causes;             // the likeliest first; not of the journal: find_causes() derives them
  std::map<std::string, BundlePlace> bundles;  // by case; not of the journal: who has written them says so
};

// Severity degrade, block or isolate: the case that carries it has failed.
[[nodiscard]] bool failing(Severity severity);

// What became of a case when its findings are taken into account: one that carries a failing finding has failed, also
// when it calls itself a pass, a skip or inconclusive, or was cancelled after the finding. The one place that decides
// it; counts, verdict and every writer ask here, never Case::status.
[[nodiscard]] Status outcome(const Case& c);
// The worst outcome of a suite's cases; "pass" when all passed or were skipped without need, "skip" when nothing ran.
[[nodiscard]] Status outcome(const Suite& suite);

// Verdict and exit code:
//  NOT READY    any block or isolate finding; a case that crashed, hung or erred, or failed without saying why
//  CONDITIONAL  any degrade finding; a required case that did not run; a case that is inconclusive or the machine's
//               fault; an interrupted or incomplete run; nothing executed at all
//  READY        otherwise
// READY <=> exit code 0. Findings of category "performance" alone give exit code 7.
[[nodiscard]] Assessment assess(const Run& run);

// What neither passed, failed nor was skipped is counted under its own word (Tally::own_word), and nowhere else.
struct Totals {
  int planned = 0, executed = 0, passed = 0, failed = 0, skipped = 0;
  std::vector<std::pair<Status, int>> by_status;  // every status, in table order, zeros included
  Totals();
  void add(Status status);
};
[[nodiscard]] Totals count(const std::vector<Suite>& suites);
[[nodiscard]] std::string without_result(const Totals& totals);  // "3 blocked, 118 cancelled"; "" when there are none
[[nodiscard]] std::string counts(const Totals& totals);          // "49 passed, 0 failed, 1 skipped, 118 cancelled"

}  // namespace reports
