// What became of the planted faults: one trial each, judged by what its run has left, and the tables over all of them.
// Pure: no process, no file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reports/json.hpp"
#include "suites/faults/planted.hpp"

namespace suites::selftest {

using reports::Json;

enum class Outcome {
  caught,        // a finding above `warn` with an expected code (or the expected exit code)
  by_crash,      // the harness's own findings alone (NSA-X...): something broke, nobody says what
  other_reason,  // not READY, for another reason than the fault's
  survived,      // READY
  equivalent,    // a mutant of the sources that survived, and of which somebody says why it changes nothing
  not_run,       // cannot be planted here
  broken         // the run says nothing: no report, or none that can be read
};
[[nodiscard]] std::string_view to_string(Outcome outcome);  // "caught", "by a crash only", ...
[[nodiscard]] std::optional<Outcome> parse_outcome(std::string_view word);

// What a run has left.
struct Evidence {
  Json report;                      // of report.json; null: `trouble` says why there is none
  std::string began;                // the journal's time of run_begin
  std::vector<Json> findings = {};  // the journal's, in order
  int exit_code = 0;                // 128 + signal
  bool reached = false;             // a mutant of the sources was computed
  bool overran = false;             // it did not end by itself
  std::string trouble = {};
};

struct Trial {
  std::string fault, group, found_by;
  bool must_catch = false;
  bool any_code = false;  // a mutant of the sources: its cause is not known, and cause_first is never told
  std::string what;
  Outcome outcome = Outcome::broken;
  bool cause_first = false;           // the report's first cause is the fault's
  std::optional<double> seconds;      // from the run's begin to the first finding of an expected code
  std::vector<std::string> expected;  // codes
  std::vector<std::string> found;     // codes of all findings above `warn`, each once
  bool reached = false;               // of a mutant of the sources: it was computed
  std::string first_suite;            // whose case has the first finding above `warn`
  std::vector<std::string> ran;       // cases that began
  std::vector<std::string> noticed;   // cases with a finding above `warn`
  std::string why;                    // it was not run, is broken, or red for another reason
  std::string command;                // runs it again
  std::string folder;                 // what it left
  double wall_s = 0;
};
[[nodiscard]] Trial judge(const Planted& fault, const Evidence& evidence);
[[nodiscard]] Trial not_run(const Planted& fault, const std::string& why);

// Findings above `warn` of a run without a fault; also what makes it red without any.
[[nodiscard]] std::vector<std::string> false_alarms(const Evidence& evidence);

// "2026-11-26T07:00:59.769Z"; nullopt for what is no such time.
[[nodiscard]] std::optional<double> seconds_between(const std::string& begin, const std::string& end);

struct Score {
  std::string name;  // of the group or suite
  std::size_t planted = 0, caught = 0, by_crash = 0, other_reason = 0, survived = 0, equivalent = 0, not_run = 0,
              broken = 0;
  std::size_t cause_first = 0;
  std::optional<double> median_s;  // to detection, of those caught
};
[[nodiscard]] Score score(const std::string& name, std::span<const Trial> trials);
[[nodiscard]] std::vector<Score> by_group(std::span<const Trial> trials);  // in the order of the trials
[[nodiscard]] std::vector<Score> by_suite(
    std::span<const Trial> trials);  // one that two are to find counts in both, one that any may find in none
// "parity" and "forward" of "parity,forward"; "parity" of "parity/attention[S=128]".
[[nodiscard]] std::vector<std::string> suites_of(const std::string& found_by);

// Which codes caught something, and which did not.
struct CodeScores {
  std::vector<std::pair<std::string, std::size_t>> caught;  // code, faults that it was expected of and named
  std::vector<std::string> silent;     // expected of a fault that ran, and raised above `warn` by none of them
  std::vector<std::string> unplanted;  // no fault of the whole catalogue expects it
};
[[nodiscard]] CodeScores by_code(std::span<const Trial> trials, std::span<const Planted> catalogue,
                                 std::span<const std::string> codes);

// Of a must-catch, what is no catch: survived, by a crash only, red for another reason.
[[nodiscard]] std::vector<std::string> missed(std::span<const Trial> trials);

// The upper end of the one-sided Clopper-Pearson interval for the rate of `events` in `runs`: the largest rate at which
// so few are still to be expected with a chance of 1 - confidence. 1 for no run.
[[nodiscard]] double clopper_pearson_upper(std::size_t events, std::size_t runs, double confidence = 0.95);

}  // namespace suites::selftest
