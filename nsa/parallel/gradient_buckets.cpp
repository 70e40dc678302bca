#include "nsa/parallel/gradient_buckets.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/launch.hpp"
#include "nsa/parallel/errors.hpp"
#include "nsa/parallel/world.hpp"

namespace nsa::parallel {

namespace {

// Where a gradient begins in its bucket: what kernels of 16-byte loads want, and more.
constexpr std::int64_t kPlaceAlignment = 256;

std::int64_t placed_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

void wait_for(const c10::Stream& waiting, const c10::Stream& done) {
  c10::Event event(done.device_type());
  event.record(done);
  event.block(waiting);
}

}  // namespace

BucketSizes bucket_sizes(const base::Environment& environment) {
  BucketSizes sizes;
  base::Variables variables(environment);
  const auto asked = sum_bucket_kb(variables);
  if (!variables.mistakes().empty()) throw base::EnvironmentInvalid(variables.mistakes());
  if (!asked) return sizes;
  sizes.bytes = *asked > 0 ? *asked << 10 : std::numeric_limits<std::int64_t>::max();
  sizes.last_bytes = *asked > 0 ? std::min(sizes.bytes, sizes.last_bytes) : sizes.bytes;
  sizes.lying_bytes = std::min(sizes.bytes / 16, sizes.lying_bytes);
  return sizes;
}

std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<at::Tensor>& tensors, const BucketSizes& sizes) {
  std::vector<std::vector<std::size_t>> plan;
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {  // the last bucket first: it is the one whose size matters
    const std::int64_t limit = plan.size() < 2 ? sizes.last_bytes : sizes.bytes, bytes = placed_bytes(tensors[i]);
    const bool another = plan.empty() || filled + bytes > limit ||
                         tensors[i].scalar_type() != tensors[plan.back().front()].scalar_type();
    if (another) {
      plan.emplace_back();
      filled = 0;
    }
    plan.back().push_back(i);
    filled += bytes;
  }
  std::reverse(plan.begin(), plan.end());
  return plan;
}

struct GradientBuckets::Inside {
  struct Bucket {
    std::vector<std::size_t> which;  // parameters
    at::Tensor buffer;
    std::vector<at::Tensor> places;        // of each, in the buffer; the small ones first
    at::Tensor own_small;                  // as that beginning of the buffer, with this rank's own
    std::vector<at::Tensor> small_places;  // in it
    std::size_t missing = 0;               // gradients that backward has not made yet
  };

  NamedTensors parameters;
  int rank = 0;
  std::int64_t lying_bytes = 0;
  Sum sum;
  std::vector<Bucket> buckets;
  std::vector<std::size_t> bucket_of;  // by parameter
  std::int64_t elements = 0;
  // Of the step that is under way:
  bool listening = false;  // in backward()
  bool begun = false;      // backward() has ended, finish() has not
  std::vector<bool> ready;
  std::size_t next = 0;  // the first bucket that was not begun
  std::optional<c10::Stream> beside;
  std::vector<at::Tensor> own;  // what autograd made: read beside backward, so not its to use again before finish()

  [[nodiscard]] c10::Stream current_stream() const {
    const at::Device device = parameters.front().second.device();
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  }

  [[nodiscard]] bool is_small(const at::Tensor& tensor) const {
    return static_cast<std::int64_t>(tensor.nbytes()) < lying_bytes;
  }

  void begin_step() {
    next = 0;
    beside.reset();
    own.clear();
    ready.assign(parameters.size(), false);
    for (Bucket& bucket : buckets) bucket.missing = bucket.which.size();
    allocate();
  }

  void allocate() {
    for (Bucket& bucket : buckets)
      if (!bucket.buffer.defined()) allocate(bucket);
  }

  // Zeros between the gradients add nothing, and stay.
  void allocate(Bucket& bucket) const {
    const at::Tensor& first = parameters[bucket.which.front()].second;
    const auto width = static_cast<std::int64_t>(first.element_size());
    std::vector<std::int64_t> begins(bucket.which.size());
    std::int64_t size = 0, small = 0;
    for (const bool small_ones : {true, false}) {
      for (std::size_t k = 0; k < begins.size(); ++k) {
        const at::Tensor& parameter = parameters[bucket.which[k]].second;
        if (is_small(parameter) == small_ones) begins[k] = std::exchange(size, size + placed_bytes(parameter) / width);
      }
      if (small_ones) small = size;
    }
    const auto options = first.options().requires_grad(false);
    bucket.buffer = at::zeros({size}, options);
    bucket.own_small = at::zeros({small}, options);
    for (std::size_t k = 0; k < begins.size(); ++k) {
      const at::Tensor& parameter = parameters[bucket.which[k]].second;
      const auto place_in = [&](const at::Tensor& buffer) {
        return buffer.narrow(0, begins[k], parameter.numel()).view(parameter.sizes());
      };
      bucket.places.push_back(place_in(bucket.buffer));
      if (is_small(parameter)) bucket.small_places.push_back(place_in(bucket.own_small));
    }
  }

