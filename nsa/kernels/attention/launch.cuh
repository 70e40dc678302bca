// One pair of head widths: from parameters to launches. Included by width_*.cu, each of which compiles one pair.
#pragma once

#include <algorithm>

#include "nsa/kernels/attention/dkv.cuh"
#include "nsa/kernels/attention/dq.cuh"
#include "nsa/kernels/attention/forward.cuh"
#include "nsa/kernels/attention/limits.hpp"
#include "nsa/kernels/attention/selected.cuh"
#include "nsa/kernels/attention/width.hpp"
#include "nsa/kernels/common/arena.hpp"
#include "nsa/kernels/hopper/dkv.cuh"
#include "nsa/kernels/hopper/dq.cuh"
#include "nsa/kernels/hopper/hopper.hpp"
#include "nsa/kernels/hopper/join.cuh"
#include "nsa/kernels/hopper/joint.cuh"
#include "nsa/kernels/hopper/parts.cuh"
#include "nsa/kernels/inverse/params.hpp"

namespace nsa::kernels {

// Enough blocks for every chip of this kind to be full a few times over.
inline constexpr std::int64_t kWantedBlocks = 1024;
inline constexpr std::int64_t kWantedSums = 4096;  // blocks of sum_pieces_kernel, which are small

inline unsigned grid(std::int64_t count) { return static_cast<unsigned>(count); }
inline std::int64_t tiles_of(std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; }

// A kernel that uses more shared memory than every GPU grants unasked must say so first.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
    check_launch("attention: shared memory");
}

// Batch entries, and of a single one also groups, as a problem of their own.
struct Slice {
  int batch, batches, group, groups;
};
// `blocks` begins at the slice's first group and keeps its rows of p.G groups.
template <typename T>
AttentionForward slice(const AttentionForward& p, const Slice& x) {
  const auto rows_of = [&](const Rows& rows, int head) {
    Rows own = rows;
    if (rows.data) own.data = static_cast<T*>(rows.data) + x.batch * rows.batch + head * rows.head;
    return own;
  };
  const int h = p.Hq / p.G, head = x.group * h;
  AttentionForward own = p;
  own.q = rows_of(p.q, head), own.o = rows_of(p.o, head);
  own.k = rows_of(p.k, x.group), own.v = rows_of(p.v, x.group);
  own.stats = p.stats + (static_cast<std::int64_t>(x.batch) * p.Hq + head) * p.S * 2;
  own.blocks = p.blocks + (static_cast<std::int64_t>(x.batch) * p.S * p.G + x.group) * p.geometry.n;
  own.B = x.batches, own.G = x.groups, own.Hq = x.groups * h;
  return own;
}
template <typename T>
AttentionBackward slice(const AttentionBackward& p, const Slice& x) {
  const AttentionForward& f = p.forward;
  // What belongs to the gradients lies as what belongs to the inputs.
  AttentionForward gradients = f;
  gradients.q = p.dq, gradients.o = p.dout, gradients.k = p.dk, gradients.v = p.dv;
  gradients = slice<T>(gradients, x);
  AttentionBackward own = p;
  own.forward = slice<T>(f, x);
  own.dq = gradients.q, own.dout = gradients.o, own.dk = gradients.k, own.dv = gradients.v;
  own.delta = p.delta + (static_cast<std::int64_t>(x.batch) * f.Hq + x.group * (f.Hq / f.G)) * f.S;
  return own;
}

// The query lists of the tokens [begin, end) and what makes them. `row_groups`: groups in a row of the table.
struct ListPlan {
  Inverse inverse;
  QueryLists lists;

  ListPlan(const AttentionForward& p, int row_groups, int tokens, bool places, Arena& arena) {
    const std::int64_t entries = static_cast<std::int64_t>(p.B) * tokens * p.G * p.geometry.n;
    inverse.document_blocks = p.selection.document_blocks;
    inverse.packed = p.packed;
    inverse.geometry = p.geometry;
    inverse.B = p.B;
    inverse.S = p.S;
    inverse.G = p.G;
    inverse.J = p.selection.J;
    inverse.row_groups = row_groups;
    inverse.end = tokens;
    inverse.offsets = arena.take<int>(static_cast<std::int64_t>(p.B) * p.G * p.selection.J + 1);
    inverse.tokens = arena.take<int>(entries);
    if (places) inverse.places = arena.take<int>(entries);
    inverse.workspace = reinterpret_cast<int*>(arena.take<char>(inverse_workspace(inverse)));
    lists = {inverse.offsets, inverse.tokens, inverse.places};
  }
  // Of p, which has no more pairs than the plan's.
  void make(const AttentionForward& p, int begin, int end, cudaStream_t stream) {
    inverse.blocks = p.blocks;
    inverse.B = p.B;
    inverse.G = p.G;
    inverse.begin = begin;
    inverse.end = end;
    invert_choice(inverse, stream);
  }
};

