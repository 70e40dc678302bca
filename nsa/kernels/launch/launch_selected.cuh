// The selected branch on Hopper, of one pair of head widths: the launches of each way.
#pragma once

#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/plan/plan.cuh"
#include "nsa/kernels/selected/merged_plan.cuh"
#include "nsa/kernels/selected/plan.cuh"
#include "nsa/kernels/selected/sm90_backward/parts_backward.cuh"
#include "nsa/kernels/selected/sm90_split/join.cuh"
#include "nsa/kernels/selected/sm90_split/join_forward.cuh"
#include "nsa/kernels/selected/sm90_split/parts.cuh"
#include "nsa/kernels/selected/sm90_union/joint.cuh"
#include "nsa/kernels/selected/ways.hpp"

namespace nsa::kernels {

// A kernel that uses more shared memory than every GPU grants unasked must say so first.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  if (grant_shared(kernel, bytes) != cudaSuccess) check_launch("attention: shared memory");
}

// Calls action(slice) for slices of so many batch entries and groups until all had their turn.
template <typename T, typename Problem, typename Action>
void in_turns(const Problem& p, int B, int G, int batches, int groups, Action&& action) {
  for (int b = 0; b < B; b += batches)
    for (int group = 0; group < G; group += groups)
      action(slice<T>(p, {b, std::min(batches, B - b), group, std::min(groups, G - group)}));
}

