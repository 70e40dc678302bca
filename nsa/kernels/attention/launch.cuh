// One pair of head widths: from parameters to launches. Included by width_*.cu, each of which compiles one pair.
#pragma once

#include <algorithm>

#include "nsa/kernels/attention/dkv.cuh"
#include "nsa/kernels/attention/dq.cuh"
#include "nsa/kernels/attention/forward.cuh"
#include "nsa/kernels/attention/limits.hpp"
#include "nsa/kernels/attention/plan.cuh"
#include "nsa/kernels/attention/selected.cuh"
#include "nsa/kernels/attention/width.hpp"
#include "nsa/kernels/common/arena.hpp"
#include "nsa/kernels/hopper/device.hpp"
#include "nsa/kernels/hopper/dkv.cuh"
#include "nsa/kernels/hopper/dq.cuh"
#include "nsa/kernels/hopper/hopper.hpp"
#include "nsa/kernels/hopper/join.cuh"
#include "nsa/kernels/hopper/joint.cuh"
#include "nsa/kernels/hopper/parts.cuh"
#include "nsa/kernels/hopper/parts_backward.cuh"
#include "nsa/kernels/hopper/tensor_map.hpp"
#include "nsa/kernels/hopper/ways.hpp"

namespace nsa::kernels {

// Enough blocks for every chip of this kind to be full a few times over.
inline constexpr std::int64_t kWantedBlocks = 1024;
inline constexpr std::int64_t kWantedSums = 4096;  // blocks of sum_pieces_kernel, which are small

// A kernel that uses more shared memory than every GPU grants unasked must say so first.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
    check_launch("attention: shared memory");
}

template <typename T, int Dk, int Dv>
struct Launches {
  static bool on_hopper(const AttentionForward& p) { return Dk % 64 == 0 && p.hopper && hopper::is_here(); }

  // The same forward and backward.
  static Way way_of(const AttentionForward& p) {
    if constexpr (Dk % 64 == 0) {
      const auto fits = [&]<typename Shape>(Shape) {
        return p.geometry.n <= Shape::kMostChosen &&
               Shape::shared_bytes(p.selection.J, p.geometry.n, p.Hq / p.G) <= kLimits.joint_bytes;
      };
      if (!fits(hopper::JointShape<Dk, Dv, false>()) || !fits(hopper::JointShape<Dk, Dv, true>())) return Way::parts;
      if (hopper::expanded(p.k, p.B, p.S, p.G) || hopper::expanded(p.v, p.B, p.S, p.G)) return Way::parts;
      const auto tiles = p.selection.J * tiles_of(p.geometry.l_sel, kKeyTile);
      if (tiles <= std::min(kLimits.joint_tiles, kLimits.joint_tiles_a_head * (p.Hq / p.G))) return Way::joint;
      if (p.S <= Plan<true>::joint_tokens(p)) return Way::joint;
    }
    return Way::device;
  }
  template <bool Backward>
  static void joint(const AttentionForward& p, const Rows& out, const AttentionBackward* backward,
                    const hopper::Ways& ways, cudaStream_t stream) {
    if constexpr (Dk % 64 == 0) {
      using Shape = hopper::JointShape<Dk, Dv, Backward>;
      const auto kernel = hopper::joint_kernel<T, Dk, Dv, Backward>;
      const auto bytes = static_cast<int>(Shape::shared_bytes(p.selection.J, p.geometry.n, p.Hq / p.G));
      allow_shared(kernel, bytes);
      const auto k_map = hopper::tensor_map(p.k, p.storage, p.B, p.S, p.G, Dk, kKeyTile);
      const auto v_map = hopper::tensor_map(p.v, p.storage, p.B, p.S, p.G, Dv, kKeyTile);
      const std::int64_t tiles = tiles_of(static_cast<std::int64_t>(p.S) * (p.Hq / p.G), Shape::kRows) * p.B * p.G;
      const hopper::Joint problem{p, backward ? backward->dout : Rows{}, backward ? backward->delta : nullptr, out,
                                  ways};
      kernel<<<grid(std::min<std::int64_t>(tiles, hopper::multiprocessors("joint"))), Shape::kThreads, bytes, stream>>>(
          problem, k_map, v_map);
      check_launch("joint");
    }
  }
  // Asks the device, and starts what it wants jointly: the parts follow.
  template <bool Backward>
  static void decide(const AttentionForward& p, const Rows& out, const AttentionBackward* backward,
                     const hopper::Ways& ways, cudaStream_t stream) {
    if (!ways.jointly) return;
    hopper::choose_ways(p, ways, stream);
    joint<Backward>(p, out, backward, ways, stream);
  }
  // Calls action(slice) for slices of so many batch entries and groups until all had their turn.
  template <typename Problem, typename Action>
  static void in_turns(const Problem& p, int B, int G, int batches, int groups, Action&& action) {
    for (int b = 0; b < B; b += batches)
      for (int group = 0; group < G; group += groups)
        action(slice<T>(p, {b, std::min(batches, B - b), group, std::min(groups, G - group)}));
  }