// Queries in chunks, and the pairs (batch entry, group) of a chunk in turns, so that the parts fit Limits::parts_bytes.
// Chunks are long and turns short, because every block of keys is loaded once a chunk.
template <typename T, int D>
class PartsPlan {
 public:
  std::int64_t chunk, turn;  // tokens, pairs
  Pieces pieces;
  hopper::Parts parts;
  hopper::Item* items;
  ListPlan lists;

  PartsPlan(const AttentionForward& p, Arena& arena) : PartsPlan(p, sizes(p), arena) {}
  [[nodiscard]] std::int64_t item_count(const AttentionForward& p, std::int64_t tokens, std::int64_t pairs) const {
    return pairs * (tokens * p.geometry.n / pieces.tokens + p.selection.J);
  }

 private:
  // Long enough for a block of keys to be worth its load; short enough for Divisor's 32 bits (queries * chunk < 2^32).
  static constexpr std::int64_t kLongChunk = 4096, kLongestChunk = 16384, kMostQueries = 131072;
  struct Sizes {
    std::int64_t chunk, turn;
  };
  static std::int64_t parts_a_token(const AttentionForward& p) {
    return p.geometry.n * tiles_of(p.geometry.l_sel, kKeyTile);
  }
  static Sizes sizes(const AttentionForward& p) {
    const std::int64_t pairs = static_cast<std::int64_t>(p.B) * p.G;
    const std::int64_t a_part = D * static_cast<std::int64_t>(sizeof(T)) + static_cast<std::int64_t>(sizeof(float2));
    const std::int64_t queries =
        std::clamp<std::int64_t>(kLimits.parts_bytes / (p.Hq / p.G * parts_a_token(p) * a_part), 256, kMostQueries);
    const std::int64_t chunk =
        std::min<std::int64_t>({p.S, queries, std::clamp(queries / pairs, kLongChunk, kLongestChunk)});
    return {chunk, std::clamp<std::int64_t>(queries / chunk, 1, pairs)};
  }
  PartsPlan(const AttentionForward& p, Sizes sizes, Arena& arena)
      : chunk(sizes.chunk), turn(sizes.turn), lists(p, p.G, static_cast<int>(sizes.chunk), true, arena) {
    pieces.tiles_a_block = static_cast<int>(tiles_of(p.geometry.l_sel, kKeyTile));
    // A block of threads sees at most so many tokens: the first block of keys is chosen by every query.
    pieces.tokens = std::max(64, static_cast<int>(tiles_of(512, p.Hq / p.G)));
    items = arena.take<hopper::Item>(item_count(p, chunk, turn) + 1);
    parts.per_token = static_cast<int>(parts_a_token(p));
    const std::int64_t rows = turn * chunk * (p.Hq / p.G) * parts.per_token;
    parts.stats = arena.take<float2>(rows);
    parts.data = arena.take<T>(rows * D);
  }
};

template <typename T, int Dk, int Dv>
struct Launches {
  static bool on_hopper(const AttentionForward& p) { return Dk % 64 == 0 && p.hopper && hopper::is_here(); }

