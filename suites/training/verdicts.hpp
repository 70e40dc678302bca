// Verdicts over a run: each takes what was seen and says what is wrong with it. None of them asks the trainer.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/context.hpp"
#include "nsa/config.hpp"
#include "suites/training/run.hpp"

namespace suites::training_cases {

// The schedule as the configuration describes it, written out here and not taken from the trainer.
[[nodiscard]] double expected_learning_rate(const nsa::TrainConfig& config, std::int64_t step);
// The expected loss of an untrained model: ln V, and half of the logits' variance (1/3) by their spread.
[[nodiscard]] double expected_initial_loss(const nsa::ModelConfig& model);
// Nats by which the untrained loss on random tokens may miss that: uniform targets average over every symbol.
inline constexpr double kInitialRandomSlack = 0.2;

// Every reported rate against the schedule (kLearningRate), every update against AdamW's (kWrongUpdate).
void check_learning_rate(const Run& run, const nsa::TrainConfig& config, harness::Context& context);
void check_updates(const Run& run, harness::Context& context, const harness::Json& evidence = harness::Json::object());

// All norms are positive; the first is the one that was computed without the trainer (kGradientNorm).
void check_gradient_norms(const Run& run, harness::Context& context);
void check_first_norm(const Run& run, double recomputed, nsa::Precision precision, harness::Context& context);

// The first loss is that of chance (kInitialLoss).
void check_initial_loss(const Run& run, const RunPlan& plan, harness::Context& context);
// The losses fall by more than `batch_noise` explains, the deviation of one batch's loss from another's
// without learning (kLossDoesNotFall).
void check_fall(const Run& run, double batch_noise, harness::Context& context);

// Text: the loss is never below what a count of symbol sequences over the same batches reaches (kSuspiciousFall).
void check_suspicious_fall(const Run& run, const nsa::ModelConfig& model, harness::Context& context);
// Random tokens: the loss is not below ln V, neither of single steps nor over the run (kLossBelowFloor).
// `deviation`: of the loss of one token.
void check_floor(const Run& run, double deviation, const nsa::ModelConfig& model, harness::Context& context);

}  // namespace suites::training_cases
