// Walks the plan: blocks what an isolated suite blocks, skips what needs a GPU where there is none, hands the rest to
// workers and replaces those that are gone. Touches neither torch nor CUDA.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "harness/plan.hpp"
#include "harness/recorder.hpp"
#include "harness/session.hpp"

namespace harness {

struct RunOrder {
  std::string run_id;
  std::filesystem::path folder;
  bool cuda = false;  // run on the GPU
  bool fail_fast = false;
  std::vector<std::string> faults;
  Json provenance = Json::object();
};

class Supervisor {
 public:
  Supervisor(const Program& program, const Settings& settings, const Plan& plan, RunOrder order, Recorder& recorder);

  // Every case of the plan has its case_end afterwards. Returns the signal that interrupted the run, if one did.
  // Throws InfrastructureError when the journal cannot be written.
  std::optional<int> run();

 private:
  struct Closing {  // why all that is left is not run
    reports::Status status;
    std::string reason_code, reason;
  };

  void run_suite(const PlannedSuite& suite, bool last_suite);
  std::vector<PlannedCase> runnable(const PlannedSuite& suite);
  Session::Result run_worker(const std::string& suite, std::span<const PlannedCase> cases, bool last_suite);
  void close_all(std::span<const PlannedCase> cases);
  void consider(const Session::Result& result);

  const Program& program_;
  const Settings& settings_;
  const Plan& plan_;
  RunOrder order_;
  Recorder& recorder_;
  SessionLimits limits_;
  std::string isolation_;
  // The worker of the next suite, which loads its libraries (0.4 s with LibTorch) while this one runs.
  std::unique_ptr<Process> next_worker_;
  std::optional<Interrupts> interrupts_;  // absent with --isolation none: a debugger wants its signals
  std::optional<int> interrupted_;
  std::optional<Closing> closing_;
  int workers_ = 0, failed_starts_ = 0;
};

}  // namespace harness
