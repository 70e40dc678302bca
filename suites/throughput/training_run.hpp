// Training steps to be timed: a model, a trainer and text for it. Several can share one model (other batch,
// length or accumulation); each has moments of its own. Timed is the step that trains: on a GPU, where it can
// be captured, a replay.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

// The trainer refused to go on: there is no time to speak of.
struct NoProgress {
  nsa::train::StepReport report;

  [[nodiscard]] std::string describe() const;
  // NSA-P002 for `what`.
  void tell(harness::Context& context, const std::string& what) const;
};

class Training {
 public:
  // Trains bench.instance.model with bench.config.train.
  Training(Bench bench, harness::Context& context, const Clock& clock = base::steady_seconds);
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // One optimizer step; throws NoProgress when it was not made.
  const nsa::train::StepReport& step();
  [[nodiscard]] const nsa::train::StepReport& last() const { return last_; }
  // Steps until one is like the next: where steps are captured, those before the capture and the capture itself.
  void settle();
  [[nodiscard]] std::vector<double> seconds(const TimingPlan& plan);  // settled
  // Called at the beginning of each part of a step: "fetch", "forward", "backward", "update".
  void on_phase(std::function<void(std::string_view)> tell) { trainer_.on_phase(std::move(tell)); }
  [[nodiscard]] double tokens() const;  // of a step
  [[nodiscard]] at::Device device() const { return bench_.device; }
  [[nodiscard]] const Stopwatch& stopwatch() const { return stopwatch_; }
  [[nodiscard]] harness::Json routes() const;
  // "replay", or how else and why: for the report.
  [[nodiscard]] std::string way() const;

 private:
  [[nodiscard]] const nsa::TrainConfig& train() const { return bench_.config.train; }

  Bench bench_;
  harness::Context& context_;
  Stopwatch stopwatch_;
  nsa::train::RandomCrops crops_;
  nsa::train::Trainer trainer_;
  nsa::train::StepReport last_;
};

}  // namespace suites::throughput_cases
