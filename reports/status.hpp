// The closed vocabulary of a run: what can become of a case, how grave a finding is, what the run's verdict is and
// which exit code follows. ONE table each (status.cpp); every writer and every reader goes through it, so that a new
// word cannot be forgotten in one place (switches over these enums are exhaustive, -Wswitch-enum).
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace reports {

enum class Status {
  pass,
  fail,          // a check failed; carries at least one finding of severity degrade, block or isolate
  error,         // the harness or the case's own code threw something that is not a finding
  crash,         // the worker died by a signal or vanished (exit without a word) inside the case
  hang,          // no progress within the limit; killed by the watchdog
  skip,          // not run, with a reason code
  inconclusive,  // ran, but the evidence does not decide
  blocked,       // a suite that it requires has an `isolate` finding
  infra_error,   // the machine, not the product (device lost, disk full)
  not_run,       // planned, but the run ended before
  cancelled      // interrupted by the user
};

// Severity says what the reader should do, mildest first.
enum class Severity { info, warn, degrade, block, isolate };

enum class Verdict { ready, conditional, not_ready };

// Stable, below 64 (but for the two signal codes); precedence in status.cpp, worst wins.
enum class ExitCode : int {
  ready = 0,
  failed = 1,            // a numerical or behavioural failure, or a required case skipped
  usage = 2,             // bad command line, configuration, name, schema or journal
  nothing_executed = 3,  // empty selection, everything skipped or blocked
  infrastructure = 4,    // no usable GPU where one is required, device lost, disk full
  crash = 5,             // crash contained
  hang = 6,              // hang contained
  performance = 7,       // correctness is green, a speed gate failed
  inconclusive = 8,      // nothing worse than "cannot tell" or an incomplete run
  mutant_survived = 9,   // self-test: a fault that must be caught was not
  internal = 10,         // a bug of the harness
  incompatible = 11,     // schema major or GPU differs from the baseline's
  interrupted = 130,     // SIGINT
  terminated = 143       // SIGTERM
};

struct ExitCodeRow {
  ExitCode code;
  int precedence;  // lower wins
  std::string_view meaning;
};

[[nodiscard]] std::span<const ExitCodeRow> exit_code_table();
[[nodiscard]] ExitCode worse(ExitCode a, ExitCode b);

[[nodiscard]] std::string_view to_string(Status status);      // "pass", "infra_error", ...
[[nodiscard]] std::string_view to_string(Severity severity);  // "info", ...
[[nodiscard]] std::string_view to_string(Verdict verdict);    // "READY", "CONDITIONAL", "NOT READY"
[[nodiscard]] std::optional<Status> parse_status(std::string_view word);
[[nodiscard]] std::optional<Severity> parse_severity(std::string_view word);

// Executed: the case's own code ran to some end (pass, fail, error, crash, hang, inconclusive).
[[nodiscard]] bool executed(Status status);
// How the summary line counts it: passed (pass), failed (fail, error, crash, hang), skipped (skip), or under its own
// word, because it says nothing about the case (inconclusive, blocked, infra_error, not_run, cancelled).
enum class Tally { passed, failed, skipped, own_word };
[[nodiscard]] Tally tally(Status status);

}  // namespace reports
