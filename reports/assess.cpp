// Verdict, exit code and their reasons: the one place that decides them.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "reports/coverage.hpp"
#include "reports/model.hpp"

namespace reports {

namespace {

// Why the run is not READY. Verdict and exit code are the worst of all marks, and READY is the absence of any, so
// that READY and exit code 0 cannot come apart.
struct Mark {
  Verdict verdict;
  ExitCode exit_code;
  std::string reason;
  std::string where;  // the case; "" for the whole run
};
using Marks = std::vector<Mark>;

void add(Marks& marks, Verdict verdict, ExitCode exit_code, std::string_view reason) {
  marks.push_back({verdict, exit_code, std::string(reason), {}});
}

bool has_failing(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return failing(f.severity); });
}

ExitCode exit_code_of(const Finding& finding, const Case* c) {
  if (c != nullptr && c->status == Status::crash) return ExitCode::crash;
  if (c != nullptr && c->status == Status::hang) return ExitCode::hang;
  if (finding.category == "performance") return ExitCode::performance;
  if (c == nullptr && finding.category == "infrastructure") return ExitCode::infrastructure;
  return c == nullptr && finding.category == "crash" ? ExitCode::crash : ExitCode::failed;
}

void mark_findings(Marks& marks, const std::vector<Finding>& findings, const Case* c) {
  for (const auto& f : findings) {
    if (!failing(f.severity)) continue;
    const Verdict verdict = f.severity == Severity::degrade ? Verdict::conditional : Verdict::not_ready;
    marks.push_back({verdict, exit_code_of(f, c),
                     fmt::format("{} finding {} ({})", to_string(f.severity), f.code, f.title),
                     c ? c->id : std::string()});
  }
}

// What to do about a required case without a result depends on how the run ended.
struct Ending {
  bool anything_executed;
  bool cut_short;  // incomplete or interrupted
};

ExitCode exit_code_without_result(Status status, Ending ending) {
  if (!ending.anything_executed) return ExitCode::nothing_executed;
  if (status != Status::skip && ending.cut_short) return ExitCode::inconclusive;
  return ExitCode::failed;
}

void mark_status(Marks& marks, const Case& c, Ending ending) {
  const auto mark = [&](Verdict verdict, ExitCode code, std::string_view what) {
    const std::string because = c.reason.empty() ? "" : fmt::format(" ({})", c.reason);
    marks.push_back({verdict, code, fmt::format("{}{}", what, because), c.id});
  };
  switch (outcome(c)) {
    case Status::pass:
      return;
    case Status::fail:  // its findings say how bad it is; a failure without one is taken at its worst
      if (!has_failing(c.findings)) mark(Verdict::not_ready, ExitCode::failed, "failed without a finding");
      return;
    case Status::error:
      return mark(Verdict::not_ready, ExitCode::failed, "ended with an error");
    case Status::crash:
      return mark(Verdict::not_ready, ExitCode::crash, "crashed");
    case Status::hang:
      return mark(Verdict::not_ready, ExitCode::hang, "hung");
    case Status::inconclusive:
      return mark(Verdict::conditional, ExitCode::inconclusive, "inconclusive");
    case Status::infra_error:
      return mark(Verdict::conditional, ExitCode::infrastructure, "stopped by the machine");
    case Status::skip:
    case Status::blocked:
    case Status::not_run:
    case Status::cancelled:
      if (!c.required) return;
      return mark(Verdict::conditional, exit_code_without_result(c.status, ending),
                  fmt::format("required, but without a result, {}",
                              c.reason_code.empty() ? to_string(c.status) : std::string_view(c.reason_code)));
  }
}

// A level above smoke stands on cases of its own: where none was planned, the evidence is that of a lower level.
bool has_its_own_cases(const Run& run) {
  if (run.level == "smoke") return true;
  return std::any_of(run.suites.begin(), run.suites.end(), [&](const Suite& suite) {
    return std::any_of(suite.cases.begin(), suite.cases.end(), [&](const Case& c) { return c.level == run.level; });
  });
}

void mark_run(Marks& marks, const Run& run, Ending ending) {
  if (!has_its_own_cases(run)) {
    add(marks, Verdict::conditional, ExitCode::inconclusive,
        fmt::format("no case of the {} level itself was planned: the evidence is that of a lower level", run.level));
  }
  if (!ending.anything_executed) {
    add(marks, Verdict::conditional, ExitCode::nothing_executed, "nothing was executed");
  }
  if (run.interruption) {
    const auto code = *run.interruption == ExitCode::ready ? ExitCode::internal : *run.interruption;
    add(marks, Verdict::conditional, code,
        fmt::format("the run was interrupted (exit code {})", static_cast<int>(code)));
  }
  if (!run.complete) {
    add(marks, Verdict::conditional, ExitCode::inconclusive, "the run is incomplete: its journal has no end");
  }
  mark_findings(marks, run.findings, nullptr);
}

