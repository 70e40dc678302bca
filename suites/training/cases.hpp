// The cases of the suite `training`, and the small parts that they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "harness/context.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/subject.hpp"

namespace suites::training_cases {

void real_text(const Subject& subject, harness::Context& context);
void loss_floor(const Subject& subject, harness::Context& context);
void guards(const Subject& subject, harness::Context& context);

// A deep copy of every parameter, to ask later whether an update was made.
using Weights = std::vector<std::pair<std::string, at::Tensor>>;
[[nodiscard]] Weights copy_weights(nsa::LanguageModelImpl& model);
// The parameters that are no longer bit-equal to `before` (a NaN equals the same NaN).
[[nodiscard]] std::vector<std::string> changed_weights(const Weights& before, nsa::LanguageModelImpl& model);
// The first parameter that holds a NaN or an infinity, or "".
[[nodiscard]] std::string nonfinite_weight(nsa::LanguageModelImpl& model);

// The schedule as the configuration describes it, written out here and not taken from the trainer.
[[nodiscard]] double expected_learning_rate(const nsa::TrainConfig& config, std::int64_t step);

// The expected loss of an untrained model: ln V, and half of the logits' variance (1/3) by their spread.
[[nodiscard]] double expected_initial_loss(const nsa::ModelConfig& model);

// Fresh uniform tokens [batch, length] for every call, on the CPU; torch's generator is not touched.
class RandomTokens {
 public:
  RandomTokens(std::int64_t vocab, std::uint64_t seed);
  at::Tensor next(std::int64_t batch, std::int64_t length);

 private:
  std::int64_t vocab_;
  at::Generator generator_;
};

// Mean and standard deviation of the negative log-likelihood of tokens[:, 1:] given tokens[:, :-1], in nats a token,
// computed here from the logits (fp32) without gradients.
struct TokenLoss {
  double mean = 0, deviation = 0;
  std::int64_t tokens = 0;
};
[[nodiscard]] TokenLoss evaluate(nsa::LanguageModelImpl& model, const at::Tensor& tokens);

}  // namespace suites::training_cases
