// Tells a run that has diverged from one that stumbles. Divergence is a loss that leaves its bound and stays there:
//
//   bound   the lower of
//             ceiling   max(ln V, the loss before the first update) + kMargin: a model that knows nothing does better
//             relapse   the best median of kWindow losses + max(kDeviations * sigma, kLost of what was learned since
//                       ln V), sigma from the median's absolute deviations; only when something was learned at all
//   alarm   kAbove of the last kLast steps lie above it, so that a spike, a bad batch or a short warm-up is none
//
// The gradient's norm, which moves before the loss, is no reason to stop by itself; the evidence says since when it has
// been out of its own range. The update's norm is not asked for: AdamW divides a gradient by its own size, so that an
// update is as long as the rate says in every run (of rate * sqrt(parameters), 0.7 at most in a sound one and 0.6 in
// one that diverges; tests/healthy_runs_test.cpp holds it). What goes out of bounds is the gradient before that. It
// costs the host some additions a step, and the GPU nothing. Its state goes with the checkpoint: a resumed run judges
// as one that was never stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace nsa::train {

class DivergenceGuard {
 public:
  static constexpr double kMargin = 1.0;  // nats
  static constexpr double kLost = 0.75, kDeviations = 8;
  static constexpr std::size_t kWindow = 64, kLast = 16, kAbove = 12;

  explicit DivergenceGuard(std::int64_t vocab);
  // A step that was made; both are finite. Steps come in order, 1, 2, ...
  void step(std::int64_t step, double loss, double grad_norm);
  // What is wrong, in words; nothing as long as the run is sound.
  [[nodiscard]] std::optional<std::string> alarm() const;
  // bound, ceiling, relapse (null before anything was learned), best_median, steps_above, since_step (the first of
  // those above), grad_norm_since_step (null: in its range), grad_norm_median.
  [[nodiscard]] nlohmann::json evidence() const;

  // For a checkpoint. restore() takes null too (a checkpoint that has none: it begins anew). After an alarm whoever
  // removed .HALT wanted the run to go on, so the steps above the bound are counted anew.
  [[nodiscard]] nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  [[nodiscard]] double ceiling() const;
  [[nodiscard]] std::optional<double> relapse() const;
  [[nodiscard]] double bound() const;

  double uniform_;                     // ln V
  std::optional<double> first_;        // loss
  std::deque<double> losses_, norms_;  // the last kWindow; of losses, those within their bound
  std::optional<double> best_, best_sigma_;
  std::deque<std::int64_t> above_;  // steps
  std::optional<std::int64_t> norm_since_;
};

}  // namespace nsa::train
