#include "suites/training/validation.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "nsa/train/evaluation.hpp"
#include "suites/codes.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/training/cases.hpp"
#include "suites/training/stops.hpp"

namespace suites::training_cases {

using harness::Context;
using harness::Json;

namespace {

constexpr std::int64_t kBatches = 4;
constexpr double kAgreement = 1e-3;       // nats between two computations of one loss
constexpr std::int64_t kStretch = 48;     // tokens that text does not repeat by chance
constexpr double kShareSeen = 0.02;       // but for headings and blank lines
constexpr double kValidationGap = 0.5;    // nats between validation and training, another part of the same text
constexpr double kValidationFall = 0.05;  // nats

// Hashes of all stretches of a row (polynomial, rolling).
template <typename Each>
void each_stretch(const std::vector<std::int64_t>& row, const Each& each) {
  constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15U;
  std::uint64_t leaving = 1, hash = 0;
  for (std::int64_t i = 0; i < kStretch; ++i) leaving *= kBase;
  for (std::size_t i = 0; i < row.size(); ++i) {
    hash = hash * kBase + static_cast<std::uint64_t>(row[i]) + 1;
    if (i >= kStretch) hash -= leaving * (static_cast<std::uint64_t>(row[i - kStretch]) + 1);
    if (i + 1 >= kStretch) each(hash);
  }
}

}  // namespace

double validation_loss(nsa::LanguageModel model, const RunPlan& plan, at::Tensor& tokens, Context& context) {
  context.phase("validation");
  const nsa::TrainConfig& train = plan.config.train;
  RecordedStream stream(open_data(plan, nsa::train::Split::validation),
                        {kBatches, train.batch_size, train.seq_len + 1});
  const Weights before = copy_weights(*model);
  const bool training = model->is_training();
  const double told = nsa::train::evaluate(model, stream, kBatches, [&] { context.progress(); }).loss;
  const std::vector<std::string> changed = changed_weights(before, *model);
  context.expect("evaluation leaves the model alone", changed.empty() && model->is_training() == training,
                 fmt::format("evaluation changed {} of {} parameters{}", changed.size(), before.size(),
                             model->is_training() == training ? "" : " and the model's mode"),
                 codes::kValidationLoss, {{"changed", changed}});
  tokens = stream.tokens();
  double sum = 0;
  for (const at::Tensor& batch : tokens.unbind()) sum += evaluate(*model, batch.to(at::kLong)).mean;
  const double own = sum / static_cast<double>(tokens.size(0));
  context.expect_within("validation loss, computed a second time", told, own - kAgreement, own + kAgreement, "nat",
                        codes::kValidationLoss);
  return told;
}

double share_seen(const at::Tensor& training, const at::Tensor& validation) {
  std::unordered_set<std::uint64_t> seen;
  const at::Tensor read = training.flatten(0, -2), kept = validation.flatten(0, -2);
  for (std::int64_t i = 0; i < read.size(0); ++i) {
    each_stretch(row_of(read, i), [&](std::uint64_t hash) { seen.insert(hash); });
  }
  std::int64_t all = 0, known = 0;
  for (std::int64_t i = 0; i < kept.size(0); ++i) {
    each_stretch(row_of(kept, i), [&](std::uint64_t hash) {
      ++all;
      if (seen.contains(hash)) ++known;
    });
  }
  return static_cast<double>(known) / static_cast<double>(all);  // NaN for rows that are too short: passes nothing
}

void check_validation(const Run& run, const Validation& validation, Context& context) {
  const std::vector<double> losses = run.losses();
  const double train = probes::mean(std::span(losses).last(std::min<std::size_t>(10, losses.size())));
  const Json evidence = {{"before", reports::number(validation.before)},
                         {"after", reports::number(validation.after)},
                         {"training_last_10_steps", reports::number(train)}};
  context.metric("validation_loss", validation.after, "nat");
  context.expect_at_least("validation loss falls by", validation.before - validation.after, kValidationFall, "nat",
                          codes::kValidationLoss, evidence);
  context.expect_within("validation loss above training loss", validation.after - train, -kValidationGap,
                        kValidationGap, "nat", codes::kValidationLoss, evidence);
  context.expect_at_most("share of the validation data that training read", share_seen(run.tokens, validation.tokens),
                         kShareSeen, "1", codes::kSplitOverlap, {{"stretch_tokens", kStretch}});
}

}  // namespace suites::training_cases
