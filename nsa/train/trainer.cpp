#include "nsa/train/trainer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "nsa/model/make.hpp"
#include "nsa/train/deal.hpp"
#include "nsa/train/evaluation.hpp"
#include "nsa/train/gradients.hpp"

namespace nsa::train {

namespace {

using Clock = std::chrono::steady_clock;

at::Device device_of(const LanguageModel& model) { return model->parameters().front().device(); }

// Refuses what this loop cannot do, and casts the model before the optimizer copies its parameters.
LanguageModel prepare(LanguageModel model, const TrainConfig& config) {
  if (model.is_empty()) throw std::invalid_argument("trainer: the model is empty");
  if (config.steps < 1 || config.accumulate_grad_batches < 1)
    throw std::invalid_argument(fmt::format("trainer: {} steps of {} accumulated batches: both must be at least 1",
                                            config.steps, config.accumulate_grad_batches));
  const auto reason = graph_refusal(config, model->runtime->flags);
  if (config.cuda_graph == CudaGraph::on && !reason.empty())
    throw std::invalid_argument(fmt::format("trainer: train.cuda_graph: {}", reason));
  model->runtime->recompute = config.gradient_checkpointing;
  model->to(storage_type(config.precision));
  model->train();
  return model;
}

// A token below 0 is larger than all others here. ATen's function wakes its threads for what several ranks read, which
// takes ten times as long, and the GPU has nothing to do meanwhile.
std::uint64_t largest_of(const at::Tensor& tokens) {
  const at::Tensor all = tokens.contiguous();
  const auto* token = all.const_data_ptr<std::int64_t>();
  std::uint64_t largest = 0;
  for (std::int64_t i = 0; i < all.numel(); ++i) largest = std::max(largest, static_cast<std::uint64_t>(token[i]));
  return largest;
}

// `ragged`: the last batches of a stream may be shorter.
void check_tokens(const at::Tensor& tokens, const TrainConfig& config, bool ragged, std::int64_t vocab) {
  const bool long_enough = tokens.dim() == 2 && (tokens.size(1) == config.seq_len + 1 ||
                                                 (ragged && tokens.size(1) > 1 && tokens.size(1) <= config.seq_len));
  if (tokens.scalar_type() != at::kLong || !long_enough || !tokens.is_cpu())
    throw ContractError(fmt::format("batch: {} {} on {}; [batch, {}] int64 on the CPU is needed",
                                    c10::toString(tokens.scalar_type()), fmt::join(tokens.sizes(), "x"),
                                    tokens.device().str(), config.seq_len + 1));
  if (largest_of(tokens) < static_cast<std::uint64_t>(vocab)) return;
  const auto low = tokens.min().item<std::int64_t>(), high = tokens.max().item<std::int64_t>();
  throw ContractError(fmt::format("batch: token {} is outside 0..{}", low < 0 ? low : high, vocab - 1));
}

// Null where the ranks of the group cannot share a batch: refused by name a little later.
std::unique_ptr<GraphStep> make_graph(const LanguageModel& model, const TrainConfig& config, AdamW& optimizer,
                                      const std::shared_ptr<parallel::Group>& group) {
  if (!goes_by_graph(config, model->runtime->flags, device_of(model))) return nullptr;
  if (group && !deal_refusal(config, group->size()).empty()) return nullptr;
  return std::make_unique<GraphStep>(model, config, optimizer, group);
}

std::string why_automatic_is_not(const LanguageModel& model, const TrainConfig& config) {
  if (config.cuda_graph != CudaGraph::automatic || !device_of(model).is_cuda()) return "";
  return graph_refusal(config, model->runtime->flags);
}

std::string first_nonfinite_parameter(const torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters())
    if (!at::isfinite(parameter.value().detach()).all().item<bool>()) return parameter.key();
  return "";
}

// Backward; the message of autograd's anomaly mode when that found a NaN, else "".
std::string backward(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    if (!torch::autograd::AnomalyMode::is_enabled() || message.find("returned nan") == std::string::npos) throw;
    return base::first_line(message);
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
    case Stop::diverged:
      return "diverged";
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
      next_batch_([source = std::move(batches)] {
        return Batch{source(), {}};
      }),
      halt_file_(std::move(halt_file)),
      parameters_(model_->parameters()),
      device_(parameters_.front().device()),
      optimizer_(*model_, config_.weight_decay, config_.master_weights, model_->runtime),
      why_not_captured_(why_automatic_is_not(model_, config_)),
      graph_(make_graph(model_, config_, optimizer_, nullptr)),
      divergence_(model_->config.vocab),
      origin_(origin()) {}

Trainer::Trainer(LanguageModel model, TrainConfig config, std::shared_ptr<BatchStream> stream,
                 std::optional<std::filesystem::path> halt_file)
    : Trainer(std::move(model), std::move(config), std::move(stream), std::move(halt_file), nullptr) {}

Trainer::Trainer(LanguageModel model, TrainConfig config, std::shared_ptr<BatchStream> stream,
                 std::optional<std::filesystem::path> halt_file, std::shared_ptr<parallel::Group> group)
    : model_(prepare(std::move(model), config)),
      config_(std::move(config)),
      stream_(std::move(stream)),
      halt_file_(std::move(halt_file)),
      parameters_(model_->parameters()),
      device_(parameters_.front().device()),
      optimizer_(*model_, config_.weight_decay, config_.master_weights, model_->runtime),
      group_(std::move(group)),
      why_not_captured_(why_automatic_is_not(model_, config_)),
      graph_(make_graph(model_, config_, optimizer_, group_)),
      divergence_(model_->config.vocab) {
  if (stream_ == nullptr) throw std::invalid_argument("trainer: no stream");
  next_batch_ = [stream = stream_] {
    try {
      return stream->next();
    } catch (const ContractError&) {
      throw;
    } catch (const std::runtime_error& error) {
      throw DataError(error.what());
    }
  };
  origin_ = origin();
  if (group_) join_group();
}

StepReport Trainer::step(bool goes_on) {
  const auto start = Clock::now();
  StepReport report;
  report.step = steps_made_;
  report.lr = learning_rate(config_, steps_made_);
  forget_gradients();
  guarded_step(report, goes_on);
  forget_gradients();
  if (device_.is_cuda() && !is_ahead()) torch::cuda::synchronize(device_.index());
  if (report.stop == Stop::none) {
    ++steps_made_;
    last_loss_ = report.loss;
    tokens_seen_ += report.tokens;
    divergence_.step(steps_made_, report.loss, report.grad_norm);
    origin_ = ahead_ ? ahead_->origin : origin();
  } else {
    ahead_.reset();
    if (stream_) stream_->seek(origin_.data);
    set_random_states(origin_.random, device_);
  }
  report.seconds = base::seconds_since(start);
  if (report.stop == Stop::none) seconds_spent_ += report.seconds;
  return report;
}

std::optional<std::pair<Stop, std::string>> Trainer::refused() const {
  if (halt_file_ && std::filesystem::exists(*halt_file_))
    return std::pair(Stop::halted, fmt::format("{} exists", halt_file_->string()));
  if (const auto why = diverged()) return std::pair(Stop::diverged, *why);
  return std::nullopt;
}

bool Trainer::graph_serves(const std::vector<Batch>& batches) const {
  return graph_ && graph_->serves(batches) && !model_->runtime->observe;
}

void Trainer::guarded_step(StepReport& report, bool goes_on) {
  const auto stop = [&](Stop reason, std::string anomaly) {
    report.stop = reason;
    report.anomaly = std::move(anomaly);
    if (reason != Stop::nonfinite_loss && reason != Stop::nonfinite_gradient) return;
    report.parameter = first_nonfinite_parameter(*model_);
    if (!report.parameter.empty()) return;  // the same on all ranks
    if (group_) return find_culprit(report);
    report.parameter = first_nonfinite_gradient(*model_);
  };
  const bool begun = is_ahead();
  if (auto why = begun ? std::nullopt : refused()) return stop(why->first, std::move(why->second));
  const std::vector<Batch> batches = fetch(report);
  if (const auto wanted = config_.accumulate_grad_batches; static_cast<std::int64_t>(batches.size()) < wanted)
    return stop(Stop::end_of_data, fmt::format("no batch {} of {} for this step", batches.size() + 1, wanted));
  std::optional<torch::autograd::DetectAnomalyGuard> detect_anomaly;
  if (model_->runtime->flags.detect_anomaly) detect_anomaly.emplace();
  at::Tensor figures;
  std::string found_by_autograd;
  if (begun || graph_serves(batches)) figures = step_by_graph(batches, report, begun, goes_on);
  by_graph_ = figures.defined();
  if (!by_graph_) {
    at::Tensor loss;
    if (graph_ && group_ && !graph_->leaves_room()) graph_->release();  // no rank runs out of memory alone
    try {
      found_by_autograd = accumulate(batches, report, loss);
    } catch (const c10::OutOfMemoryError&) {  // the graph's memory lies beside that of an ordinary step
      if (!graph_ || group_) throw;
      graph_->release();
      forget_gradients();
      set_random_states(origin_.random, device_);
      loss.reset();
      found_by_autograd = accumulate(batches, report, loss);
    }
    // The only synchronisation of a step, and the last moment before the update: NaN and infinities must not pass.
    if (group_) {
      figures = figures_of_all(loss, found_by_autograd);
      if (found_by_autograd.empty() && figures[2].item<double>() > 0) found_by_autograd = "autograd found a NaN";
    } else {
      const at::Tensor norm = optimizer_.gradient_norm().to(loss.device(), loss.scalar_type());
      figures = at::stack({loss, norm}).to(at::kCPU, at::kDouble);
    }
  }
  report.loss = figures[0].item<double>();
  report.grad_norm = figures[1].item<double>();
  if (is_ahead() && !(std::isfinite(report.loss) && std::isfinite(report.grad_norm))) {
    updating_ = false;  // what is under way changes nothing
    graph_->take_back(own_share(batches), [this](std::string_view name) {
      if (tell_phase_) tell_phase_(name);
    });
  }
  if (!std::isfinite(report.loss))
    return stop(Stop::nonfinite_loss, fmt::format("loss is {}", std::isnan(report.loss) ? "NaN"
                                                                : report.loss > 0       ? "Infinity"
                                                                                        : "-Infinity"));
  if (!found_by_autograd.empty()) return stop(Stop::nonfinite_gradient, found_by_autograd);
  if (!std::isfinite(report.grad_norm)) {
    const std::string parameter = first_nonfinite_gradient(*model_);
    return stop(Stop::nonfinite_gradient, parameter.empty() ? "the norm of finite gradients overflows" : parameter);
  }
  if (by_graph_) return;  // which guards its update itself
  phase("update");
  optimizer_.clipped_step(report.grad_norm, config_.grad_clip, report.lr);
  updating_ = false;
}

at::Tensor Trainer::step_by_graph(const std::vector<Batch>& batches, StepReport& report, bool begun, bool goes_on) {
  const auto tell = [this](std::string_view name) { phase(name); };
  try {
    if (!begun) graph_->begin(own_share(batches), report.lr, tell, wishes_of_this_rank());
    if (goes_on) begin_ahead();
    at::Tensor figures = graph_->end();
    report.replayed = graph_->last_replayed();
    if (report.replayed) report.wait_seconds = graph_->wait_seconds();
    updating_ = is_ahead();
    if (group_) note_sums(graph_->wishes());
    return figures;
  } catch (const parallel::Error&) {
    if (graph_->changed_nothing()) updating_ = false;
    throw;
  } catch (const Unsupported& refused) {
    if (config_.cuda_graph == CudaGraph::on || updating_) throw;
    why_not_captured_ = refused.what();
  }
  graph_.reset();
  forget_gradients();
  set_random_states(origin_.random, device_);
  return {};
}

// What it throws is not of the step that is under way.
void Trainer::begin_ahead() {
  if (!stream_ || !graph_->may_go_ahead() || refused()) return;
  Ahead next;
  next.origin = origin();
  try {
    next.batches = fetch(next.report);
    if (graph_serves(next.batches)) {
      graph_->begin(
          own_share(next.batches), learning_rate(config_, steps_made_ + 1),
          [this](std::string_view name) { phase(name); }, wishes_of_this_rank());
      next.begun = true;
    }
  } catch (const std::exception&) {
    next.failed = std::current_exception();
  }
  ahead_ = std::move(next);
}

Wishes Trainer::wishes_of_this_rank() const { return group_ && ask_wishes_ ? ask_wishes_() : Wishes{}; }

// Of the step that is next, which may have them already.
std::vector<Batch> Trainer::fetch(StepReport& report) {
  if (ahead_) {
    Ahead taken = *std::exchange(ahead_, std::nullopt);
    if (taken.failed) std::rethrow_exception(taken.failed);
    report.tokens = taken.report.tokens;
    report.fetch_seconds = taken.report.fetch_seconds;
    return std::move(taken.batches);
  }
  phase("fetch");
  const auto start = Clock::now();
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < config_.accumulate_grad_batches; ++i) {
    Batch batch = next_batch_();
    if (!batch.tokens.defined() || batch.tokens.numel() == 0) break;
    check_tokens(batch.tokens, config_, stream_ != nullptr, model_->config.vocab);
    report.tokens += predictions(batch);
    batches.push_back(std::move(batch));
  }
  report.fetch_seconds = base::seconds_since(start);
  return batches;
}

std::string Trainer::accumulate(const std::vector<Batch>& batches, const StepReport& report, at::Tensor& loss) {
  const std::vector<Batch> own = own_share(batches);
  const bool reduces = sums_ != nullptr;
  // Where autograd may stop a backward half-way, the others would wait for its reduction: then that comes afterwards.
  const bool with_the_last = reduces && !torch::autograd::AnomalyMode::is_enabled();
  std::string found_by_autograd;
  for (const Batch& batch : own) {
    phase("forward");
    const bool sums = with_the_last && &batch == &own.back();
    // 1/batches for batches of equal size; at the end of the data and between packed rows they differ.
    const double parts = static_cast<double>(report.tokens) / static_cast<double>(predictions(batch));
    const at::Tensor share = model_->loss(batch.tokens.to(device_), batch.cu_seqlens) / parts;
    phase("backward");
    if (sums) sums_->begin();
    if (sums)
      sums_->backward(share);
    else
      found_by_autograd = backward(share);
    loss = loss.defined() ? loss + share.detach() : share.detach();
    if (!found_by_autograd.empty()) break;
  }
  if (!loss.defined()) loss = at::zeros({}, at::TensorOptions().device(device_).dtype(at::kFloat));
  if (reduces && (!with_the_last || own.empty())) {
    phase("backward");
    sums_->begin();
    sums_->backward_of_nothing();
  }
  return found_by_autograd;
}

std::vector<StepReport> Trainer::run(const std::function<void(const StepReport&)>& each) {
  std::vector<StepReport> reports;
  while (steps_made_ < config_.steps) {
    reports.push_back(step());
    if (each) each(reports.back());
    if (reports.back().stop != Stop::none) break;
  }
  return reports;
}

std::optional<std::string> Trainer::diverged() const {
  return config_.stop_on_divergence ? divergence_.alarm() : std::nullopt;
}

Trainer::Origin Trainer::origin() const {
  return {stream_ ? stream_->position() : nlohmann::json(), random_states(device_)};
}

void Trainer::forget_gradients() {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

void Trainer::phase(std::string_view name) {
  if (tell_phase_) tell_phase_(name);
  if (name == "update" || name == "replay") updating_ = true;
}

}  // namespace nsa::train
