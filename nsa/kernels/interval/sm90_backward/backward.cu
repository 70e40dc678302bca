#include "nsa/kernels/interval/sm90_backward/backward.cuh"

#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/interval/sm90.hpp"
#include "nsa/kernels/plan/arena.hpp"

namespace nsa::kernels {
namespace hopper {
namespace {

std::int64_t tiles_of(std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; }

// The work of a problem: tiles of 64 rows by 128 keys, about.
std::int64_t steps_of(const AttentionForward& f) {
  const std::int64_t rows = std::int64_t{f.S} * (f.Hq / f.G);
  const std::int64_t seen =
      f.mask == Mask::window ? std::min<std::int64_t>(std::int64_t{f.geometry.w} + 128, f.S) : f.N / 2 + 64;
  return tiles_of(rows, 64) * tiles_of(seen, 128) * f.B * f.G;
}

// All of them in one tile: nothing is added to dQ, and the rows are read once instead of twice.
bool few_keys(const AttentionForward& f) {
  return f.mask == Mask::compressed && f.N <= IntervalBackwardShape<64>::kKeys;
}

template <int D>
struct Plan : IntervalBackwardPlan {
  using Shape = IntervalBackwardShape<D>;
  std::int64_t turns_bytes;  // of the numbers, from row_turns on

