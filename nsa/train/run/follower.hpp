// A rank that is not the first: trains its share of the steps that rank 0's Session leads, and leaves a heartbeat and
// stacks in a folder of its own. It makes the same collectives in the same order as Session.
#pragma once

#include "nsa/train/run/ranks.hpp"
#include "nsa/train/run/signals.hpp"
#include "nsa/train/run/training.hpp"

namespace nsa::train {

class Follower {
 public:
  Follower(const Options& options, const StopSignals& signals, const Rank& rank, Training training);
  // As rank 0 ends. Throws what the parts throw.
  [[nodiscard]] ExitCode run();

 private:
  const StopSignals& signals_;
  const Rank& rank_;
  std::filesystem::path out_, folder_;
  Training training_;
  std::int64_t last_step_;
  nlohmann::json validation_start_;
};

}  // namespace nsa::train
