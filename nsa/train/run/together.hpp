// What Session (rank 0) and Follower (all others) say to each other, so that both do the same at the same step. Without
// a group all of it is about this process alone.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "nsa/parallel/handshake.hpp"
#include "nsa/train/run/signals.hpp"
#include "nsa/train/run/training.hpp"
#include "nsa/train/trainer.hpp"

namespace nsa::train {

// What a rank may want of all, and how many did.
struct AgreedWishes {
  double interrupted = 0, terminated = 0, halted = 0;
  double replaced = 0;  // values of functions that the reference's stand for (strict asserts), so far
  [[nodiscard]] bool stop() const { return interrupted > 0 || terminated > 0 || halted > 0; }
};

class Together {
 public:
  Together(std::shared_ptr<parallel::Group> group, const StopSignals& signals, std::filesystem::path halt_file)
      : group_(std::move(group)), signals_(signals), halt_file_(std::move(halt_file)) {}

  // Rank 0's words to all: on rank 0 returns `words` itself.
  [[nodiscard]] nlohmann::json told_by_first(const std::string& about, const nlohmann::json& words) const;
  // What all wish before the first step; from then on the trainer brings it with every step. Rank 0 comes here when the
  // folder is this run's, cleared of the one before: the others write nothing until they have been here.
  void begin(Trainer& trainer, const Dispatcher& dispatcher);
  [[nodiscard]] AgreedWishes wishes(const Trainer& trainer) const;

 private:
  [[nodiscard]] Trainer::Wishes own(const Dispatcher& dispatcher) const;

  std::shared_ptr<parallel::Group> group_;
  const StopSignals& signals_;
  std::filesystem::path halt_file_;
  std::optional<Trainer::Wishes> first_;
  std::int64_t begun_at_ = 0;
};

// The steps that have a row: the first, the last, and those that log_every and eval_every ask for.
[[nodiscard]] bool is_logged(const TrainConfig& config, std::int64_t step, std::int64_t last_step);
[[nodiscard]] bool is_saved(const TrainConfig& config, std::int64_t step);
[[nodiscard]] bool is_validated(const TrainConfig& config, std::int64_t step);
// Whether `step` and the next follow each other without a look at the weights, so that the next may begin before this
// one has ended (Trainer::step). By the configuration alone, so the same on all ranks. On a GPU: elsewhere a step that
// has begun has ended.
[[nodiscard]] bool goes_on_behind(const Training& training, std::int64_t step, std::int64_t last_step);
// All ranks were given the same folder and the same last step: before any of them looks into the folder. Throws
// parallel::Disagreement.
void agree_on_arguments(parallel::Group& group, const Options& options, const Config& config);
// What rank 0 does while the others wait for its word; without a group it is just done. When rank 0 fails, all ranks
// throw RunRefused, with its reason and code.
void by_first_alone(parallel::Group* group, const std::string& about, const std::function<void()>& what);
// What all ranks must have in common besides the configuration.
[[nodiscard]] parallel::Facts facts_of(const Training& training);

}  // namespace nsa::train
