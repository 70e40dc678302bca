#include "nsa/parallel/gradient_sums.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "nsa/parallel/inside.hpp"

namespace nsa::parallel {

namespace {

// Sums a bucket over all ranks. Neither divides nor multiplies.
class SumHook : public c10d::CommHookInterface {
 public:
  using Launched = std::function<void(const at::Tensor& own)>;
  SumHook(Group::Inside& group, Launched launched) : group_(group), launched_(std::move(launched)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    launched_(bucket.getBuffer());
    return group_.begin_sum(bucket.getBufferRef(), fmt::format("gradients bucket {}", bucket.getIndex())).future;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  Group::Inside& group_;
  Launched launched_;
};

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : named) all.push_back(tensor);
  return all;
}

// A loss of zero that every parameter takes part in, so that backward gives each a gradient of zeros.
at::Tensor nothing(const std::vector<at::Tensor>& parameters) {
  at::Tensor sum;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor part = parameter.flatten().narrow(0, 0, 1).sum() * 0;
    sum = sum.defined() ? sum + part.to(sum.scalar_type()) : part;
  }
  return sum;
}

}  // namespace

struct GradientSums::Inside {
  NamedTensors named;
  std::vector<at::Tensor> parameters;
  std::shared_ptr<Group> group;
  std::unique_ptr<c10d::Reducer> reducer;
  std::size_t buckets = 0, launched = 0;
  std::uint64_t first_sequence = 0;
  double last_launch_s = 0;
  std::vector<at::Tensor> own_sums;  // of each bucket, a scalar
  Overlap overlap;
};

GradientSums::GradientSums(NamedTensors parameters, std::shared_ptr<Group> group, std::int64_t bucket_bytes)
    : inside_(std::make_unique<Inside>()) {
  Inside& in = *inside_;
  in.named = std::move(parameters);
  in.parameters = tensors_of(in.named);
  in.group = std::move(group);
  const std::size_t count = in.parameters.size();
  // Backward reaches the last parameters first.
  std::vector<at::Tensor> reversed(in.parameters.rbegin(), in.parameters.rend());
  std::vector<std::int64_t> indices(count);
  for (std::size_t i = 0; i < count; ++i) indices[i] = static_cast<std::int64_t>(count - 1 - i);
  const auto limit = static_cast<std::size_t>(bucket_bytes);
  const auto first = std::min<std::size_t>(limit, c10d::kDefaultFirstBucketBytes);
  auto assigned = std::get<0>(
      c10d::compute_bucket_assignment_by_size(reversed, {first, limit}, std::vector<bool>(count, false), indices));
  in.buckets = assigned.size();
  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < count; ++i) names[i] = in.named[i].first;
  in.reducer = std::make_unique<c10d::Reducer>(
      in.parameters, assigned, in.group->inside().processes.group, std::vector<bool>(count, false), bucket_bytes,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, names, static_cast<std::int64_t>(first),
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<std::int64_t>{});
  in.reducer->register_comm_hook(std::make_unique<SumHook>(in.group->inside(), [this](const at::Tensor& own) {
    ++inside_->launched;
    inside_->own_sums.push_back(own.sum());  // the sum of all ranks takes its place
    inside_->last_launch_s = inside_->group->now_s();
  }));
  begin();
  backward_of_nothing();
  try {
    in.group->inside().recorded("order of buckets", [&] { (void)in.reducer->rebuild_buckets(); });
  } catch (const std::exception& error) {
    in.group->explain(error);
  }
  in.buckets = in.reducer->get_grad_buckets().size();
  for (at::Tensor& parameter : in.parameters) parameter.mutable_grad().reset();
}

GradientSums::~GradientSums() = default;

void GradientSums::begin() {
  Inside& in = *inside_;
  in.launched = 0;
  in.own_sums.clear();
  const auto last = in.group->inside().ring.last();
  in.first_sequence = last ? last->sequence + 1 : 1;
  try {
    in.reducer->prepare_for_backward({});
  } catch (const std::exception& error) {
    in.group->explain(error);
  }
}

void GradientSums::backward(const at::Tensor& loss) {
  Inside& in = *inside_;
  in.overlap = {};
  try {
    loss.backward();
  } catch (const std::exception& error) {
    in.group->explain(error);
  }
  if (in.launched < in.buckets) {
    std::vector<std::string> without;
    for (const auto& [name, parameter] : in.named)
      if (!parameter.grad().defined()) without.push_back(name);
    throw Disagreement(
        fmt::format("rank {}: backward gave no gradient to {}, and {} of {} buckets cannot be summed", in.group->rank(),
                    without.empty() ? "some parameters" : fmt::format("{}", fmt::join(without, ", ")),
                    in.buckets - in.launched, in.buckets),
        {in.group->rank()}, without.empty() ? "gradients" : without.front());
  }
  if (in.group->options().device.is_cuda()) return;  // whose work goes on when the host has given it all
  // Times in which a sum was under way: they are begun in order, so their union is found in one pass.
  double until = 0;
  for (const CollectiveRecord& record : in.group->collectives()) {
    if (record.sequence < in.first_sequence || record.ended_s < 0) continue;
    const double begin = std::max(record.began_s, until), end = std::max(record.ended_s, begin);
    in.overlap.reducing_s += end - begin;
    in.overlap.overlapped_s += std::max(0.0, std::min(end, in.last_launch_s) - begin);
    until = end;
  }
}

void GradientSums::backward_of_nothing() { backward(nothing(inside_->parameters)); }

bool GradientSums::own_were_finite() const {
  return std::all_of(inside_->own_sums.begin(), inside_->own_sums.end(),
                     [](const at::Tensor& sum) { return std::isfinite(sum.item<double>()); });
}

GradientSums::Overlap GradientSums::overlap() const { return inside_->overlap; }
std::size_t GradientSums::buckets() const { return inside_->buckets; }

}  // namespace nsa::parallel