template <typename T, int Dk, int Dv>
struct SelectedLaunches {
  template <bool Backward>
  static void joint(const AttentionForward& p, const AttentionPlan& plan, const Rows& out,
                    const AttentionBackward* backward, const hopper::Ways& ways, cudaStream_t stream) {
    if constexpr (Dk % 64 == 0) {
      using Shape = hopper::JointShape<Dk, Dv, Backward>;
      const auto kernel = hopper::joint_kernel<T, Dk, Dv, Backward>;
      const int J = p.selection.J, n = p.geometry.n, h = p.Hq / p.G;
      const auto bytes =
          static_cast<int>(plan.rows_ahead ? Shape::shared_bytes_ahead(J, n, h) : Shape::shared_bytes(J, n, h));
      allow_shared(kernel, bytes);
      const auto k_map = hopper::tensor_map(p.k, p.storage, p.B, p.S, p.G, Dk, kKeyTile);
      const auto v_map = hopper::tensor_map(p.v, p.storage, p.B, p.S, p.G, Dv, kKeyTile);
      const std::int64_t tiles = tiles_of(static_cast<std::int64_t>(p.S) * (p.Hq / p.G), Shape::kRows) * p.B * p.G;
      hopper::Joint problem;
      problem.forward = p, problem.out = out, problem.ways = ways;
      if (plan.rows_ahead) problem.second_rows = static_cast<int>(Shape::second_rows_at(J, n, h));
      if (backward) problem.dout = backward->dout, problem.delta = backward->delta, problem.adds = backward->adds_dq;
      launch(false, kernel, grid(std::min<std::int64_t>(tiles, plan.device.sm_count)), Shape::kThreads, bytes, stream,
             problem, k_map, v_map);
      check_launch("joint");
    }
  }
  // Asks the device, and starts what it wants jointly: the parts follow.
  template <bool Backward>
  static void decide(const AttentionForward& p, const AttentionPlan& plan, const Rows& out,
                     const AttentionBackward* backward, const hopper::Ways& ways, cudaStream_t stream) {
    if (!ways.jointly) return;
    hopper::choose_ways(p, ways, plan.device.limits, stream);
    joint<Backward>(p, plan, out, backward, ways, stream);
  }
  template <bool Backward>
  using Plan = PartsPlan<T, Backward ? Dk : Dv>;
  static void join_parts(const AttentionBackward& p, const Pieces& pieces, const hopper::Parts& parts,
                         cudaStream_t stream) {
    using Join = hopper::JoinShape<Dk>;
    const auto kernel = parts.per_token <= Join::kParts ? hopper::join_parts_kernel<T, Dk, true>
                                                        : hopper::join_parts_kernel<T, Dk, false>;
    const hopper::JoinRows rows(p.forward.Hq / p.forward.G, parts, pieces);
    launch(false, kernel, grid(tiles_of(rows.count, Join::kRows)), Join::kThreads, 0, stream, p, parts, rows);
    check_launch("join_parts");
  }
  // Of a chain with parts_kernel (Note [Early kernels]).
  static void join_forward(const AttentionForward& p, const Pieces& pieces, const hopper::Parts& parts,
                           cudaStream_t stream) {
    using Shape = hopper::JoinForwardShape<Dk, Dv>;
    const auto kernel = hopper::join_forward_kernel<T, Dk, Dv>;
    allow_shared(kernel, Shape::kSharedBytes);
    const dim3 ctas(grid(tiles_of(std::int64_t{parts.count} * (p.Hq / p.G), Shape::kRows)), grid(parts.pairs));
    launch(true, kernel, ctas, Shape::kThreads, Shape::kSharedBytes, stream, p, Divisor(pieces.tiles_a_block), parts);
    check_launch("join_forward");
  }
  // Of a slice as the plan cuts them. Forward, only x.forward is anything.
  template <bool Backward>
  static void parts_of_slice(const AttentionBackward& x, Plan<Backward>& plan, cudaStream_t stream) {
    if constexpr (Dk % 64 == 0) {
      const AttentionForward& p = x.forward;
      using Shape = hopper::PartsShape<Dk, Dv, Backward>;
      const auto kernel = hopper::parts_kernel<T, Dk, Dv, Backward>;
      allow_shared(kernel, Shape::kSharedBytes);
      const std::int64_t pairs = static_cast<std::int64_t>(p.B) * p.G;
      const std::int64_t made = plan.chunk * plan.chunks;  // tokens whose lists are
      plan.lists.inverse.forced = Backward;                // join_forward does without their parts
      for (std::int64_t first = plan.ways.first; first < p.S; first += made) {
        const std::int64_t end = std::min<std::int64_t>(first + made, p.S);
        plan.make_lists(p, first, end, false, stream);
        for (std::int64_t pair = 0; pair < pairs; pair += plan.turn)
          for (std::int64_t begin = first, number = 0; begin < end; begin += plan.chunk, ++number) {
            const std::int64_t turn = std::min(plan.turn, pairs - pair), count = std::min(plan.chunk, end - begin);
            plan.parts.unless = plan.ways.unless_jointly(begin);
            plan.parts.first = static_cast<int>(begin);
            plan.parts.count = static_cast<int>(count);
            plan.parts.first_pair = static_cast<int>(pair);
            plan.parts.pairs = static_cast<int>(turn);
            const dim3 ctas(grid(plan.item_count(p, begin, begin + count)), grid(plan.pieces.tiles_a_block),
                            grid(turn));
            const bool first_of_chain = pair == 0 && number == 0;
            launch(!Backward && !first_of_chain, kernel, ctas, Shape::kThreads, Shape::kSharedBytes, stream, p, x.dout,
                   x.delta, plan.lists.lists, plan.pieces, plan.items_of(p, number, pair), plan.parts);
            check_launch("parts");
            if constexpr (Backward)
              join_parts(x, plan.pieces, plan.parts, stream);
            else
              join_forward(p, plan.pieces, plan.parts, stream);
          }
      }
    }
  }
  static void forward(const AttentionForward& p, const AttentionPlan& plan, cudaStream_t stream) {
    if (plan.variant == Variant::joint) return joint<false>(p, plan, p.o, nullptr, {}, stream);
    // Everything by parts, or what the device leaves to them.
    Arena arena(p.workspace);
    Plan<false> own(p, plan.variant, plan.device.limits, arena);
    decide<false>(p, plan, p.o, nullptr, own.ways, stream);
    in_turns<T>(p, p.B, p.G, own.batches, own.groups, [&](const AttentionForward& slice) {
      AttentionBackward none;
      none.forward = slice;
      parts_of_slice<false>(none, own, stream);
    });
  }
  static void dq(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (plan.variant == Variant::joint) return joint<true>(f, plan, p.dq, &p, {}, stream);
    Arena arena(p.workspace);
    Plan<true> own(f, plan.variant, plan.device.limits, arena);
    decide<true>(f, plan, p.dq, &p, own.ways, stream);
    in_turns<T>(p, f.B, f.G, own.batches, own.groups,
                [&](const AttentionBackward& slice) { parts_of_slice<true>(slice, own, stream); });
  }

