#include "suites/training/update_witness.hpp"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <cmath>
#include <utility>

namespace suites::training_cases {

namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;  // torch's defaults

at::Tensor wide(const at::Tensor& t) { return t.detach().to(at::kCPU, at::kDouble); }

// Distance that rounding explains: of the value as it is stored, and of moments and updates that are computed in fp32
// instead of fp64 (and in 16 bits clipped).
at::Tensor allowed(const at::Tensor& expected, at::ScalarType stored, double lr) {
  const bool narrow = stored == at::kBFloat16 || stored == at::kHalf;
  return expected.abs() * (narrow ? 0x1p-8 : 1e-5) + lr * (narrow ? 0.05 : 2e-3);
}

}  // namespace

bool UpdateWitness::can_watch(const nsa::TrainConfig& config) {
  return config.precision != nsa::Precision::bf16 || (config.master_weights && config.accumulate_grad_batches == 1);
}

UpdateWitness::UpdateWitness(at::Tensor parameter, const nsa::TrainConfig& config)
    : parameter_(std::move(parameter)),
      config_(config),
      expected_(wide(parameter_).clone()),
      last_(expected_.clone()),
      exp_avg_(at::zeros_like(expected_)),
      exp_avg_sq_(at::zeros_like(expected_)) {
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
  if (const at::Tensor& gradient = made.replayed ? captured_ : gradient_; gradient.defined()) {
    // Clipped in the gradient's own type, as it is stored.
    const bool clipped = made.grad_norm > config_.grad_clip;
    const at::Tensor g = wide(clipped ? gradient * (config_.grad_clip / made.grad_norm) : gradient);
    updates_ += 1;
    exp_avg_ = kBeta1 * exp_avg_ + (1 - kBeta1) * g;
    exp_avg_sq_ = kBeta2 * exp_avg_sq_ + (1 - kBeta2) * g * g;
  }
  const at::Tensor now = wide(parameter_);
  Update update{made.step, 0, 0};
  if (updates_ > 0) {
    const at::Tensor mean = exp_avg_ / (1 - std::pow(kBeta1, updates_));
    const at::Tensor deviation = (exp_avg_sq_ / (1 - std::pow(kBeta2, updates_))).sqrt() + kEpsilon;
    const at::Tensor direction = mean / deviation + config_.weight_decay * expected_;
    expected_ = expected_ - made.lr * direction;
    update.applied = ((last_ - now) * direction).sum().item<double>() / direction.square().sum().item<double>();
  }
  const at::Tensor distance = (now - expected_).abs() / allowed(expected_, parameter_.scalar_type(), config_.lr);
  update.error = distance.max().item<double>();  // NaN when anything is
  last_ = now;
  forget();
  return update;
}

void UpdateWitness::forget() { gradient_.reset(); }

}  // namespace suites::training_cases