  template <bool Backward>
  using Plan = PartsPlan<T, Backward ? Dk : Dv>;
  template <bool Backward>
  static void join_parts(const AttentionForward& p, const Rows& out, const Pieces& pieces, const hopper::Parts& parts,
                         cudaStream_t stream) {
    constexpr int kOut = Backward ? Dk : Dv;
    using Join = hopper::JoinShape<kOut>;
    const auto kernel = parts.per_token <= Join::kParts ? hopper::join_parts_kernel<T, kOut, Backward, true>
                                                        : hopper::join_parts_kernel<T, kOut, Backward, false>;
    const hopper::JoinRows rows(p.Hq / p.G, parts, pieces);
    kernel<<<grid(tiles_of(rows.count, Join::kRows)), Join::kThreads, 0, stream>>>(p, out, parts, rows);
    check_launch("join_parts");
  }
  // Of a slice as the plan cuts them.
  template <bool Backward>
  static void parts_of_slice(const AttentionForward& p, const Rows& out, const Rows& dout, const float* delta,
                             Plan<Backward>& plan, cudaStream_t stream) {
    if constexpr (Dk % 64 == 0) {
      using Shape = hopper::PartsShape<Dk, Dv, Backward>;
      const auto kernel = hopper::parts_kernel<T, Dk, Dv, Backward>;
      allow_shared(kernel, Shape::kSharedBytes);
      const std::int64_t pairs = static_cast<std::int64_t>(p.B) * p.G;
      const std::int64_t made = plan.chunk * plan.chunks;  // tokens whose lists are
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
            const dim3 blocks(grid(plan.item_count(p, begin, begin + count)), grid(plan.pieces.tiles_a_block),
                              grid(turn));
            kernel<<<blocks, Shape::kThreads, Shape::kSharedBytes, stream>>>(
                p, dout, delta, plan.lists.lists, plan.pieces, plan.items_of(p, number, pair), plan.parts);
            check_launch("parts");
            join_parts<Backward>(p, out, plan.pieces, plan.parts, stream);
          }
      }
    }
  }
  // Everything by parts, or what the device leaves to them.
  static void parts(const AttentionForward& p, cudaStream_t stream) {
    Arena arena(p.workspace);
    Plan<false> plan(p, way_of(p), arena);
    decide<false>(p, p.o, nullptr, plan.ways, stream);
    in_turns(p, p.B, p.G, plan.batches, plan.groups,
             [&](const AttentionForward& own) { parts_of_slice<false>(own, own.o, {}, nullptr, plan, stream); });
  }
  static void parts(const AttentionBackward& p, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    Arena arena(p.workspace);
    Plan<true> plan(f, way_of(f), arena);
    decide<true>(f, p.dq, &p, plan.ways, stream);
    in_turns(p, f.B, f.G, plan.batches, plan.groups, [&](const AttentionBackward& own) {
      parts_of_slice<true>(own.forward, own.dq, own.dout, own.delta, plan, stream);
    });
  }
  template <bool Backward>
  static void size_parts(const AttentionForward& p, Arena& arena) {
    if (on_hopper(p) && way_of(p) != Way::joint) Plan<Backward>(p, way_of(p), arena);
  }

  static void forward(const AttentionForward& p, cudaStream_t stream) {
    if (p.mask == Mask::selected) {
      if (on_hopper(p) && way_of(p) == Way::joint) return joint<false>(p, p.o, nullptr, {}, stream);
      if (on_hopper(p)) return parts(p, stream);
      const int bytes = SelectedShape<Dk, Dv>::shared_bytes(Dv, 16 * Dk * 2, p.geometry.n * p.geometry.l_sel);
      allow_shared(selected_forward_kernel<T, Dk, Dv>, bytes);
      selected_forward_kernel<T, Dk, Dv><<<dim3(grid(p.S), grid(p.B * p.G)), 128, bytes, stream>>>(p);
      return check_launch("selected_forward");
    }
    using Shape = ForwardShape<Dk, Dv>;
    allow_shared(attention_forward_kernel<T, Dk, Dv>, Shape::kSharedBytes);
    const auto tiles = tiles_of(static_cast<std::int64_t>(p.S) * (p.Hq / p.G), Shape::kRows);
    attention_forward_kernel<T, Dk, Dv>
        <<<dim3(grid(tiles), grid(p.B * p.G)), Shape::kThreads, Shape::kSharedBytes, stream>>>(p);
    check_launch("attention_forward");
  }

  static void dq(const AttentionBackward& p, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (f.mask == Mask::selected) {
      if (on_hopper(f) && way_of(f) == Way::joint) return joint<true>(f, p.dq, &p, {}, stream);
      if (on_hopper(f)) return parts(p, stream);
      const int bytes = SelectedShape<Dk, Dv>::shared_bytes(Dk, 16 * (Dk + Dv) * 2, f.geometry.n * f.geometry.l_sel);
      allow_shared(selected_dq_kernel<T, Dk, Dv>, bytes);
      selected_dq_kernel<T, Dk, Dv><<<dim3(grid(f.S), grid(f.B * f.G)), 128, bytes, stream>>>(p);
      return check_launch("selected_dq");
    }
    const auto launch = [&]<typename Shape>(auto* kernel, Shape) {
      allow_shared(kernel, Shape::kSharedBytes);
      const auto tiles = tiles_of(static_cast<std::int64_t>(f.S) * (f.Hq / f.G), Shape::kRows);
      kernel<<<dim3(grid(tiles), grid(f.B * f.G)), Shape::kThreads, Shape::kSharedBytes, stream>>>(p);
      check_launch("attention_dq");
    };
    if constexpr (Dk % 64 == 0)
      if (on_hopper(f)) return launch(hopper::dq_kernel<T, Dk, Dv>, hopper::DqShape<Dk, Dv>());
    launch(attention_dq_kernel<T, Dk, Dv>, DqShape<Dk, Dv>());
  }

  // How the queries of every tile of keys are cut, and the sums of the pieces.
  struct DkvPlan {
    Pieces pieces;
    std::int64_t tiles;  // of keys
    float* partials = nullptr;

    DkvPlan(const AttentionBackward& p, Arena& arena) {
      const AttentionForward& f = p.forward;
      const std::int64_t pairs = static_cast<std::int64_t>(f.B) * f.G;
      const int h = f.Hq / f.G;
      std::int64_t slots;
      if (f.mask == Mask::selected) {
        const std::int64_t entries = pairs * f.S * f.geometry.n;
        pieces.tiles_a_block = static_cast<int>(tiles_of(f.geometry.l_sel, kKeyTile));
        const std::int64_t a_slot = kPartial<Dk, Dv> * static_cast<std::int64_t>(sizeof(float));
        const std::int64_t fewest = tiles_of(2 * entries * pieces.tiles_a_block * a_slot, kLimits.partials_bytes);
        pieces.tokens =
            static_cast<int>(std::max(std::clamp<std::int64_t>(tiles_of(entries / kWantedBlocks, 64) * 64, 128, 4096),
                                      tiles_of(fewest, 64) * 64));
        pieces.count = static_cast<int>(tiles_of(f.S, pieces.tokens));
        tiles = static_cast<std::int64_t>(f.selection.J) * pieces.tiles_a_block;
        slots = (2 * entries / pieces.tokens + 2) * pieces.tiles_a_block;
      } else {
        tiles = tiles_of(f.N, kKeyTile);
        const std::int64_t rows = static_cast<std::int64_t>(f.S) * h;
        const std::int64_t longest =
            f.mask == Mask::window ? std::min<std::int64_t>(rows, (f.geometry.w + kKeyTile) * h) : rows;
        pieces.count = static_cast<int>(std::clamp<std::int64_t>(
            kWantedBlocks / std::max<std::int64_t>(tiles * pairs, 1), 1, std::max<std::int64_t>(1, longest / 512)));
        slots = tiles * pairs * pieces.count;
      }
      if (pieces.count > 1) partials = arena.take<float>(slots * kKeyTile * (Dk + Dv));
    }
  };

  template <bool Lists>
  static void dkv(const AttentionBackward& p, const QueryLists& lists, const DkvPlan& plan, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (plan.tiles == 0) return;
    const auto launch = [&]<typename Shape>(auto* kernel, Shape) {
      allow_shared(kernel, Shape::kSharedBytes);
      kernel<<<dim3(grid(plan.pieces.count), grid(tiles_of(plan.tiles, Shape::kKeyTiles)), grid(f.B * f.G)),
               Shape::kThreads, Shape::kSharedBytes, stream>>>(p, lists, plan.pieces, plan.partials);
      check_launch("attention_dkv");
    };
    bool done = false;
    if constexpr (Dk % 64 == 0)
      if ((done = on_hopper(f))) launch(hopper::dkv_kernel<T, Dk, Dv, Lists>, hopper::DkvShape<Dk, Dv, Lists>());
    if (!done) launch(attention_dkv_kernel<T, Dk, Dv, Lists>, DkvShape<Dk, Dv>());
    if (plan.pieces.count == 1) return;
    // At most a block for every kSumThreads quads of a tile. At least four: of many lists only some are cut, and one
    // that is may be as long as all queries.
    const std::int64_t shares =
        std::clamp<std::int64_t>(kWantedSums / (plan.tiles * f.B * f.G), 4, kPartial<Dk, Dv> / 4 / kSumThreads);
    sum_pieces_kernel<T, Dk, Dv, Lists>
        <<<dim3(grid(shares), grid(plan.tiles), grid(f.B * f.G)), kSumThreads, 0, stream>>>(p, lists, plan.pieces,
                                                                                            plan.partials);
    check_launch("sum_pieces");
  }

  // As many groups at a time as have lists within Limits::lists_bytes.
  static void dkv_of_lists(const AttentionBackward& p, Arena& arena, bool run, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    const std::int64_t a_list = static_cast<std::int64_t>(f.S) * f.geometry.n * static_cast<std::int64_t>(sizeof(int));
    const std::int64_t pairs = std::max<std::int64_t>(1, kLimits.lists_bytes / a_list);
    const int groups = static_cast<int>(std::min<std::int64_t>(pairs, f.G));
    const int batches = static_cast<int>(std::clamp<std::int64_t>(pairs / f.G, 1, f.B));
    const AttentionBackward first = slice<T>(p, {0, batches, 0, groups});
    ListPlan lists(first.forward, f.G, f.S, 0, false, arena);
    const DkvPlan plan(first, arena);
    if (!run) return;
    in_turns(p, f.B, f.G, batches, groups, [&](const AttentionBackward& own) {
      lists.make(own.forward, 0, f.S, stream);
      dkv<true>(own, lists.lists, plan, stream);
    });
  }

  // dQ, dK and dV in one walk through the lists where not everything goes jointly; wider heads have no registers for
  // it.
  static constexpr bool kMerges = Dk % 64 == 0 && Dk <= 128 && Dv <= 128;
  static bool merges(const AttentionBackward& p) {
    const AttentionForward& f = p.forward;
    if constexpr (kMerges)
      return f.mask == Mask::selected && on_hopper(f) && p.dq.data && p.dk.data && p.dv.data &&
             way_of(f) != Way::joint && PartsBackwardPlan<T, Dk, Dv>::fits(f, way_of(f));
    return false;
  }
  static void merged(const AttentionBackward& p, Arena& arena, bool run, cudaStream_t stream) {
    if constexpr (kMerges) {
      const AttentionForward& f = p.forward;
      PartsBackwardPlan<T, Dk, Dv> plan(f, way_of(f), arena);
      if (!run) return;
      decide<true>(f, p.dq, &p, plan.parts.ways, stream);
      in_turns(p, f.B, f.G, plan.parts.batches, plan.parts.groups,
               [&](const AttentionBackward& own) { merged_of_turn(own, plan, stream); });
    }
  }
  static void merged_of_turn(const AttentionBackward& p, PartsBackwardPlan<T, Dk, Dv>& plan, cudaStream_t stream) {
    using Shape = hopper::PartsBackwardShape<Dk, Dv>;
    const auto kernel = hopper::parts_backward_kernel<T, Dk, Dv>;
    allow_shared(kernel, Shape::kSharedBytes);
    const AttentionForward& f = p.forward;
    PartsPlan<T, Dk>& own = plan.parts;
    const std::int64_t pairs = static_cast<std::int64_t>(f.B) * f.G, made = own.chunk * own.chunks;
    const hopper::Adders adders{kPartial<Dk, Dv> / 4 / kSumThreads, static_cast<int>(tiles_of(plan.tiles, kSumThreads)),
                                static_cast<int>(pairs)};
    cudaMemsetAsync(plan.sums.sums, 0, plan.sums_bytes(pairs), stream);
    hopper::Parts parts = own.parts;
    parts.pairs = static_cast<int>(pairs);
    const std::int64_t first = std::min(own.ways.first, f.S);  // before it dQ goes jointly
    for (std::int64_t from = 0, to; from < f.S; from = to) {
      to = std::min<std::int64_t>(from + made, from < first ? first : f.S);
      own.make_lists(f, from, to, true, stream);
      for (std::int64_t begin = from, number = 0; begin < to; begin += own.chunk, ++number) {
        const bool by_parts = begin >= first;
        const QueryLists lists = own.lists_of(f, number, 0);
        parts.first = static_cast<int>(begin);
        parts.count = static_cast<int>(std::min(own.chunk, to - begin));
        parts.data = by_parts ? own.parts.data : nullptr;
        parts.unless = by_parts ? own.ways.unless_jointly(begin) : nullptr;
        const dim3 blocks(grid(own.item_count(f, begin, begin + parts.count)), grid(own.pieces.tiles_a_block),
                          grid(pairs));
        kernel<<<blocks, Shape::kThreads, Shape::kSharedBytes, stream>>>(p, lists, own.pieces,
                                                                         own.items_of(f, number, 0), parts, plan.sums);
        check_launch("parts_backward");
        hopper::JoinRows rows(f.Hq / f.G, parts, own.pieces);
        if (!by_parts) rows.count = 0;
        const auto finish = parts.per_token <= hopper::JoinShape<Dk>::kParts
                                ? hopper::finish_chunk_kernel<T, Dk, Dv, true>
                                : hopper::finish_chunk_kernel<T, Dk, Dv, false>;
        finish<<<grid(adders.count() + tiles_of(rows.count, hopper::JoinShape<Dk>::kRows)), kSumThreads, 0, stream>>>(
            p, lists, own.pieces, plan.sums, adders, parts, rows);
        check_launch("finish_chunk");
      }
    }
    hopper::store_sums_kernel<T, Dk, Dv>
        <<<dim3(grid(plan.tiles), grid(pairs)), 128, 0, stream>>>(p, own.pieces, plan.sums);
    check_launch("store_sums");
  }

  // With `run` false only walks through the plan, for the size.
  static void backward(const AttentionBackward& p, Arena& arena, bool run, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (merges(p)) return merged(p, arena, run, stream);
    if (p.dq.data) {
      if (run)
        dq(p, stream);
      else if (f.mask == Mask::selected)
        size_parts<true>(f, arena);
      arena.release(0);
    }
    if (!p.dk.data && !p.dv.data) return;
    if (f.mask == Mask::selected) return dkv_of_lists(p, arena, run, stream);
    const DkvPlan plan(p, arena);
    if (run) dkv<false>(p, {}, plan, stream);
  }
};

