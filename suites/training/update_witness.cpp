#include "suites/training/update_witness.hpp"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace suites::training_cases {

namespace {

at::Tensor wide(const at::Tensor& t) { return t.detach().to(at::kCPU, at::kDouble); }

// Distance that rounding explains: of the value as it is stored, and of moments and updates that are computed in fp32
// instead of fp64 (and in 16 bits clipped).
at::Tensor allowed(const at::Tensor& expected, at::ScalarType stored, double lr) {
  const bool narrow = stored == at::kBFloat16 || stored == at::kHalf;
  return expected.abs() * (narrow ? 0x1p-8 : 1e-5) + lr * (narrow ? 0.05 : 2e-3);
}

std::vector<UpdateRule> known_mistakes(const nsa::TrainConfig& config) {
  std::vector<UpdateRule> rules = {
      {.what = "gradients are never cleared and add up from step to step", .clears_until = 0},
      {.what = "gradients are cleared once and then add up from step to step", .clears_until = 1},
      {.what = "gradients are not clipped", .clipping = UpdateRule::Clipping::none},
      {.what = "each tensor is clipped by its own norm", .clipping = UpdateRule::Clipping::alone},
      {.what = "gradients are scaled to train.grad_clip, smaller ones too", .clipping = UpdateRule::Clipping::always},
      {.what = "the moments are lost between steps", .keeps_moments = false},
      {.what = "the moments are not corrected for their start at zero", .corrects_bias = false},
      {.what = "beta1 is 0.95", .beta1 = 0.95},
      {.what = "beta1 is 0 (no momentum)", .beta1 = 0},
      {.what = "beta2 is 0.95", .beta2 = 0.95},
      {.what = "beta2 is 0.99", .beta2 = 0.99},
      {.what = "epsilon is 1e-5 or so", .epsilon = 1e-5},
      {.what = "epsilon is 1e-6, not 1e-8", .epsilon = 1e-6},
      {.what = "epsilon is 1e-7, not 1e-8", .epsilon = 1e-7},
      {.what = "there is no epsilon", .epsilon = 1e-15},
      {.what = "the rate is applied twice", .rate = 2},
      {.what = "half of the rate is applied", .rate = 0.5},
      {.what = "nothing is updated", .rate = 0},
  };
  if (config.weight_decay != 0) {
    rules.push_back({.what = "there is no weight decay", .decay = 0});
    rules.push_back({.what = "weight decay is applied twice", .decay = 2});
    rules.push_back({.what = "weight decay and epsilon stand in each other's place",
                     .epsilon = config.weight_decay,
                     .decay = 1e-8 / config.weight_decay});
    rules.push_back({.what = "weight decay is added to the gradient (Adam, not AdamW)", .decay_is_decoupled = false});
  }
  return rules;
}

}  // namespace

at::Tensor UpdateWitness::Followed::step(const Arrived& arrived, double lr, double weight_decay) {
  weight_decay *= rule.decay;
  if (arrived.whole.defined()) {
    using Clipping = UpdateRule::Clipping;
    const bool adds_up = seen++ > rule.clears_until;
    // Clipping is in place, so what has added up is clipped again.
    gradient = adds_up                             ? (gradient + arrived.whole) * arrived.shrunk
               : rule.clipping == Clipping::whole  ? arrived.clipped
               : rule.clipping == Clipping::alone  ? arrived.alone
               : rule.clipping == Clipping::always ? arrived.always
                                                   : arrived.whole;
    const at::Tensor g = rule.decay_is_decoupled ? gradient : gradient + weight_decay * expected;
    if (!rule.keeps_moments) {
      updates = 0;
      exp_avg = at::zeros_like(expected);
      exp_avg_sq = at::zeros_like(expected);
    }
    updates += 1;
    exp_avg = rule.beta1 * exp_avg + (1 - rule.beta1) * g;
    exp_avg_sq = rule.beta2 * exp_avg_sq + (1 - rule.beta2) * g * g;
  }
  if (updates == 0) return {};
  const double kept = rule.corrects_bias ? 1 : 0;
  const at::Tensor mean = exp_avg / (1 - kept * std::pow(rule.beta1, updates));
  const at::Tensor deviation = (exp_avg_sq / (1 - kept * std::pow(rule.beta2, updates))).sqrt() + rule.epsilon;
  const at::Tensor direction = mean / deviation + (rule.decay_is_decoupled ? weight_decay : 0) * expected;
  expected = expected - lr * rule.rate * direction;
  return direction;
}

bool UpdateWitness::can_watch(const nsa::TrainConfig& config) {
  return config.precision != nsa::Precision::bf16 || (config.master_weights && config.accumulate_grad_batches == 1);
}

UpdateWitness::UpdateWitness(at::Tensor parameter, const nsa::TrainConfig& config)
    : parameter_(std::move(parameter)), config_(config), last_(wide(parameter_).clone()) {
  const auto followed = [this](UpdateRule rule) {
    return Followed{std::move(rule), last_, at::zeros_like(last_), at::zeros_like(last_), {}};
  };
  wanted_ = followed({});
  for (UpdateRule& rule : known_mistakes(config)) mistakes_.push_back(followed(std::move(rule)));
  hook_ = parameter_.register_hook([this](const at::Tensor& gradient) {
    const at::NoGradGuard no_grad;
    const bool capturing =
        gradient.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
    if (capturing && std::exchange(capture_is_over_, false)) captured_.reset();
    at::Tensor& sum = capturing ? captured_ : gradient_;
    sum = sum.defined() ? sum + gradient : gradient.clone();
    return gradient;
  });
}

UpdateWitness::~UpdateWitness() { parameter_.remove_hook(hook_); }

Update UpdateWitness::after(const nsa::train::StepReport& made) {
  const at::NoGradGuard no_grad;
  capture_is_over_ = true;
  const auto share = [&](double norm) { return norm > config_.grad_clip ? config_.grad_clip / norm : 1; };
  Arrived arrived;
  arrived.shrunk = share(made.grad_norm);
  if (const at::Tensor& gradient = made.replayed ? captured_ : gradient_; gradient.defined()) {
    arrived.whole = wide(gradient);
    // Clipped in the gradient's own type, as it is stored.
    arrived.clipped = arrived.shrunk < 1 ? wide(gradient * arrived.shrunk) : arrived.whole;
    arrived.alone = arrived.whole * share(arrived.whole.norm().item<double>());
    arrived.always = arrived.whole * (config_.grad_clip / made.grad_norm);
  }
  const at::Tensor now = wide(parameter_);
  const auto follow = [&](Followed& one) {
    const at::Tensor direction = one.step(arrived, made.lr, config_.weight_decay);
    const at::Tensor distance =
        (now - one.expected).abs() / allowed(one.expected, parameter_.scalar_type(), config_.lr);
    const double error = distance.max().item<double>();  // NaN when anything is
    one.worst = std::isnan(error) ? error : std::max(one.worst, error);
    return std::pair(direction, error);
  };
  const auto [direction, error] = follow(wanted_);
  Update update{made.step, error, 0};
  if (direction.defined())
    update.applied = ((last_ - now) * direction).sum().item<double>() / direction.square().sum().item<double>();
  for (Followed& mistake : mistakes_) follow(mistake);
  last_ = now;
  forget();
  return update;
}

std::vector<std::string> UpdateWitness::mistakes() const {
  std::vector<std::string> found;
  if (wanted_.worst <= 1) return found;
  for (const Followed& mistake : mistakes_)
    if (mistake.worst <= 1) found.push_back(mistake.rule.what);
  return found;
}

void UpdateWitness::forget() { gradient_.reset(); }

}  // namespace suites::training_cases