  // dQ, dK and dV in one walk through the lists where not everything goes jointly.
  static void merged(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
    if constexpr (kMerges<Dk, Dv>) {
      const AttentionForward& f = p.forward;
      Arena arena(p.workspace);
      PartsBackwardPlan<T, Dk, Dv> own(f, plan.variant, plan.device.limits, arena);
      decide<true>(f, plan, p.dq, &p, own.parts.ways, stream);
      in_turns<T>(p, f.B, f.G, own.parts.batches, own.parts.groups,
                  [&](const AttentionBackward& slice) { merged_of_slice(slice, own, stream); });
    }
  }
  // Where a slice is several turns, its lists are made in one go.
  static void merged_of_slice(const AttentionBackward& p, PartsBackwardPlan<T, Dk, Dv>& plan, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    const std::int64_t made = plan.parts.chunk * plan.parts.chunks;
    for (std::int64_t from = 0; from < f.S; from += made) {
      const std::int64_t to = std::min<std::int64_t>(from + made, f.S);
      plan.parts.make_lists(f, from, to, true, stream);
      Fork fork(stream, plan.lanes > 1 ? p.beside : nullptr);
      std::int64_t pair = 0;
      int turn = 0;
      in_turns<T>(p, f.B, f.G, plan.turn_batches(f), plan.turn_groups(f), [&](const AttentionBackward& x) {
        const int lane = turn++ % plan.lanes;
        merged_of_turn(x, f, pair, from, to, plan, plan.lane[lane], lane == 0 ? stream : fork.side());
        pair += static_cast<std::int64_t>(x.forward.B) * x.forward.G;
      });
      fork.join();
    }
  }
  // The chunks [from, to) of a turn's pairs, which are those from `pair` on of `slice`, whose lists have been made.
  static void merged_of_turn(const AttentionBackward& p, const AttentionForward& slice, std::int64_t pair,
                             std::int64_t from, std::int64_t to, const PartsBackwardPlan<T, Dk, Dv>& plan,
                             const typename PartsBackwardPlan<T, Dk, Dv>::Lane& lane, cudaStream_t stream) {
    using Shape = hopper::PartsBackwardShape<Dk, Dv>;
    using Join = hopper::JoinShape<Dk>;
    const auto kernel = hopper::parts_backward_kernel<T, Dk, Dv>;
    allow_shared(kernel, Shape::kSharedBytes);
    const AttentionForward& f = p.forward;
    const PartsPlan<T, Dk>& own = plan.parts;
    const std::int64_t pairs = static_cast<std::int64_t>(f.B) * f.G;
    const hopper::Adders adders = plan.adders(pairs);
    if (from == 0) {
      end_collecting();
      cudaMemsetAsync(lane.sums.sums, 0, plan.sums_bytes(pairs), stream);
    }
    hopper::Parts parts = own.parts;
    parts.data = lane.parts;
    parts.pairs = static_cast<int>(pairs);
    // CTAs that wait would stand where the other lane's could work.
    const bool early = plan.lanes == 1;
    for (std::int64_t begin = from, number = 0; begin < to; begin += own.chunk, ++number) {
      const QueryLists lists = own.lists_of(slice, number, pair);
      parts.first = static_cast<int>(begin);
      parts.count = static_cast<int>(std::min(own.chunk, to - begin));
      parts.unless = own.ways.unless_jointly(begin);
      const dim3 ctas(grid(own.item_count(f, begin, begin + parts.count)), grid(own.pieces.tiles_a_block), grid(pairs));
      launch(early && number > 0, kernel, ctas, Shape::kThreads, Shape::kSharedBytes, stream, p, lists, own.pieces,
             own.items_of(slice, number, pair), parts, lane.sums);
      check_launch("parts_backward");
      const hopper::JoinRows rows(f.Hq / f.G, parts, own.pieces);
      const auto finish = parts.per_token <= Join::kParts ? hopper::finish_chunk_kernel<T, Dk, Dv, true>
                                                          : hopper::finish_chunk_kernel<T, Dk, Dv, false>;
      launch(early, finish, dim3(grid(adders.count() + tiles_of(rows.count, Join::kRows))), kSumThreads, 0, stream, p,
             lists, own.pieces, lane.sums, adders, parts, rows);
      check_launch("finish_chunk");
    }
    if (to < f.S) return;
    launch(false, hopper::store_sums_kernel<T, Dk, Dv>, dim3(grid(plan.tiles), grid(pairs)), 128, 0, stream, p,
           own.pieces, lane.sums);
    check_launch("store_sums");
  }
};

}  // namespace nsa::kernels
