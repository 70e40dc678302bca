// The figures of a run, step by step: metrics.csv and validation.csv, and what lies between two of their rows.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "nsa/train/evaluation.hpp"
#include "nsa/train/run/step_table.hpp"
#include "nsa/train/trainer.hpp"

namespace nsa::train {

// Over the steps since the row before. tok_per_s counts predictions made per second of training, data included;
// evaluation and checkpoints do not count.
struct Window {
  double tok_per_s = 0, step_s = 0;           // step_s: mean
  double fetch_p50_ms = 0, fetch_p95_ms = 0;  // of a step's wait for its data
};

class StepLog {
 public:
  // Rows beyond `last_step` are cut (StepTable). validation.csv only where it is asked for.
  // `tell`: what was damaged there, or taken away.
  StepLog(const std::filesystem::path& folder, std::int64_t last_step, bool with_validation,
          const StepTable::Tell& tell);
  void step(const StepReport& report);
  // A row for the last step; the next window begins. `sofar`: since the run's first step, earlier starts included.
  struct SoFar {
    std::int64_t tokens = 0;  // predictions made
    double seconds = 0;       // of training, data included; evaluation and checkpoints do not count
  };
  Window row(const SoFar& sofar);
  // Of the last step, before its row, which repeats the loss.
  void validation(std::int64_t step, const Evaluation& evaluation, double seconds);
  void sync();
  void check() const;  // throws FileLost

 private:
  StepTable metrics_;
  std::optional<StepTable> validation_;
  std::vector<StepReport> window_;
  std::optional<double> validation_loss_;
};

}  // namespace nsa::train
