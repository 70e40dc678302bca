// One pair of head widths: from parameters to launches. Included by width_*.cu, each of which compiles one pair.
#pragma once

#include <algorithm>

#include "nsa/kernels/interval/sm80_dkv.cuh"
#include "nsa/kernels/interval/sm80_dq.cuh"
#include "nsa/kernels/interval/sm80_forward.cuh"
#include "nsa/kernels/interval/sm90_dkv.cuh"
#include "nsa/kernels/interval/sm90_dq.cuh"
#include "nsa/kernels/launch/launch_selected.cuh"
#include "nsa/kernels/launch/width.hpp"
#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/device.hpp"
#include "nsa/kernels/plan/plan.cuh"
#include "nsa/kernels/selected/sm80.cuh"

namespace nsa::kernels {

inline constexpr std::int64_t kWantedSums = 4096;  // CTAs of sum_pieces_kernel, which are small

template <typename T, int Dk, int Dv>
struct Launches {
  using Selected = SelectedLaunches<T, Dk, Dv>;
  static bool on_hopper(const AttentionForward& p, const Device& device) { return kernels::on_hopper<Dk>(p, device); }

  static void forward(const AttentionForward& p, const Device& device, cudaStream_t stream) {
    if (p.mask == Mask::selected) {
      if (on_hopper(p, device)) return Selected::forward(p, device, stream);
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

  static void dq(const AttentionBackward& p, const Device& device, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (f.mask == Mask::selected) {
      if (on_hopper(f, device)) return Selected::dq(p, device, stream);
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
      if (on_hopper(f, device)) return launch(hopper::dq_kernel<T, Dk, Dv>, hopper::DqShape<Dk, Dv>());
    launch(attention_dq_kernel<T, Dk, Dv>, DqShape<Dk, Dv>());
  }

  template <bool Lists>
  static void dkv(const AttentionBackward& p, const Device& device, const QueryLists& lists,
                  const DkvPlan<Dk, Dv>& plan, cudaStream_t stream) {
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
      if ((done = on_hopper(f, device)))
        launch(hopper::dkv_kernel<T, Dk, Dv, Lists>, hopper::DkvShape<Dk, Dv, Lists>());
    if (!done) launch(attention_dkv_kernel<T, Dk, Dv, Lists>, DkvShape<Dk, Dv>());
    if (plan.pieces.count == 1) return;
    // At most a CTA for every kSumThreads quads of a tile. At least four: of many lists only some are cut, and one
    // that is may be as long as all queries.
    const std::int64_t shares =
        std::clamp<std::int64_t>(kWantedSums / (plan.tiles * f.B * f.G), 4, kPartial<Dk, Dv> / 4 / kSumThreads);
    sum_pieces_kernel<T, Dk, Dv, Lists>
        <<<dim3(grid(shares), grid(plan.tiles), grid(f.B * f.G)), kSumThreads, 0, stream>>>(p, lists, plan.pieces,
                                                                                            plan.partials);
    check_launch("sum_pieces");
  }

  // As many groups at a time as have lists within Limits::lists_bytes.
  static void dkv_of_lists(const AttentionBackward& p, const Device& device, Arena& arena, bool run,
                           cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    const std::int64_t a_list = static_cast<std::int64_t>(f.S) * f.geometry.n * static_cast<std::int64_t>(sizeof(int));
    const std::int64_t pairs = std::max<std::int64_t>(1, device.limits.lists_bytes / a_list);
    const int groups = static_cast<int>(std::min<std::int64_t>(pairs, f.G));
    const int batches = static_cast<int>(std::clamp<std::int64_t>(pairs / f.G, 1, f.B));
    const AttentionBackward first = slice<T>(p, {0, batches, 0, groups});
    ListPlan lists(first.forward, f.G, f.S, 0, false, arena);
    const DkvPlan<Dk, Dv> plan(first.forward, device.limits, arena);
    if (!run) return;
    in_turns<T>(p, f.B, f.G, batches, groups, [&](const AttentionBackward& own) {
      lists.make(own.forward, 0, f.S, stream);
      dkv<true>(own, device, lists.lists, plan, stream);
    });
  }

  // With `run` false only walks through the plan, for the size.
  static void backward(const AttentionBackward& p, const Device& device, Arena& arena, bool run, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (Selected::merges(p, device)) return Selected::merged(p, device, arena, run, stream);
    if (p.dq.data) {
      if (run)
        dq(p, device, stream);
      else if (f.mask == Mask::selected)
        Selected::template size_parts<true>(f, device, arena);
      arena.release(0);
    }
    if (!p.dk.data && !p.dv.data) return;
    if (f.mask == Mask::selected) return dkv_of_lists(p, device, arena, run, stream);
    const DkvPlan<Dk, Dv> plan(f, device.limits, arena);
    if (run) dkv<false>(p, device, {}, plan, stream);
  }
};

// Calls action.operator()<T>() with the storage type.
template <typename Action>
void with_storage(Storage storage, Action&& action) {
  if (storage == Storage::bf16) return action.template operator()<bf16>();
  action.template operator()<fp16>();
}

template <int Dk, int Dv>
void forward_of_width(const AttentionForward& p, const Device& device, cudaStream_t stream) {
  with_storage(p.storage, [&]<typename T>() { Launches<T, Dk, Dv>::forward(p, device, stream); });
}
template <int Dk, int Dv>
std::int64_t forward_workspace_of_width(const AttentionForward& p, const Device& device) {
  Arena arena(nullptr);
  if (p.mask == Mask::selected) SelectedLaunches<bf16, Dk, Dv>::template size_parts<false>(p, device, arena);
  return arena.most();
}
template <int Dk, int Dv>
void backward_of_width(const AttentionBackward& p, const Device& device, cudaStream_t stream) {
  Arena arena(p.workspace);
  with_storage(p.forward.storage, [&]<typename T>() { Launches<T, Dk, Dv>::backward(p, device, arena, true, stream); });
}
template <int Dk, int Dv>
std::int64_t backward_workspace_of_width(const AttentionBackward& p, const Device& device) {
  Arena arena(nullptr);
  Launches<bf16, Dk, Dv>::backward(p, device, arena, false, nullptr);
  return arena.most();
}

#define NSA_INSTANTIATE_WIDTH(Dk, Dv)                                                               \
  template void forward_of_width<Dk, Dv>(const AttentionForward&, const Device&, cudaStream_t);     \
  template void backward_of_width<Dk, Dv>(const AttentionBackward&, const Device&, cudaStream_t);   \
  template std::int64_t forward_workspace_of_width<Dk, Dv>(const AttentionForward&, const Device&); \
  template std::int64_t backward_workspace_of_width<Dk, Dv>(const AttentionBackward&, const Device&)

}  // namespace nsa::kernels
