// A trainer among others: what its ranks must have in common, the figures of a step of all, and whose share was bad.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/cuda.h>

#include <cmath>

#include "nsa/train/deal.hpp"
#include "nsa/train/gradients.hpp"
#include "nsa/train/named_parameters.hpp"
#include "nsa/train/trainer.hpp"

namespace nsa::train {

namespace {

// Names, shapes and dtypes: without them a sum over all would add what does not belong together.
parallel::Facts shapes_of(const parallel::NamedTensors& parameters) {
  parallel::Facts facts;
  for (const auto& [name, tensor] : parameters)
    facts.emplace_back("parameter " + name,
                       fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", ")));
  return facts;
}

}  // namespace

void Trainer::join_group() {
  if (const auto reason = deal_refusal(config_, group_->size()); !reason.empty())
    throw std::invalid_argument("trainer: " + reason);
  const auto parameters = named_parameters_of(*model_);
  parallel::agree(*group_, "parameters", shapes_of(parameters));
  // The Reducer keeps the nodes of autograd that write the gradients, and those work in the stream in which they were
  // made. A graph holds the work of its own stream alone.
  if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  {
    const c10::OptionalStreamGuard in_the_graphs_stream(graph_ ? graph_->stream() : std::nullopt);
    sums_ = std::make_unique<parallel::GradientSums>(parameters, group_);
  }
  if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
}

std::vector<Batch> Trainer::own_share(const std::vector<Batch>& batches) const {
  if (!group_) return batches;
  std::vector<Batch> own;
  for (std::size_t place = 0; place < batches.size(); ++place) {
    Batch share = share_of(batches[place], static_cast<std::int64_t>(place), group_->rank(), group_->size());
    if (share.tokens.defined()) own.push_back(std::move(share));
  }
  return own;
}

at::Tensor Trainer::figures_of_all(const at::Tensor& loss, const std::string& found_by_autograd) {
  own_loss_ = loss;
  own_found_by_autograd_ = found_by_autograd;
  const Wishes asked = ask_wishes_ ? ask_wishes_() : Wishes{};
  // Pinned, so that nothing waits for the device, and with it for the other ranks, before sum() does.
  at::Tensor own = at::empty({2 + static_cast<std::int64_t>(asked.size())},
                             at::TensorOptions(at::kDouble).pinned_memory(device_.is_cuda()));
  own[1] = found_by_autograd.empty() ? 0.0 : 1.0;
  for (std::size_t i = 0; i < asked.size(); ++i) own[2 + static_cast<std::int64_t>(i)] = asked[i];
  // All of this is given to the device while it is still busy with backward.
  const at::Tensor norm = optimizer_.gradient_norm().to(device_, at::kDouble).reshape({1});
  own = own.to(device_, /*non_blocking=*/true);
  own[0].copy_(loss);
  group_->sum(own, "figures");
  const at::Tensor all = at::cat({own, norm}).to(at::kCPU);
  group_->check();
  Wishes sums{};
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = all[2 + static_cast<std::int64_t>(i)].item<double>();
  note_sums(sums);
  return at::cat({all.narrow(0, 0, 1), all.narrow(0, all.size(0) - 1, 1), all.narrow(0, 1, 1)});
}

void Trainer::note_sums(const Wishes& wishes) {
  wishes_ = wishes;
  if (!std::exchange(first_step_checked_, true)) group_->stop_checking();
}

void Trainer::find_culprit(StepReport& report) {
  // What is not finite on one rank is not finite in the sum, at the same place.
  report.parameter = first_nonfinite_gradient(*model_);
  const bool finite =
      by_graph_ ? graph_->own_was_finite() : std::isfinite(own_loss_.item<double>()) && sums_->own_were_finite();
  const nlohmann::json own = {{"finite", finite}, {"autograd", by_graph_ ? "" : own_found_by_autograd_}};
  const auto all = group_->gather("not finite", own.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto told = nlohmann::json::parse(all[rank]);
    const std::string autograd = told.at("autograd");
    if (told.at("finite").get<bool>() && autograd.empty()) continue;
    report.rank = static_cast<int>(rank);
    if (!autograd.empty()) report.anomaly = autograd;
    report.anomaly += fmt::format(" (first on rank {})", rank);
    return;
  }
  report.anomaly += " (of the sum over all ranks; each rank's own share is finite)";
}

void Trainer::compare_with_all(const parallel::Facts& more) {
  if (!group_) return;
  parallel::Facts facts = more;
  facts.emplace_back("step", std::to_string(steps_made_));
  facts.emplace_back("data", origin_.data.dump());
  for (const auto& [key, value] : identity(Config{model_->config, config_, ""})) facts.emplace_back(key, value);
  parallel::agree(*group_, "handshake", facts);
  compare_weights_with_all();
}

void Trainer::compare_weights_with_all() {
  if (group_)
    parallel::agree_on_bits(*group_, fmt::format("weights after step {}", steps_made_), named_parameters_of(*model_));
}

parallel::GradientSums::Overlap Trainer::overlap() const {
  return sums_ && !by_graph_ ? sums_->overlap() : parallel::GradientSums::Overlap{};
}

}  // namespace nsa::train
