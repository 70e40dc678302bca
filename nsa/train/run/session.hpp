// One start of a run: goes on where the run stands, trains until it is done or must stop, and leaves a checkpoint and a
// record whatever it was that stopped it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nsa/train/checkpoint.hpp"
#include "nsa/train/run/activity.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "nsa/train/run/gate_watch.hpp"
#include "nsa/train/run/halt_file.hpp"
#include "nsa/train/run/heartbeat.hpp"
#include "nsa/train/run/progress.hpp"
#include "nsa/train/run/signals.hpp"
#include "nsa/train/run/step_log.hpp"
#include "nsa/train/run/together.hpp"
#include "nsa/train/run/training.hpp"
#include "nsa/train/run/training_folder.hpp"

namespace nsa::train {

class Session {
 public:
  Session(const Options& options, const StopSignals& signals, TrainingFolder& folder, const Rank& rank,
          Training training);
  // The last line stands on stdout afterwards. Throws what the parts throw, after an attempt to save.
  [[nodiscard]] ExitCode run(const std::vector<std::string>& arguments);

 private:
  struct End {
    ExitCode code;
    std::string reason;
  };
  [[nodiscard]] std::optional<ExitCode> refused_by_halt_file();
  [[nodiscard]] std::string load_newest_checkpoint();  // its file's name, "" for none
  void begin(const std::vector<std::string>& arguments);
  [[nodiscard]] End loop();
  // Somebody does: asked while a step is under way, which is ended first.
  [[nodiscard]] bool wants_to_stop() const;
  [[nodiscard]] std::optional<End> wish_to_stop();
  // What any rank wants, this one included.
  [[nodiscard]] std::optional<End> wanted_by_any();
  [[nodiscard]] End stopped(const StepReport& report);
  void after_step(const StepReport& report, bool logged);
  Window write_row();
  void validate();
  void save();
  void save_state();    // without a look at the tables
  void check_output();  // throws FileLost: what was written may not be there, what is there may be another's
  void rescue(const std::exception& error);
  void print_last_line(const End& end) const;
  void note_lost_output();   // in the heartbeat, once
  void note_not_captured();  // train.cuda_graph: auto has come to nothing, and why; once
  void note_fallbacks();     // NSA_STRICT_ASSERTS: the first of each function, on stderr and in the heartbeat
  // How often a function's values were replaced by the reference's, in earlier starts too.
  [[nodiscard]] std::map<std::string, std::int64_t> replaced_so_far() const;
  [[nodiscard]] std::int64_t steps() const { return training_.trainer->steps_made(); }

  const StopSignals& signals_;
  TrainingFolder& folder_;
  const Rank& rank_;
  Training training_;
  std::int64_t last_step_;
  Progress progress_;
  Activity& activity_;
  HaltFile halt_;
  Together together_;
  CheckpointStore store_;
  GateWatch gates_;
  std::optional<Heartbeat> heartbeat_;  // from begin() on
  std::optional<StepLog> log_;
  nlohmann::json validation_start_;
  std::int64_t saved_step_ = -1;  // of the newest checkpoint; -1: none
  bool lost_output_ = false, told_not_captured_ = false;
  std::set<std::string> fallen_back_;                    // told
  std::map<std::string, std::int64_t> replaced_before_;  // of the starts before, as the checkpoint has it
};

}  // namespace nsa::train
