#include "nsa/train/trainer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/cuda.h>

#include <chrono>
#include <cmath>

#include "nsa/train/gradients.hpp"

namespace nsa::train {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

at::ScalarType dtype_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return at::kDouble;
    case Precision::fp32:
      return at::kFloat;
    case Precision::bf16:
      return at::kBFloat16;
  }
  throw std::invalid_argument("trainer: unknown precision");
}

at::Device device_of(const LanguageModel& model) { return model->parameters().front().device(); }

// Refuses what this loop cannot do, and casts the model before the optimizer copies its parameters.
LanguageModel prepare(LanguageModel model, const TrainConfig& config) {
  if (model.is_empty()) throw std::invalid_argument("trainer: the model is empty");
  if (config.gradient_checkpointing)
    throw std::invalid_argument(
        "train.gradient_checkpointing = true: not supported yet by this trainer; set it to false");
  if (config.steps < 1 || config.accumulate_grad_batches < 1)
    throw std::invalid_argument(fmt::format("trainer: {} steps of {} accumulated batches: both must be at least 1",
                                            config.steps, config.accumulate_grad_batches));
  model->to(dtype_of(config.precision));
  model->train();
  return model;
}

void check_tokens(const at::Tensor& tokens, const TrainConfig& config, std::int64_t vocab) {
  if (tokens.scalar_type() != at::kLong || tokens.dim() != 2 || tokens.size(1) != config.seq_len + 1 ||
      !tokens.is_cpu())
    throw ContractError(fmt::format("batch: {} {} on {}; [batch, {}] int64 on the CPU is needed",
                                    c10::toString(tokens.scalar_type()), fmt::join(tokens.sizes(), "x"),
                                    tokens.device().str(), config.seq_len + 1));
  const auto low = tokens.min().item<std::int64_t>(), high = tokens.max().item<std::int64_t>();
  if (low < 0 || high >= vocab)
    throw ContractError(fmt::format("batch: token {} is outside 0..{}", low < 0 ? low : high, vocab - 1));
}

// Backward; the message of autograd's anomaly mode when that found a NaN, else "".
std::string backward(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    if (!torch::autograd::AnomalyMode::is_enabled() || message.find("returned nan") == std::string::npos) throw;
    return message.substr(0, message.find('\n'));
  }
  return "";
}

}  // namespace

std::string_view to_string(Stop stop) {
  switch (stop) {
    case Stop::none:
      return "none";
    case Stop::nonfinite_loss:
      return "nonfinite_loss";
    case Stop::nonfinite_gradient:
      return "nonfinite_gradient";
    case Stop::end_of_data:
      return "end_of_data";
    case Stop::halted:
      return "halted";
  }
  return "?";
}

Trainer::Trainer(LanguageModel model, TrainConfig config, BatchSource batches,
                 std::optional<std::filesystem::path> halt_file)
    : model_(prepare(std::move(model), config)),
      config_(std::move(config)),
      batches_(std::move(batches)),
      halt_file_(std::move(halt_file)),
      optimizer_(model_->parameters(), config_.weight_decay) {}

StepReport Trainer::step() {
  const auto start = Clock::now();
  StepReport report;
  report.step = next_step_;
  report.lr = learning_rate(config_, next_step_);
  model_->zero_grad();
  guarded_step(report);
  model_->zero_grad();
  if (device_of(model_).is_cuda()) torch::cuda::synchronize(device_of(model_).index());
  report.seconds = seconds_since(start);
  if (report.stop == Stop::none) ++next_step_;
  return report;
}

void Trainer::guarded_step(StepReport& report) {
  const auto stop = [&](Stop reason, std::string anomaly) {
    report.stop = reason;
    report.anomaly = std::move(anomaly);
  };
  if (halt_file_ && std::filesystem::exists(*halt_file_))
    return stop(Stop::halted, fmt::format("{} exists", halt_file_->string()));

  std::optional<torch::autograd::DetectAnomalyGuard> detect_anomaly;
  if (model_->runtime->flags.detect_anomaly) detect_anomaly.emplace();
  at::Tensor loss_sum;
  std::string found_by_autograd;
  for (std::int64_t i = 0; i < config_.accumulate_grad_batches && found_by_autograd.empty(); ++i) {
    const at::Tensor tokens = fetch(report);
    if (!tokens.defined())
      return stop(Stop::end_of_data,
                  fmt::format("no batch {} of {} for this step", i + 1, config_.accumulate_grad_batches));
    const at::Tensor loss = model_->loss(tokens);
    found_by_autograd = backward(loss / static_cast<double>(config_.accumulate_grad_batches));
    loss_sum = loss_sum.defined() ? loss_sum + loss.detach() : loss.detach();
  }

  // The only synchronisation of a step, and the last moment before the update: NaN and infinities must not pass.
  const at::Tensor norm = global_norm(*model_).to(loss_sum.device(), loss_sum.scalar_type());
  const at::Tensor figures = at::stack({loss_sum, norm}).to(at::kCPU, at::kDouble);
  report.loss = figures[0].item<double>() / static_cast<double>(config_.accumulate_grad_batches);
  report.grad_norm = figures[1].item<double>();
  if (!std::isfinite(report.loss)) return stop(Stop::nonfinite_loss, fmt::format("loss is {}", report.loss));
  if (!found_by_autograd.empty()) return stop(Stop::nonfinite_gradient, found_by_autograd);
  if (!std::isfinite(report.grad_norm)) {
    const std::string parameter = first_nonfinite_gradient(*model_);
    return stop(Stop::nonfinite_gradient, parameter.empty() ? "the norm of finite gradients overflows" : parameter);
  }
  clip_to_norm(*model_, report.grad_norm, config_.grad_clip);
  optimizer_.step(report.lr);
}

at::Tensor Trainer::fetch(StepReport& report) {
  const auto start = Clock::now();
  const at::Tensor tokens = batches_();
  report.fetch_seconds += seconds_since(start);
  if (!tokens.defined() || tokens.numel() == 0) return {};
  check_tokens(tokens, config_, model_->config.vocab);
  report.tokens += tokens.size(0) * (tokens.size(1) - 1);
  return tokens.to(device_of(model_));
}

std::vector<StepReport> Trainer::run(const std::function<void(const StepReport&)>& each) {
  std::vector<StepReport> reports;
  while (next_step_ < config_.steps) {
    reports.push_back(step());
    if (each) each(reports.back());
    if (reports.back().stop != Stop::none) break;
  }
  return reports;
}

}  // namespace nsa::train
