#include "reports/status.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace reports {

namespace {

struct StatusRow {
  Status status;
  std::string_view word;
  bool executed;
  Tally tally;
};

constexpr std::array kStatuses{
    StatusRow{Status::pass, "pass", true, Tally::passed},
    StatusRow{Status::fail, "fail", true, Tally::failed},
    StatusRow{Status::error, "error", true, Tally::failed},
    StatusRow{Status::crash, "crash", true, Tally::failed},
    StatusRow{Status::hang, "hang", true, Tally::failed},
    StatusRow{Status::skip, "skip", false, Tally::skipped},
    StatusRow{Status::inconclusive, "inconclusive", true, Tally::own_word},
    StatusRow{Status::blocked, "blocked", false, Tally::own_word},
    StatusRow{Status::infra_error, "infra_error", false, Tally::own_word},
    StatusRow{Status::not_run, "not_run", false, Tally::own_word},
    StatusRow{Status::cancelled, "cancelled", false, Tally::own_word},
};

struct SeverityRow {
  Severity severity;
  std::string_view word;
};

constexpr std::array kSeverities{
    SeverityRow{Severity::info, "info"},       SeverityRow{Severity::warn, "warn"},
    SeverityRow{Severity::degrade, "degrade"}, SeverityRow{Severity::block, "block"},
    SeverityRow{Severity::isolate, "isolate"},
};

// An interruption stands right below a bug of the harness: whoever sent the signal expects 128 + its number, whatever
// the cases before it had found (the report says that).
constexpr std::array kExitCodes{
    ExitCodeRow{ExitCode::internal, 0, "internal error of the harness (a bug)"},
    ExitCodeRow{ExitCode::interrupted, 1, "interrupted (SIGINT); the journal is complete up to that point"},
    ExitCodeRow{ExitCode::terminated, 1,
                "terminated (SIGTERM, SIGHUP, SIGUSR1, SIGXCPU); the journal is complete up to that point"},
    ExitCodeRow{ExitCode::usage, 2, "bad command line, configuration, name, schema or journal"},
    ExitCodeRow{ExitCode::incompatible, 3,
                "report, journal or baseline of an incompatible version, or a baseline of another GPU"},
    ExitCodeRow{ExitCode::infrastructure, 4,
                "the machine: no usable GPU where one is required, device lost, disk full"},
    ExitCodeRow{ExitCode::crash, 5, "a case crashed; contained"},
    ExitCodeRow{ExitCode::hang, 5, "a case hung; contained"},
    ExitCodeRow{ExitCode::failed, 6, "a numerical or behavioural failure, or a required case did not run"},
    ExitCodeRow{ExitCode::mutant_survived, 6, "self-test: a fault that must be caught was not"},
    ExitCodeRow{ExitCode::performance, 7, "correctness is green, a gate on speed failed"},
    ExitCodeRow{ExitCode::nothing_executed, 8, "nothing was executed"},
    ExitCodeRow{ExitCode::inconclusive, 9, "inconclusive, or the run is incomplete, and nothing worse"},
    ExitCodeRow{ExitCode::ready, 10, "READY: every required case passed"},
};

// The tables are indexed by the enumerators; a row that is missing or out of order does not compile.
template <typename Rows, typename Key>
constexpr bool in_order(const Rows& rows, Key key) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<std::size_t>(key(rows[i])) != i) return false;
  }
  return true;
}
static_assert(kStatuses.size() == static_cast<std::size_t>(Status::cancelled) + 1);
static_assert(in_order(kStatuses, [](const StatusRow& row) { return row.status; }));
static_assert(kSeverities.size() == static_cast<std::size_t>(Severity::isolate) + 1);
static_assert(in_order(kSeverities, [](const SeverityRow& row) { return row.severity; }));

const StatusRow& row_of(Status status) { return kStatuses.at(static_cast<std::size_t>(status)); }

int precedence(ExitCode code) {
  for (const auto& row : kExitCodes) {
    if (row.code == code) return row.precedence;
  }
  throw std::logic_error("not an exit code: " + std::to_string(static_cast<int>(code)));
}

}  // namespace

std::span<const ExitCodeRow> exit_code_table() { return kExitCodes; }

ExitCode worse(ExitCode a, ExitCode b) {
  const int pa = precedence(a), pb = precedence(b);
  if (pa != pb) return pa < pb ? a : b;
  return std::min(a, b);  // so that the order of the arguments does not matter
}

std::string_view to_string(Status status) { return row_of(status).word; }
std::string_view to_string(Severity severity) { return kSeverities.at(static_cast<std::size_t>(severity)).word; }

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::ready:
      return "READY";
    case Verdict::conditional:
      return "CONDITIONAL";
    case Verdict::not_ready:
      return "NOT READY";
  }
  throw std::logic_error("not a verdict");
}

std::optional<Status> parse_status(std::string_view word) {
  for (const auto& row : kStatuses) {
    if (row.word == word) return row.status;
  }
  return std::nullopt;
}

std::optional<Severity> parse_severity(std::string_view word) {
  for (const auto& row : kSeverities) {
    if (row.word == word) return row.severity;
  }
  return std::nullopt;
}

bool executed(Status status) { return row_of(status).executed; }
Tally tally(Status status) { return row_of(status).tally; }

}  // namespace reports
