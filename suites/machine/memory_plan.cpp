#include "suites/machine/memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "nsa/route.hpp"
#include "suites/codes.hpp"

namespace suites::machine {

namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 22, kLargestBatch = std::int64_t{1} << 20;
// Beyond this share of free memory, pieces that lie scattered may not be enough for one large block.
constexpr double kTightShare = 0.85;

double bytes_of(nsa::Precision precision) {
  return precision == nsa::Precision::fp64 ? 8 : precision == nsa::Precision::fp32 ? 4 : 2;
}

// By hand what nsa::call_of (nsa/call.hpp) makes: that one asks torch for the device, and `doctor` has this file
// without LibTorch.
nsa::Call call_of(const PlannedStep& step, std::int64_t S, std::int64_t B) {
  const nsa::ModelConfig& m = step.config.model;
  nsa::Call call;
  call.B = B;
  call.S = S;
  call.Hq = m.n_heads;
  call.G = m.n_kv_groups;
  call.Dk = m.d_k;
  call.Dv = m.d_v;
  call.geometry = m.nsa;
  call.precision = step.config.train.precision;
  call.packed = step.config.train.packed;
  call.training = true;
  call.phi = m.phi;
  call.cuda = step.cuda;
  call.cuda_major = step.cuda ? 9 : 0;  // whether flash serves the call does not change what is counted here
  return call;
}

// What the selected branch keeps for one batch: gathered keys and values of every row, or a mask a group.
double selection_bytes(const PlannedStep& step, std::int64_t S, std::int64_t B) {
  const nsa::ModelConfig& m = step.config.model;
  const nsa::RouteVariant way = nsa::route(step.flags, call_of(step, S, B))[nsa::Op::attend_selected].variant;
  const double rows = static_cast<double>(B) * static_cast<double>(S) * static_cast<double>(m.n_kv_groups);
  if (way == nsa::RouteVariant::masked) return rows * static_cast<double>(S);  // [S,S] of one byte
  if (way != nsa::RouteVariant::packed_safe) return 0;
  const double blocks = static_cast<double>(std::min(m.nsa.n_sel, (S + m.nsa.l_sel - 1) / m.nsa.l_sel));
  const double widths = static_cast<double>(m.d_k + m.d_v);
  return rows * blocks * static_cast<double>(m.nsa.l_sel) * widths * bytes_of(step.config.train.precision);
}

// Bytes a token that one layer keeps besides the selected branch.
double layer_bytes_per_token(const nsa::ModelConfig& m, double element) {
  const auto n = [](std::int64_t value) { return static_cast<double>(value); };
  const double residual = 4 * n(m.dim);  // input and output of both norms
  const double queries = n(m.n_heads * m.d_k), keys = 3 * n(m.n_kv_groups * (m.d_k + m.d_v));
  const double outputs = 4 * n(m.n_heads * m.d_v);  // three branches and their combination
  const double mlp = 8 * n(m.dim);                  // before and after SiLU
  return (residual + queries + keys + outputs + mlp) * element;
}

double activation_bytes(const PlannedStep& step, std::int64_t S, std::int64_t B) {
  const nsa::ModelConfig& m = step.config.model;
  const double element = bytes_of(step.config.train.precision);
  const double tokens = static_cast<double>(S) * static_cast<double>(B), layers = static_cast<double>(m.n_layers);
  const double layer = tokens * layer_bytes_per_token(m, element) + selection_bytes(step, S, B);
  const double head = tokens * static_cast<double>(m.vocab) * (element + std::max(element, 4.0));  // logits, softmax
  if (!step.config.train.gradient_checkpointing) return layers * layer + head;
  return layers * tokens * static_cast<double>(m.dim) * element + std::max(layer, head);
}

// Where gathering becomes too large the route takes the mask, and bytes drop: a value may fit above one that does not.
constexpr std::int64_t kLookAbove = 64;

// The largest value in [0, most] that `fits`, which holds below some value and not above, but for such a drop.
std::int64_t largest(std::int64_t most, const std::function<bool(std::int64_t)>& fits) {
  std::int64_t low = 0, high = most + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  for (std::int64_t above = std::min(most, low + kLookAbove); above > low; --above)
    if (fits(above)) return largest(most, [&](std::int64_t value) { return value <= above || fits(value); });
  return low;
}

std::int64_t whole(double bytes) { return std::llround(bytes); }

std::string allocator_advice(const DeviceMemory& memory, double share) {
  return fmt::format(
      "the step takes {:.0f} % of free memory and expandable segments are off on {}: free memory that "
      "lies in pieces may not serve it",
      100 * share, memory.device);
}

}  // namespace

