// The text at the end of a run. Its last line is what log readers look for, so no other line may look like it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reports/lines.hpp"
#include "reports/view.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

enum class Ink { red, yellow, green, dim };

class Console : public Lines {
 public:
  explicit Console(bool color) : color_(color) {}

  [[nodiscard]] std::string ink(Ink ink, const std::string& text) const {
    if (!color_) return text;
    static constexpr const char* kCodes[] = {"31", "33", "32", "2"};
    return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<int>(ink)], text);
  }
  // Text from a case: it stays on one line and brings no escape sequences to the terminal.
  [[nodiscard]] static std::string safe(const std::string& text) { return view::cut(view::one_line(text), 400); }
  void labelled(const char* label, const std::string& text) {
    if (!text.empty()) line("    {:<7} {}", label, safe(text));
  }

 private:
  bool color_;
};

Ink ink_of(Severity severity) {
  switch (severity) {
    case Severity::info:
      return Ink::dim;
    case Severity::warn:
    case Severity::degrade:
      return Ink::yellow;
    case Severity::block:
    case Severity::isolate:
      return Ink::red;
  }
  return Ink::red;
}

Ink ink_of(Status status) {
  switch (tally(status)) {
    case Tally::passed:
      return Ink::green;
    case Tally::skipped:
    case Tally::own_word:
      return Ink::yellow;
    case Tally::failed:
      return Ink::red;
  }
  return Ink::red;
}

Ink ink_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::ready:
      return Ink::green;
    case Verdict::conditional:
      return Ink::yellow;
    case Verdict::not_ready:
      return Ink::red;
  }
  return Ink::red;
}

void write_findings(Console& out, const Run& run) {
  const auto groups = view::findings(run);
  if (groups.empty()) return;
  out.line("findings");
  for (const auto& group : groups) {
    const Finding& f = group.first();
    const Case* where = group.occurrences.front().where;
    out.line("  {} {} {}{}", out.ink(ink_of(group.severity), fmt::format("{:<8}", to_string(group.severity))), f.code,
             Console::safe(f.title),
             group.occurrences.size() > 1 ? fmt::format(" ({} times)", group.occurrences.size()) : "");
    out.labelled("where", where ? where->id : "the run");
    out.labelled("what", f.message);
    if (!failing(group.severity)) continue;
    out.labelled("cause", f.cause);
    out.labelled("next", f.next);
    out.labelled("repro", f.repro);
    out.labelled("python", view::python_command(group));
  }
  out.blank();
}

// The likeliest cause, with its evidence; the others in a line each.
void write_causes(Console& out, const Run& run) {
  if (run.causes.empty()) return;
  const LikelyCause& first = run.causes.front();
  out.line("most likely: {}", out.ink(ink_of(first.severity), Console::safe(view::sentence(first))));
  for (const auto& reason : first.because) out.labelled("because", reason);
  out.labelled("follows", view::follows(first));
  out.labelled("next", first.next);
  out.labelled("confirm", first.confirm);
  for (std::size_t i = 1; i < run.causes.size(); ++i)
    out.line("besides: {} ({})", Console::safe(view::sentence(run.causes[i])), fmt::join(run.causes[i].codes, ", "));
  out.blank();
}

// Cases that ran and did not pass, without a finding of their own, would otherwise show in a number only.
void write_silent_failures(Console& out, const Run& run) {
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      const Status status = outcome(c);
      if (!executed(status) || tally(status) == Tally::passed) continue;
      const bool told =
          std::any_of(c.findings.begin(), c.findings.end(), [](const Finding& f) { return failing(f.severity); });
      if (!told)
        out.line("  {} {} {}", out.ink(ink_of(status), std::string(to_string(status))), c.id,
                 Console::safe(view::why(c)));
    }
  }
}

void write_suites(Console& out, const Run& run) {
  std::size_t width = 0;
  for (const auto& suite : run.suites) width = std::max(width, suite.name.size());
  out.line("suites");
  for (const auto& suite : run.suites) {
    const Totals totals = count({suite});
    const Status status = outcome(suite);
    const std::string rest = without_result(totals);
    out.line("  {:<{}}  {}  {:>4} pass {:>4} fail {:>4} skip  {:>10}{}{}", suite.name, width,
             out.ink(ink_of(status), fmt::format("{:<12}", to_string(status))), totals.passed, totals.failed,
             totals.skipped, view::duration(suite.duration_s), rest.empty() ? "" : "  ", rest);
  }
  out.blank();
}

void write_verdict(Console& out, const Run& run, const Assessment& assessment) {
  constexpr std::size_t kReasons = 5;
  if (const auto faults = view::planted_faults(run); !faults.empty()) {
    out.line("{}", out.ink(Ink::yellow, "planted faults: " + Console::safe(faults) + " (this run tests the harness)"));
  }
  if (!run.complete) out.line("{}", out.ink(Ink::yellow, "incomplete: the journal of this run has no end"));
  out.line("verdict: {}, {}", out.ink(ink_of(assessment.verdict), std::string(to_string(assessment.verdict))),
           assessment.scope);
  const auto& reasons = assessment.reasons;
  for (std::size_t i = 0; i < std::min(kReasons, reasons.size()); ++i) out.line("  - {}", Console::safe(reasons[i]));
  if (reasons.size() > kReasons) out.line("  - and {} more", reasons.size() - kReasons);
  if (!assessment.not_tested.empty()) {
    out.line("  not tested: {} (see the report)", view::plural(assessment.not_tested.size(), "point"));
  }
}

}  // namespace

std::string to_console(const Run& run, bool color) {
  Console out(color);
  const Assessment assessment = assess(run);
  write_findings(out, run);
  write_silent_failures(out, run);
  write_suites(out, run);
  write_causes(out, run);  // a terminal shows its end
  write_verdict(out, run, assessment);
  out.line("summary: {}", view::counts(count(run.suites)));
  return out.take();
}

}  // namespace reports