// Calls action.operator()<T>() with the storage type.
template <typename Action>
void with_storage(Storage storage, Action&& action) {
  if (storage == Storage::bf16) return action.template operator()<bf16>();
  action.template operator()<fp16>();
}

template <int Dk, int Dv>
void forward_of_width(const AttentionForward& p, cudaStream_t stream) {
  with_storage(p.storage, [&]<typename T>() { Launches<T, Dk, Dv>::forward(p, stream); });
}
template <int Dk, int Dv>
std::int64_t forward_workspace_of_width(const AttentionForward& p) {
  Arena arena(nullptr);
  if (p.mask == Mask::selected) Launches<bf16, Dk, Dv>::template size_parts<false>(p, arena);
  return arena.most();
}
template <int Dk, int Dv>
void backward_of_width(const AttentionBackward& p, cudaStream_t stream) {
  Arena arena(p.workspace);
  with_storage(p.forward.storage, [&]<typename T>() { Launches<T, Dk, Dv>::backward(p, arena, true, stream); });
}
template <int Dk, int Dv>
std::int64_t backward_workspace_of_width(const AttentionBackward& p) {
  Arena arena(nullptr);
  Launches<bf16, Dk, Dv>::backward(p, arena, false, nullptr);
  return arena.most();
}

#define NSA_INSTANTIATE_WIDTH(Dk, Dv)                                                \
  template void forward_of_width<Dk, Dv>(const AttentionForward&, cudaStream_t);     \
  template void backward_of_width<Dk, Dv>(const AttentionBackward&, cudaStream_t);   \
  template std::int64_t forward_workspace_of_width<Dk, Dv>(const AttentionForward&); \
  template std::int64_t backward_workspace_of_width<Dk, Dv>(const AttentionBackward&)

}  // namespace nsa::kernels
