#include "harness/recorder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "reports/journal_rules.hpp"

namespace harness {

using reports::Severity;
using reports::Status;

namespace {

Json case_end_event(const std::string& id, const CaseEnd& end, double duration_s) {
  Json event = {{"event", "case_end"},
                {"case", id},
                {"status", reports::to_string(end.status)},
                {"reason_code", end.reason_code},
                {"reason", end.reason},
                {"duration_s", duration_s}};
  // What this machine cannot do, and what is not claimed by what is judged, is no missing evidence; any other skip of a
  // required case is.
  const bool excused =
      end.reason_code == "no_cuda" || end.reason_code == "unsupported" || end.reason_code == "not_applicable";
  if (end.status == Status::skip && excused) event["required"] = false;
  return event;
}

}  // namespace

void Recorder::begin_case(const std::string& suite, const PlannedCase& c, int worker, std::uint64_t seed) {
  event({{"event", "case_begin"}, {"case", c.id}, {"worker", worker}, {"seed", seed}});
  resume_case(suite, c);
  parts_.progress.case_begin(c.id);
}

void Recorder::resume_case(const std::string& suite, const PlannedCase& c) {
  case_ = &c;
  suite_ = suite;
  phase_.clear();
  worst_ = Severity::info;
  findings_ = failed_checks_ = 0;
  begin_ = std::chrono::steady_clock::now();
}

void Recorder::tell(const Json& told) {
  event(told);
  if (told.at("event") == "check") {
    failed_checks_ += told.at("pass").get<bool>() ? 0 : 1;
  } else if (told.at("event") == "phase") {
    phase_ = told.at("name").get<std::string>();
    parts_.progress.phase(phase_);
  } else if (told.at("event") == "retry") {
    phase_.clear();
    failed_checks_ = 0;
    parts_.progress.retry(told.at("reason").get<std::string>());
  }
}

void Recorder::finding(const FindingNote& note) {
  const Code* code = parts_.codes.find(note.code);
  if (code == nullptr) throw std::invalid_argument(fmt::format("finding: unknown code '{}'", note.code));
  const Severity severity = severity_of(*code, note.severity, parts_.report_gates);
  std::string message = note.message;
  if (severity < note.severity.value_or(code->severity)) message += " (reported, not decided)";
  Json finding = {{"event", "finding"}};
  if (case_ != nullptr) finding["case"] = case_->id;
  finding.update({{"code", note.code},
                  {"severity", reports::to_string(severity)},
                  {"category", code->category},
                  {"title", code->title},
                  {"message", message},
                  {"cause", code->cause},
                  {"next", code->next},
                  {"evidence", note.evidence}});
  if (case_ != nullptr) finding["repro"] = parts_.repro(case_->id);
  event(finding);
  worst_ = std::max(worst_, severity);
  ++findings_;
  if (case_ != nullptr && severity == Severity::isolate) isolated_.insert(suite_);
  parts_.progress.finding({note.code, severity, case_ != nullptr ? case_->id : "", message});
}

void Recorder::end_case(const CaseEnd& end) {
  CaseEnd decided = end;
  // A case cannot pass, nor excuse itself, over a finding that says otherwise (reports::outcome).
  if (worst_ >= Severity::degrade && reports::tally(end.status) != reports::Tally::failed) {
    const bool excuse = end.status == Status::pass || end.status == Status::skip;
    decided = excuse ? CaseEnd{Status::fail, "", ""} : CaseEnd{Status::fail, end.reason_code, end.reason};
  }
  const bool open =
      decided.status == Status::pass || decided.status == Status::skip || decided.status == Status::inconclusive;
  if (open && failed_checks_ > findings_)  // as every reader of the journal will see it (reports::kUnexplainedCheck)
    decided = {Status::fail, reports::kUnexplainedCheck, "a check failed and no finding says so"};
  const double duration = elapsed_s();
  event(case_end_event(case_->id, decided, duration));
  case_s_ += duration;
  last_passed_ = reports::tally(decided.status) != reports::Tally::failed;
  case_ = nullptr;
  parts_.progress.case_end(decided.status);
}

void Recorder::close_case(const PlannedCase& c, const CaseEnd& end) {
  event(case_end_event(c.id, end, 0.0));
  parts_.progress.case_end(end.status);
}

double Recorder::elapsed_s() const { return case_ == nullptr ? 0.0 : base::seconds_since(begin_); }

}  // namespace harness