StepBytes lower_count(const PlannedStep& step, std::int64_t S, std::int64_t B) {
  const double parameters = static_cast<double>(nsa::parameter_count(step.config.model));
  const double element = bytes_of(step.config.train.precision);
  const bool masters = step.config.train.master_weights && element < 4;
  StepBytes bytes;
  bytes.weights = parameters * element;
  bytes.gradients = parameters * element;
  bytes.optimizer = parameters * (masters ? 3 * 4 : 2 * element);  // two moments, of the type that is updated
  bytes.activations = activation_bytes(step, S, B);
  const bool together = step.config.train.accumulate_grad_batches > 1;
  bytes.total = bytes.weights + bytes.optimizer +
                (together ? bytes.gradients + bytes.activations : std::max(bytes.gradients, bytes.activations));
  return bytes;
}

bool selects_by_mask(const PlannedStep& step, std::int64_t S, std::int64_t B) {
  return nsa::route(step.flags, call_of(step, S, B))[nsa::Op::attend_selected].variant == nsa::RouteVariant::masked;
}

std::uintmax_t checkpoint_bytes(const nsa::Config& config) {
  const StepBytes bytes = lower_count({config, {}, false}, 1, 1);
  const double count = static_cast<double>(config.train.keep_checkpoints) + 1;
  return static_cast<std::uintmax_t>(count * (bytes.weights + bytes.optimizer));
}

Inspection judge_memory(const PlannedStep& step, const DeviceMemory& memory, const std::optional<FittedLaw>& law) {
  const nsa::TrainConfig& train = step.config.train;
  const bool fitted = law.has_value();
  const auto predicted = [&](std::int64_t length, std::int64_t batch) {
    return fitted ? law->bytes(static_cast<double>(length), static_cast<double>(batch))
                  : lower_count(step, length, batch).total;
  };
  const auto fits = [&](std::int64_t length, std::int64_t batch) {
    return predicted(length, batch) <= memory.free_bytes;
  };
  const std::int64_t S = train.seq_len, B = train.batch_size;
  const double need = predicted(S, B), share = memory.free_bytes > 0 ? need / memory.free_bytes : 1e300;
  const std::int64_t longest = largest(kLongest, [&](std::int64_t s) { return fits(s, B); });
  const std::int64_t longest_alone = largest(kLongest, [&](std::int64_t s) { return fits(s, 1); });
  const std::int64_t most = largest(kLargestBatch, [&](std::int64_t b) { return fits(S, b); });

  Inspection result;
  result.subject = "memory_estimate";
  const StepBytes parts = lower_count(step, S, B);
  result.seen = {{"device", memory.device},
                 {"parameters", nsa::parameter_count(step.config.model)},
                 {"S", S},
                 {"B", B},
                 {"predicted_bytes", whole(need)},
                 {"free_bytes", whole(memory.free_bytes)},
                 {"total_bytes", whole(memory.total_bytes)},
                 {"by", fitted ? "fitted law (" + law->origin + ")"
                               : "lower count: a step that fits by it may still not fit; measure the law with "
                                 "throughput/memory_law"},
                 {"largest_S_at_this_B", longest},
                 {"largest_S_at_B_1", longest_alone},
                 {"largest_B_at_this_S", most},
                 {"lower_count_bytes",
                  {{"weights", whole(parts.weights)},
                   {"gradients", whole(parts.gradients)},
                   {"optimizer", whole(parts.optimizer)},
                   {"activations", whole(parts.activations)}}}};
  if (fitted && static_cast<double>(S) > law->longest_S) result.seen["extrapolated_beyond_S"] = law->longest_S;
  const std::string what = fmt::format("a training step of {} with S={}, B={} needs {}{} of memory, {} are free on {}",
                                       step.config.model.name, S, B, fitted ? "" : "at least ", in_words(need),
                                       in_words(memory.free_bytes), memory.device);
  const std::string room =
      fmt::format("fits: S={} at B={}, S={} at B=1, B={} at S={}", longest, B, longest_alone, most, S);
  result.summary = what + "; " + room;
  result.judgements.push_back(
      {"memory.fits", need <= memory.free_bytes, what + "; " + room, codes::kDoesNotFit, result.seen});
  if (step.cuda) {
    const bool tight = share > kTightShare && share <= 1 && !memory.expandable_segments;
    result.judgements.push_back({"memory.expandable_segments", !tight, allocator_advice(memory, share),
                                 codes::kAllocatorSettings, result.seen});
  }
  return result;
}

}  // namespace suites::machine