  // From the thread in which autograd works for this device: there is one.
  void note(std::size_t parameter) {
    if (!listening) return;
    if (ready[parameter])
      throw std::logic_error(fmt::format("a second gradient of {} in one backward pass", parameters[parameter].first));
    ready[parameter] = true;
    --buckets[bucket_of[parameter]].missing;
    while (next < buckets.size() && buckets[next].missing == 0) begin_next();
  }

  void begin_next() {
    const at::NoGradGuard no_grad;
    Bucket& bucket = buckets[next];
    const std::string name = buckets.size() == 1 ? "gradients" : fmt::format("gradients bucket {}", next);
    ++next;
    std::vector<at::Tensor> made;
    made.reserve(bucket.which.size());
    for (const std::size_t i : bucket.which) made.push_back(parameters[i].second.grad());
    if (beside) wait_for(*beside, current_stream());
    {
      const c10::OptionalStreamGuard guard(beside);
      Part part = part_of(bucket, made);
      part.name = name;
      sum(part);
    }
    for (std::size_t k = 0; k < bucket.which.size(); ++k)
      parameters[bucket.which[k]].second.mutable_grad() = bucket.places[k];
    own.insert(own.end(), made.begin(), made.end());
  }

  Part part_of(const Bucket& bucket, std::vector<at::Tensor>& made) const {
    Part part{.name = {}, .own = {}, .sums = {}, .whole = bucket.buffer};
    std::vector<at::Tensor> small;
    for (std::size_t k = 0; k < made.size(); ++k) {
      if (is_small(made[k])) {
        small.push_back(made[k]);
        continue;
      }
      made[k] = made[k].contiguous();
      part.own.push_back(made[k]);
      part.sums.push_back(bucket.places[k]);
    }
    if (small.empty()) return part;
    at::_foreach_copy_(bucket.small_places, small);
    part.own.push_back(bucket.own_small);
    part.sums.push_back(bucket.buffer.narrow(0, 0, bucket.own_small.numel()));
    return part;
  }

  void throw_if_one_is_missing() const {
    std::vector<std::string> without;
    for (std::size_t b = next; b < buckets.size(); ++b)
      for (const std::size_t i : buckets[b].which)
        if (!parameters[i].second.grad().defined()) without.push_back(parameters[i].first);
    if (without.empty()) return;
    throw Disagreement(fmt::format("rank {}: backward gave no gradient to {}", rank, fmt::join(without, ", ")), {rank},
                       without.front());
  }
};

namespace {

class GradientIsThere : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit GradientIsThere(std::function<void()> tell) : tell_(std::move(tell)) {}
  void operator()(const at::Tensor& /*parameter*/) override { tell_(); }

 private:
  std::function<void()> tell_;
};

}  // namespace

at::Tensor& GradientBuckets::Part::gathered() {
  at::_foreach_copy_(sums, own);
  return whole;
}

GradientBuckets::GradientBuckets(NamedTensors parameters, int rank, BucketSizes sizes, Sum sum)
    : inside_(std::make_shared<Inside>()) {
  Inside& in = *inside_;
  in.parameters = std::move(parameters);
  in.rank = rank;
  in.lying_bytes = sizes.lying_bytes;
  in.sum = std::move(sum);
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : in.parameters) tensors.push_back(tensor);
  in.bucket_of.resize(tensors.size());
  for (auto& which : plan_buckets(tensors, sizes)) {
    for (const std::size_t i : which) {
      in.bucket_of[i] = in.buckets.size();
      in.elements += placed_bytes(tensors[i]) / static_cast<std::int64_t>(tensors[i].element_size());
    }
    in.buckets.emplace_back().which = std::move(which);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(
        tensors[i], std::make_unique<GradientIsThere>([weak = std::weak_ptr<Inside>(inside_), i] {
          if (const auto alive = weak.lock()) alive->note(i);
        }));
}

GradientBuckets::~GradientBuckets() {
  for (const auto& [name, tensor] : inside_->parameters)
    torch::autograd::impl::set_post_acc_grad_hooks(tensor, nullptr);
}

void GradientBuckets::backward(const at::Tensor& loss, const std::optional<c10::Stream>& beside) {
  Inside& in = *inside_;
  in.begin_step();
  in.beside = beside;
  in.begun = false;
  in.listening = true;
  const auto heard = c10::make_scope_exit([&] {
    in.listening = false;
    if (!in.begun) in.own.clear();
  });
  loss.backward();
  in.begun = true;
}

void GradientBuckets::finish() {
  Inside& in = *inside_;
  const auto over = c10::make_scope_exit([&] { in.begun = false; });
  if (!in.begun) in.begin_step();
  in.throw_if_one_is_missing();
  while (in.next < in.buckets.size()) in.begin_next();
  if (in.beside) wait_for(in.current_stream(), *in.beside);
}

const std::vector<at::Tensor>& GradientBuckets::own() const { return inside_->own; }
void GradientBuckets::forget_own() { inside_->own.clear(); }
std::size_t GradientBuckets::buckets() const { return inside_->buckets.size(); }
std::int64_t GradientBuckets::elements() const { return inside_->elements; }

void GradientBuckets::allocate() { inside_->allocate(); }

}  // namespace nsa::parallel