  Plan(const AttentionForward& f, const Limits& limits, Arena& arena) {
    constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys;
    pairs = f.B * f.G;
    tokens = kRows / (f.Hq / f.G);
    row_tiles = static_cast<int>(tiles_of(f.S, tokens));
    key_tiles = static_cast<int>(tiles_of(f.N, kKeys));
    int longest;  // that an item walks through, and may not meet again in the ring
    if (f.mask == Mask::window) {
      seen = f.geometry.w;
      chunk = row_tiles;
      period = longest = static_cast<int>(
          std::min<std::int64_t>(tiles_of(std::int64_t{f.geometry.w} + kKeys + 2, tokens) + 1, row_tiles));
    } else if (Shape::kOneTile) {
      seen = f.N;
      chunk = longest = static_cast<int>(tiles_of(row_tiles, std::clamp(limits.few_keys_items / pairs, 1, row_tiles)));
      period = row_tiles;
    } else {
      seen = f.N;
      const std::int64_t wanted =
          std::clamp(steps_of(f) / limits.interval_items, limits.interval_tiles, limits.interval_most_tiles);
      chunk = longest = static_cast<int>(std::min<std::int64_t>(wanted, row_tiles));
      period = row_tiles;
    }
    chunks = static_cast<int>(tiles_of(row_tiles, chunk));
    const std::int64_t key_tiles_of_all = std::int64_t{pairs} * key_tiles;
    rows = arena.take<IntervalRows>(std::int64_t{pairs} * row_tiles);
    const std::int64_t a_slot = key_tiles_of_all * Shape::kKeySums;
    if (chunks * a_slot * static_cast<std::int64_t>(sizeof(float)) <= limits.interval_key_bytes) key_slots = chunks;
    if (chunks > 1) key_sums = arena.take<float>(key_slots * a_slot);
    const std::int64_t a_place = std::int64_t{pairs} * Shape::kSums * static_cast<std::int64_t>(sizeof(float));
    // 8 MiB are kept for the numbers below. Whether all is within the bound is looked at in the end
    // (attention_backward_hopper_refusal).
    const std::int64_t left = limits.interval_bytes - arena.used() - (std::int64_t{8} << 20);
    ring = 1;
    if (!Shape::kOneTile) {
      ring = static_cast<int>(
          std::clamp<std::int64_t>(std::min(limits.interval_sums_bytes, left) / a_place, longest, row_tiles));
      sums = arena.take<float>(std::int64_t{pairs} * ring * Shape::kSums);
    }
    const std::int64_t numbers = std::int64_t{pairs} * ring + key_tiles_of_all + 1;
    row_turns = arena.take<int>(numbers);
    key_turns = row_turns + std::int64_t{pairs} * ring;
    ticket = key_turns + key_tiles_of_all;
    turns_bytes = numbers * static_cast<std::int64_t>(sizeof(int));
  }
  [[nodiscard]] std::int64_t tickets() const { return std::int64_t{chunks} * key_tiles * pairs; }
  // Whose turn it is has 16 bits for the tiles of keys of a row, and 15 for the rounds of the ring.
  [[nodiscard]] bool counts() const {
    const bool turns = Shape::kOneTile || (key_tiles < kRound && row_tiles / ring < kRound / 2 - 1);
    return turns && tickets() < std::int64_t{1} << 30;
  }
};

template <typename T, int D>
void launch(const AttentionBackward& p, const Device& device, cudaStream_t stream) {
  using Shape = IntervalBackwardShape<D>;
  const AttentionForward& f = p.forward;
  Arena arena(p.workspace);
  const Plan<D> plan(f, device.limits, arena);
  end_collecting();
  cudaMemsetAsync(plan.row_turns, 0, static_cast<std::size_t>(plan.turns_bytes), stream);
  kernels::launch(false, describe_rows_kernel,
                  dim3(static_cast<unsigned>(plan.row_tiles), static_cast<unsigned>(plan.pairs)), IntervalRows::kRows,
                  0, stream, p, plan);
  check_launch("attention_backward_hopper: describe_rows");
  const auto kernel = p.adds_dq ? interval_backward_kernel<T, Shape, true> : interval_backward_kernel<T, Shape, false>;
  grant_shared(kernel, Shape::kSharedBytes);
  const int h = f.Hq / f.G;
  const auto q_map = rows_map(f.q, f.storage, f.B, f.S, f.Hq, Shape::D, h, plan.tokens);
  const auto o_map = rows_map(p.dout, f.storage, f.B, f.S, f.Hq, Shape::D, h, plan.tokens);
  const auto dq_map = rows_map(p.dq, f.storage, f.B, f.S, f.Hq, Shape::D, h, plan.tokens);
  const auto k_map = tensor_map(f.k, f.storage, f.B, f.N, f.G, Shape::D, Shape::kKeys);
  const auto v_map = tensor_map(f.v, f.storage, f.B, f.N, f.G, Shape::D, Shape::kKeys);
  const int ctas = static_cast<int>(std::min<std::int64_t>(plan.tickets(), device.sm_count));
  kernels::launch(false, kernel, ctas, Shape::kThreads, Shape::kSharedBytes, stream, p, plan, q_map, o_map, dq_map,
                  k_map, v_map);
  check_launch("attention_backward_hopper");
  if (plan.key_slots == 1) return;
  kernels::launch(false, sum_chunks_kernel<T, Shape>,
                  dim3(2 * Shape::D / 32, static_cast<unsigned>(plan.key_tiles), static_cast<unsigned>(plan.pairs)),
                  Shape::kConsumers, 0, stream, p, plan);
  check_launch("attention_backward_hopper: sum_chunks");
}

// Calls action.operator()<D>() with the width.
template <typename Action>
auto with_width(const AttentionForward& f, Action&& action) {
  return f.Dk == 64 ? action.template operator()<64>() : action.template operator()<128>();
}

}  // namespace
}  // namespace hopper

std::string_view attention_backward_hopper_refusal(const AttentionBackward& p, const Limits& limits) {
  const AttentionForward& f = p.forward;
  if (f.mask == Mask::selected) return "the selected branch is no interval";
  if (!p.dq.data || !p.dk.data || !p.dv.data) return "not all gradients are wanted";
  if (f.packed.first_token) return "the batch is packed";
  const bool narrow = f.Dk == 64 && f.Dv == 64;
  if (narrow && !hopper::few_keys(f)) return "two kernels are faster for 64/64 with more keys than a tile";
  if (!narrow && (f.Dk != 128 || f.Dv != 128)) return "the widths are neither 128/128 nor 64/64";
  if (f.S <= 0 || f.N <= 0 || f.Hq % f.G != 0) return "there are no rows or no keys";
  if (f.Hq / f.G > 64) return "more than 64 heads a group";
  if (std::int64_t{f.S} * (f.Hq / f.G) >= std::int64_t{1} << 27 || std::int64_t{f.B} * f.G > 65535)
    return "2^27 rows of a group or 2^16 groups, or more";
  const auto expanded = [&](const Rows& x, int tokens, int heads) { return hopper::expanded(x, f.B, tokens, heads); };
  if (expanded(f.q, f.S, f.Hq) || expanded(p.dout, f.S, f.Hq) || expanded(p.dq, f.S, f.Hq) || expanded(f.k, f.N, f.G) ||
      expanded(f.v, f.N, f.G))
    return "Q, K, V, dO or dQ is expanded";
  if (narrow && hopper::steps_of(f) < limits.few_keys_steps) return "width 64 goes so from few_keys_steps on";
  if (!narrow && hopper::steps_of(f) < limits.interval_steps) return "too little work to fill a GPU";
  return hopper::with_width(f, [&]<int D>() -> std::string_view {
    Arena arena(nullptr);
    if (!hopper::Plan<D>(f, limits, arena).counts() || arena.most() > limits.interval_bytes)
      return "its sums do not fit the workspace";
    return "";
  });
}

std::int64_t attention_backward_hopper_workspace(const AttentionBackward& p, const Limits& limits) {
  return hopper::with_width(p.forward, [&]<int D>() {
    Arena arena(nullptr);
    hopper::Plan<D>(p.forward, limits, arena);
    return arena.most();
  });
}

void attention_backward_hopper(const AttentionBackward& p, const Device& device, cudaStream_t stream) {
  hopper::with_width(p.forward, [&]<int D>() {
    if (p.forward.storage == Storage::bf16)
      hopper::launch<bf16, D>(p, device, stream);
    else
      hopper::launch<fp16, D>(p, device, stream);
  });
}

}  // namespace nsa::kernels
