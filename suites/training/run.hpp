// A training run as the cases make it, and all that was seen of it. Verdicts over it stand in
// verdicts.hpp and pace.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/context.hpp"
#include "nsa/train/stream.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/subject.hpp"
#include "suites/training/memory_in_use.hpp"
#include "suites/training/recorded_stream.hpp"
#include "suites/training/update_witness.hpp"

namespace suites::training_cases {

enum class Data { text, synthetic };
[[nodiscard]] std::string_view to_string(Data data);

// A tenth of the text is kept out of training and is what evaluation reads.
inline constexpr double kValidationShare = 0.1;

struct RunPlan {
  nsa::Config config;  // train.* are those of this run; train.data is a path that exists, or "synthetic"
  nsa::EffectiveFlags flags;
  at::Device device = at::kCPU;

  [[nodiscard]] Data data() const { return config.train.data == "synthetic" ? Data::synthetic : Data::text; }
};
// The configuration in use, with the text of the settings or random tokens in place of train.data.
[[nodiscard]] RunPlan make_plan(const Subject& subject, const harness::Context& context, Data data);

// Random crops of a text, a JSONL file from its start, or random tokens, as the plan says.
[[nodiscard]] std::unique_ptr<nsa::train::BatchStream> open_data(const RunPlan& plan,
                                                                 nsa::train::Split split = nsa::train::Split::train);
// A model with the weights of train.seed.
[[nodiscard]] Instance make_model(const Subject& subject, const RunPlan& plan);

// The updates of a parameter, and the mistakes that explain them where AdamW does not.
struct WatchedUpdates {
  std::string parameter;
  std::vector<Update> updates = {};
  std::vector<std::string> mistakes = {};
};

struct Run {
  std::vector<nsa::train::StepReport> steps;  // the last may be a stop
  at::Tensor tokens;                          // [batches, B, S+1] int32: all that was read, in order
  // Of the final norm's weight, whose values are near 1, and of the first gate's last layer, whose values are small: a
  // rounding to 16 bits hides less of an update there. Empty where they cannot be watched.
  std::vector<WatchedUpdates> watched;
  std::vector<MemoryInUse> memory;  // after each step
  std::vector<double> yardstick_s;  // of a fixed piece of work after each step: the machine's own pace
  double host_resolution = 0;       // bytes a step (MemoryMeter)
  std::string host_memory_source;

  [[nodiscard]] bool finished(const nsa::TrainConfig& config) const;
  [[nodiscard]] std::vector<double> losses() const;  // without that of a stop
};

// Memory for what a run of this plan reads.
[[nodiscard]] RecordedStream::Room room_for(const RunPlan& plan);

// Trains `model` as planned. Tells progress and, when a step stops, what stopped it (kNonFiniteLoss,
// kNonFiniteGradientStep, ...); after every step that is not finite it holds the weights against
// those before (kGuardMissed).
[[nodiscard]] Run train(nsa::LanguageModel model, const RunPlan& plan, harness::Context& context);

// The step table for the report.
[[nodiscard]] harness::Json table(const Run& run);

}  // namespace suites::training_cases