Marks marks_of(const Run& run, const Totals& totals) {
  const Ending ending{totals.executed > 0, !run.complete || run.interruption.has_value()};
  Marks marks;
  mark_run(marks, run, ending);
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      mark_findings(marks, c.findings, &c);
      mark_status(marks, c, ending);
    }
  }
  return marks;
}

// The worst first, and one line for all cases with the same trouble.
std::vector<std::string> reasons_of(Marks marks) {
  std::stable_sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.verdict > b.verdict; });
  std::vector<std::string> reasons;
  for (auto mark = marks.begin(); mark != marks.end(); ++mark) {
    const auto same = [&](const Mark& other) { return other.reason == mark->reason; };
    if (std::any_of(marks.begin(), mark, same)) continue;
    const auto n = std::count_if(mark, marks.end(), same);
    std::string text = mark->reason;
    if (!mark->where.empty()) text += fmt::format(": {}", mark->where);
    if (n > 1) text += fmt::format(" and {} more", n - 1);
    reasons.push_back(std::move(text));
  }
  return reasons;
}

std::string evidence_of_ready(const Totals& totals) {
  std::string text =
      fmt::format("{} of {} planned cases ran and none has a finding above warn", totals.executed, totals.planned);
  if (totals.skipped > 0) text += fmt::format("; {} skipped, none of them required", totals.skipped);
  return text;
}

// How grave an outcome is for its suite, the gravest first.
constexpr Status kGravest[] = {Status::crash,   Status::hang,        Status::error,
                               Status::fail,    Status::infra_error, Status::cancelled,
                               Status::not_run, Status::blocked,     Status::inconclusive};

}  // namespace

bool failing(Severity severity) {
  switch (severity) {
    case Severity::info:
    case Severity::warn:
      return false;
    case Severity::degrade:
    case Severity::block:
    case Severity::isolate:
      return true;
  }
  throw std::logic_error("not a severity");
}

Status outcome(const Case& c) {
  return tally(c.status) != Tally::failed && has_failing(c.findings) ? Status::fail : c.status;
}

Status outcome(const Suite& suite) {
  bool ran = false, required_skip = false;
  for (const Status grave : kGravest) {
    for (const auto& c : suite.cases) {
      if (outcome(c) == grave) return grave;
    }
  }
  for (const auto& c : suite.cases) {
    ran = ran || executed(outcome(c));
    required_skip = required_skip || (c.required && outcome(c) == Status::skip);
  }
  return ran && !required_skip ? Status::pass : Status::skip;
}

Totals::Totals() {
  for (int i = 0; i <= static_cast<int>(Status::cancelled); ++i) by_status.emplace_back(static_cast<Status>(i), 0);
}

void Totals::add(Status status) {
  ++planned;
  ++by_status[static_cast<std::size_t>(status)].second;
  executed += reports::executed(status) ? 1 : 0;
  switch (tally(status)) {
    case Tally::passed:
      ++passed;
      break;
    case Tally::failed:
      ++failed;
      break;
    case Tally::skipped:
      ++skipped;
      break;
    case Tally::own_word:
      break;
  }
}

Totals count(const std::vector<Suite>& suites) {
  Totals totals;
  for (const auto& suite : suites)
    for (const auto& c : suite.cases) totals.add(outcome(c));
  return totals;
}

std::string without_result(const Totals& totals) {
  std::string text;
  for (const auto& [status, n] : totals.by_status) {
    if (n == 0 || tally(status) != Tally::own_word) continue;
    std::string word(to_string(status));
    std::replace(word.begin(), word.end(), '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, word);
  }
  return text;
}

std::string counts(const Totals& totals) {
  const std::string rest = without_result(totals);
  return fmt::format("{} passed, {} failed, {} skipped{}{}", totals.passed, totals.failed, totals.skipped,
                     rest.empty() ? "" : ", ", rest);
}

Assessment assess(const Run& run) {
  const Totals totals = count(run.suites);
  const Marks marks = marks_of(run, totals);
  Assessment result{Verdict::ready, ExitCode::ready, {}, not_tested(run), {}};
  for (const auto& mark : marks) {
    result.verdict = std::max(result.verdict, mark.verdict);
    result.exit_code = worse(result.exit_code, mark.exit_code);
  }
  result.reasons = reasons_of(marks);
  if (marks.empty()) result.reasons.push_back(evidence_of_ready(totals));
  result.scope = scope(run, result.verdict);
  return result;
}

}  // namespace reports
