// Turns what happens in a run into journal events, and keeps the little that the supervisor must know meanwhile: which
// case is in flight, how grave its findings are, which suites are isolated. Every event is in the journal before
// anything here changes.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>

#include "harness/codes.hpp"
#include "harness/journal_writer.hpp"
#include "harness/plan.hpp"
#include "harness/progress.hpp"

namespace harness {

struct FindingNote {
  std::string code;
  std::optional<reports::Severity> severity;  // absent: the code's default
  std::string message;
  Json evidence = Json::object();
};

struct CaseEnd {
  reports::Status status = reports::Status::pass;
  std::string reason_code, reason;
};

class Recorder {
 public:
  struct Parts {
    JournalWriter& journal;
    Progress& progress;
    const CodeTable& codes;
    std::function<std::string(const std::string&)> repro;  // case id -> command
    bool report_gates = false;                             // findings about speed are recorded as `warn`
  };
  explicit Recorder(Parts parts) : parts_(std::move(parts)) {}

  void event(const Json& event) { parts_.journal.append(event); }  // of the run or a worker
  void check_journal() const { parts_.journal.check(); }           // throws JournalLost

  void begin_case(const std::string& suite, const PlannedCase& c, int worker, std::uint64_t seed);
  // One that another process of this run has begun.
  void resume_case(const std::string& suite, const PlannedCase& c);
  void tell(const Json& event);           // phase, retry, metric, check, fact, artifact of the case in flight
  void finding(const FindingNote& note);  // of the case in flight, or of the run when there is none
  void end_case(const CaseEnd& end);
  // A case that never begins: blocked, cancelled, infra_error, not_run, skip.
  void close_case(const PlannedCase& c, const CaseEnd& end);

  [[nodiscard]] const PlannedCase* in_flight() const { return case_; }
  [[nodiscard]] const std::string& phase() const { return phase_; }
  [[nodiscard]] double elapsed_s() const;
  [[nodiscard]] double case_s() const { return case_s_; }  // all cases so far
  [[nodiscard]] const std::set<std::string>& isolated() const { return isolated_; }
  [[nodiscard]] bool last_passed() const { return last_passed_; }
  [[nodiscard]] Progress& progress() { return parts_.progress; }

 private:
  Parts parts_;
  const PlannedCase* case_ = nullptr;
  std::string suite_, phase_;
  std::chrono::steady_clock::time_point begin_;
  reports::Severity worst_ = reports::Severity::info;
  int findings_ = 0, failed_checks_ = 0;  // of the case in flight
  double case_s_ = 0;
  std::set<std::string> isolated_;
  bool last_passed_ = true;
};

}  // namespace harness