  static bool together(const AttentionForward& p) {
    return p.selection.J * tiles_of(p.geometry.l_sel, kKeyTile) <= kLimits.joint_tiles;
  }
  template <bool Backward>
  static void joint(const AttentionForward& p, const Rows& out, const AttentionBackward* backward,
                    cudaStream_t stream) {
    if constexpr (Dk % 64 == 0) {
      using Shape = hopper::JointShape<Dk, Dv, Backward>;
      const auto kernel = hopper::joint_kernel<T, Dk, Dv, Backward>;
      const int h = p.Hq / p.G, bytes = Shape::shared_bytes(p.selection.J, h);
      allow_shared(kernel, bytes);
      const auto tiles = tiles_of(static_cast<std::int64_t>(p.S) * h, Shape::kRows);
      kernel<<<dim3(grid(tiles), grid(p.B * p.G)), Shape::kThreads, bytes, stream>>>(
          p, Backward ? backward->dout : Rows{}, Backward ? backward->delta : nullptr, out);
      check_launch("joint");
    }
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
  // The largest turn, from which the plan of all is made.
  static AttentionForward first_turn(const AttentionForward& p) {
    AttentionForward own = p;
    own.B = std::clamp(kLimits.most_pairs / p.G, 1, p.B);
    return own;
  }
  template <bool Backward>
  static void parts_of_turn(const AttentionForward& p, const Rows& out, const Rows& dout, const float* delta,
                            Plan<Backward>& plan, cudaStream_t stream) {
    if constexpr (Dk % 64 == 0) {
      using Shape = hopper::PartsShape<Dk, Dv, Backward>;
      const auto kernel = hopper::parts_kernel<T, Dk, Dv, Backward>;
      const auto joining = hopper::join_parts_kernel<T, Shape::kOut, Backward>;
      allow_shared(kernel, Shape::kSharedBytes);
      const std::int64_t pairs = static_cast<std::int64_t>(p.B) * p.G;
      const int h = p.Hq / p.G, queries_a_block = std::max(1, 256 / (h * Shape::kOut / 8));
      for (std::int64_t begin = 0; begin < p.S; begin += plan.chunk) {
        const std::int64_t count = std::min(plan.chunk, p.S - begin);
        plan.lists.make(p, static_cast<int>(begin), static_cast<int>(begin + count), stream);
        plan.parts.first = static_cast<int>(begin);
        plan.parts.count = static_cast<int>(count);
        for (std::int64_t pair = 0; pair < pairs; pair += plan.turn) {
          const std::int64_t turn = std::min(plan.turn, pairs - pair), lists = turn * p.selection.J;
          const std::int64_t items = plan.item_count(p, count, turn) + 1;
          plan.parts.first_pair = static_cast<int>(pair);
          plan.parts.pairs = static_cast<int>(turn);
          hopper::items_kernel<<<grid(tiles_of(lists, 256)), 256, 0, stream>>>(
              plan.lists.lists.offsets, static_cast<int>(pair * p.selection.J), static_cast<int>(lists),
              plan.pieces.tokens, plan.items, static_cast<int>(items));
          kernel<<<dim3(grid(items), grid(plan.pieces.tiles_a_block)), Shape::kThreads, Shape::kSharedBytes, stream>>>(
              p, dout, delta, plan.lists.lists, plan.pieces, plan.items, plan.parts);
          check_launch("parts");
          hopper::JoinShape join(h, plan.parts, queries_a_block);
          while (join.queries > 1 && join.shared_bytes() > 48 << 10) join.queries /= 2;  // many parts a query
          allow_shared(joining, join.shared_bytes());
          joining<<<grid(tiles_of(turn * count, join.queries)), 256, join.shared_bytes(), stream>>>(p, out, plan.pieces,
                                                                                                    plan.parts, join);
          check_launch("join_parts");
        }
      }
    }
  }
  static void parts(const AttentionForward& p, cudaStream_t stream) {
    Arena arena(p.workspace);
    Plan<false> plan(first_turn(p), arena);
    in_turns(p, p.B, p.G, first_turn(p).B, p.G,
             [&](const AttentionForward& own) { parts_of_turn<false>(own, own.o, {}, nullptr, plan, stream); });
  }
  static void parts(const AttentionBackward& p, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    Arena arena(p.workspace);
    Plan<true> plan(first_turn(f), arena);
    in_turns(p, f.B, f.G, first_turn(f).B, f.G, [&](const AttentionBackward& own) {
      parts_of_turn<true>(own.forward, own.dq, own.dout, own.delta, plan, stream);
    });
  }
  template <bool Backward>
  static void size_parts(const AttentionForward& p, Arena& arena) {
    if (on_hopper(p) && !together(p)) Plan<Backward>(first_turn(p), arena);
  }

  static void forward(const AttentionForward& p, cudaStream_t stream) {
    if (p.mask == Mask::selected) {
      if (on_hopper(p) && together(p)) return joint<false>(p, p.o, nullptr, stream);
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
      if (on_hopper(f) && together(f)) return joint<true>(f, p.dq, &p, stream);
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
      kernel<<<dim3(grid(plan.pieces.count), grid(plan.tiles), grid(f.B * f.G)), Shape::kThreads, Shape::kSharedBytes,
               stream>>>(p, lists, plan.pieces, plan.partials);
      check_launch("attention_dkv");
    };
    bool done = false;
    if constexpr (Dk % 64 == 0)
      if ((done = on_hopper(f))) launch(hopper::dkv_kernel<T, Dk, Dv, Lists>, hopper::DkvShape<Dk, Dv>());
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
    ListPlan lists(first.forward, f.G, f.S, false, arena);
    const DkvPlan plan(first, arena);
    if (!run) return;
    in_turns(p, f.B, f.G, batches, groups, [&](const AttentionBackward& own) {
      lists.make(own.forward, 0, f.S, stream);
      dkv<true>(own, lists.lists, plan, stream);
    });
  }

  // With `run` false only walks through the plan, for the size.
  static void backward(const AttentionBackward& p, Arena& arena, bool run, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
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
