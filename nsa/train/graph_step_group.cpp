// The captured step among several ranks: one sum of all gradients, one of the figures, and what the ranks must do
// alike.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "nsa/train/graph_step.hpp"

namespace nsa::train {

namespace {

// Where a tensor begins in a buffer of many: what kernels of 16-byte loads want, and more.
constexpr std::int64_t kAlignment = 256;
// After trouble is known, for the kernels that wait for the other ranks to be ended by the abort.
constexpr std::chrono::seconds kForTheAbort{10};

// The gradients of one dtype, and where each is in their buffer.
struct Flat {
  std::vector<std::size_t> which;
  std::vector<std::int64_t> begins;
  std::int64_t elements = 0, used = 0;

  void add(std::size_t parameter, const at::Tensor& gradient) {
    const std::int64_t unit = kAlignment / static_cast<std::int64_t>(gradient.element_size());
    which.push_back(parameter);
    begins.push_back(elements);
    used += gradient.numel();
    elements += (gradient.numel() + unit - 1) / unit * unit;
  }
};

}  // namespace

void GraphStep::agree(const std::string& why_not) const {
  const auto all = group_ ? group_->gather("captured step", why_not) : std::vector<std::string>{why_not};
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw Unsupported(group_ ? fmt::format("{} (rank {})", all[rank], rank) : all[rank]);
}

void GraphStep::sum(at::Tensor& tensor, std::string_view name) {
  if (capturing_)
    group_->sum_in_graph(tensor);
  else
    group_->sum(tensor, name);
}

// Zeros between the gradients add nothing.
void GraphStep::sum_gradients() {
  std::map<at::ScalarType, Flat> flats;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) {
      const std::string name = model_->named_parameters().keys()[i];
      throw parallel::Disagreement(fmt::format("rank {}: backward gave no gradient to {}", group_->rank(), name),
                                   {group_->rank()}, name);
    }
    flats[gradient.scalar_type()].add(i, gradient);
  }
  summed_ = 0;
  for (const auto& [type, flat] : flats) {
    at::Tensor all = at::empty({flat.elements}, parameters_.front().options().dtype(type).requires_grad(false));
    if (flat.used < flat.elements) all.zero_();
    std::vector<at::Tensor> given, places;
    for (std::size_t k = 0; k < flat.which.size(); ++k) {
      given.push_back(parameters_[flat.which[k]].grad());
      places.push_back(all.narrow(0, flat.begins[k], given.back().numel()).view(given.back().sizes()));
    }
    at::_foreach_copy_(places, given);
    own_.push_back(all.sum());  // the sum of all ranks takes its place
    sum(all, flats.size() == 1 ? "gradients" : fmt::format("gradients of {}", c10::toString(type)));
    for (std::size_t k = 0; k < flat.which.size(); ++k) parameters_[flat.which[k]].mutable_grad() = places[k];
    summed_ += flat.elements;
  }
}

at::Tensor GraphStep::sum_figures(const at::Tensor& loss) {
  own_.push_back(loss);
  at::Tensor all = at::cat({loss.to(at::kDouble).reshape({1}), told_});
  sum(all, "figures");
  return all;
}

bool GraphStep::own_was_finite() const {
  for (const at::Tensor& value : own_)
    if (!std::isfinite(value.item<double>())) return false;
  return !own_.empty();
}

// A rank that is lost leaves this one's kernels waiting, until the thread that watches aborts the communicator. Not a
// copy to the CPU waits for them: in it the driver holds what that thread needs.
void GraphStep::await(const c10::cuda::CUDAEvent& done) {
  std::optional<std::chrono::steady_clock::time_point> until;
  while (!done.query()) {
    if (!until && group_->troubled()) until = std::chrono::steady_clock::now() + kForTheAbort;
    if (until && std::chrono::steady_clock::now() > *until) {
      group_->check();
      throw parallel::PeerDied("the sums of a captured step do not end, also after their abort", {});
    }
    std::this_thread::yield();
  }
}

void GraphStep::throw_broken_off() {
  changed_nothing_ = true;
  group_->check();
  throw parallel::PeerDied("the sums of a captured step were broken off", {});
}

// What was broken off has not counted all ranks, and by that the update was left out.
void GraphStep::read_sums(const at::Tensor& figures) {
  if (!group_) return;
  if (!(figures[2].item<double>() == ranks())) throw_broken_off();
  for (std::size_t i = 0; i < wishes_.size(); ++i)
    wishes_[i] = figures[3 + static_cast<std::int64_t>(i)].item<double>();
}

}  // namespace nsa::train
