// One worker, seen from the supervisor: gives it its order, listens to it, watches it, and when it dies, hangs or lies,
// ends the case that is to blame. Returns when the process is gone.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "harness/case_feed.hpp"
#include "harness/interrupts.hpp"
#include "harness/kill_cause.hpp"
#include "harness/load_watch.hpp"
#include "harness/process.hpp"
#include "harness/watchdog.hpp"
#include "harness/worker_log.hpp"

namespace harness {

struct SessionLimits {
  double hang_s = 30;
  double timeout_s = 0;  // 0: each case's own
  double start_s = 120;
  std::size_t log_bytes = 8 << 20;
  double calm_s = 20;  // before a second attempt
};

class Session {
 public:
  // A worker that loads its libraries and then waits for its order.
  static std::unique_ptr<Process> start_worker();

  struct Parts {
    std::unique_ptr<Process> process;  // from start_worker()
    Recorder& recorder;
    Interrupts& interrupts;
    SessionLimits limits;
    bool fail_fast = false;
    LoadSource load = {};  // how busy the machine is; empty: as it is, for this worker
  };
  struct Result {
    std::size_t ended = 0;  // cases, from the front
    bool started = false;   // it said hello
    std::optional<int> interrupted;
    std::optional<FindingNote> not_started = {};  // why not, for who decides whether another worker is tried
  };

  Session(Parts parts, const WorkOrder& order, std::span<const PlannedCase> cases);
  Result run();

 private:
  enum class State { running, stopping, done };  // stopping: told to go, nothing that it says counts any more

  void wait_for_something();
  void read_output();
  bool read_events();  // false: nothing was there
  void accept(const std::string& line);
  void watch();
  // A case that is at a limit has more time where others kept it from the CPUs. Tells so once.
  [[nodiscard]] bool has_more_time(double now, const base::Load& load);
  // It had all the time that a case can have, and too little of the CPUs: it accuses nobody.
  void give_up(const std::string& what, const base::Load& load);
  void on_exit();
  void stop();
  void note_hello(const Json& event);
  [[nodiscard]] Json evidence() const;
  // Has the worker write down where its threads are; it may be too stuck for that.
  void ask_for_stacks() const;
  // What it has written, into `evidence`; returns ", in FUNCTION" or "".
  std::string add_stacks(Json& evidence) const;
  [[nodiscard]] std::string where() const;
  // For whom the worker waited when it said its last, into `evidence`; returns "; it waited for WHOM" or "".
  std::string add_waiting(Json& evidence) const;
  void violation(const std::string& what);

  Parts parts_;
  WorkOrder order_;
  std::span<const PlannedCase> cases_;
  CaseFeed feed_;
  std::string log_name_;
  WorkerLog log_;
  double started_at_;
  KillWatch kill_watch_;
  LineReader reader_;
  Watchdog watchdog_;
  LoadReader load_;                 // since the first look at the case; many are over before it
  bool told_of_more_time_ = false;  // in its attempt
  State state_ = State::running;
  bool hello_ = false, bye_ = false;
  double next_look_ = 0;
  Result result_;
};

// Runs `cases` in this process, without protection: for debuggers and sanitizers.
[[nodiscard]] Session::Result run_in_process(const Program& program, const Settings& settings, const WorkOrder& order,
                                             std::span<const PlannedCase> cases, Recorder& recorder);

}  // namespace harness
