#include "harness/supervisor.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace harness {

using reports::Status;

Supervisor::Supervisor(const Program& program, const Settings& settings, const Plan& plan, RunOrder order,
                       Recorder& recorder)
    : program_(program),
      settings_(settings),
      plan_(plan),
      order_(std::move(order)),
      recorder_(recorder),
      limits_{settings.real("run.hang_s"), settings.real("run.timeout_s"), settings.real("run.start_s"),
              static_cast<std::size_t>(settings.integer("run.log_mib")) << 20, settings.real("run.calm_s")},
      isolation_(settings.text("run.isolation")) {
  if (isolation_ != "none") interrupts_.emplace();
}

std::optional<int> Supervisor::run() {
  for (const PlannedSuite& suite : plan_.suites) {
    run_suite(suite, &suite == &plan_.suites.back());
    recorder_.progress().suite_end(suite.suite->name);
  }
  return interrupted_;
}

void Supervisor::run_suite(const PlannedSuite& suite, bool last_suite) {
  const std::vector<PlannedCase> cases = runnable(suite);
  std::span<const PlannedCase> left(cases);
  // In this process nobody can stop between two cases, so --fail-fast hands them over one by one.
  const bool one_by_one = isolation_ == "case" || (isolation_ == "none" && order_.fail_fast);
  while (!left.empty() && !closing_) {
    const Session::Result result = run_worker(suite.suite->name, one_by_one ? left.first(1) : left, last_suite);
    left = left.subspan(result.ended);
    consider(result);
  }
  close_all(left);
}

// Closes what cannot run and returns the rest.
std::vector<PlannedCase> Supervisor::runnable(const PlannedSuite& suite) {
  const std::string& name = suite.suite->name;
  const std::string blocker = blocked_by(program_.suites, name, recorder_.isolated());
  std::vector<PlannedCase> cases;
  for (const PlannedCase& c : suite.cases) {
    if (closing_) {  // NOLINT(bugprone-branch-clone): the last branch is another case: it runs
      cases.push_back(c);
    } else if (!blocker.empty()) {
      recorder_.close_case(c, {Status::blocked, "blocked_by:" + blocker,
                               fmt::format("suite {} found that nothing that requires it can be trusted", blocker)});
    } else if (c.work.needs_cuda && !order_.cuda) {
      recorder_.close_case(c, {Status::skip, "no_cuda", "needs a GPU, and this run has none"});
    } else {
      cases.push_back(c);
    }
  }
  return cases;
}

Session::Result Supervisor::run_worker(const std::string& suite, std::span<const PlannedCase> cases, bool last_suite) {
  WorkOrder work;
  work.supervisor = getpid();
  work.worker = ++workers_;
  work.suite = suite;
  for (const PlannedCase& c : cases) work.cases.push_back(c.id);
  work.seed = static_cast<std::uint64_t>(settings_.integer("run.seed"));
  work.cuda = order_.cuda;
  work.folder = order_.folder;
  work.run_id = order_.run_id;
  work.settings = changed_settings(settings_);
  work.provenance = order_.provenance;
  if (isolation_ == "none") {
    if (workers_ == 1) work.faults = order_.faults;  // they stay planted in this process
    return run_in_process(program_, settings_, work, cases, recorder_);
  }
  work.faults = order_.faults;
  auto worker = next_worker_ ? std::move(next_worker_) : Session::start_worker();
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): absent with isolation none alone, which has returned
  Session session({std::move(worker), recorder_, *interrupts_, limits_, order_.fail_fast, program_.load}, work, cases);
  if (!last_suite) next_worker_ = Session::start_worker();
  return session.run();
}

void Supervisor::consider(const Session::Result& result) {
  failed_starts_ = result.started ? 0 : failed_starts_ + 1;
  if (result.not_started) {
    FindingNote note = *result.not_started;  // no case is lost yet: the next worker makes them
    if (failed_starts_ < 2) note.severity = reports::Severity::warn;
    recorder_.finding(note);
  }
  if (result.interrupted) {
    interrupted_ = result.interrupted;
    closing_ = {Status::cancelled, "interrupted", signal_name(*interrupted_)};
  } else if (failed_starts_ >= 2) {
    closing_ = {Status::infra_error, "worker_start", "workers could not be started, twice in a row"};
  } else if (order_.fail_fast && !recorder_.last_passed()) {
    closing_ = {Status::not_run, "fail_fast", "an earlier case did not pass"};
  }
}

void Supervisor::close_all(std::span<const PlannedCase> cases) {
  for (const PlannedCase& c : cases)
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): cases are left only where it is set
    recorder_.close_case(c, {closing_->status, closing_->reason_code, closing_->reason});
}

}  // namespace harness
