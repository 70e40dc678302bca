// One pair of head widths: from parameters to launches. Included by width_*.cu, each of which compiles one pair.
#pragma once

#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/interval/sm80_dkv.cuh"
#include "nsa/kernels/interval/sm80_dq.cuh"
#include "nsa/kernels/interval/sm80_forward.cuh"
#include "nsa/kernels/interval/sm90_dkv.cuh"
#include "nsa/kernels/interval/sm90_dkv_narrow.cuh"
#include "nsa/kernels/interval/sm90_dq.cuh"
#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/launch/launch_selected.cuh"
#include "nsa/kernels/launch/width.hpp"
#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/plan/plan.cuh"
#include "nsa/kernels/selected/sm80.cuh"

namespace nsa::kernels {

template <typename T, int Dk, int Dv>
struct Launches {
  using Selected = SelectedLaunches<T, Dk, Dv>;

  static void forward(const AttentionForward& p, const AttentionPlan& plan, cudaStream_t stream) {
    if (p.mask == Mask::selected) {
      if (plan.variant != Variant::mma_sync) return Selected::forward(p, plan, stream);
      const int bytes = SelectedShape<Dk, Dv>::shared_bytes(Dv, 16 * Dk * 2, p.geometry.n * p.geometry.l_sel);
      allow_shared(selected_forward_kernel<T, Dk, Dv>, bytes);
      launch(false, selected_forward_kernel<T, Dk, Dv>, dim3(grid(p.S), grid(p.B * p.G)), 128, bytes, stream, p);
      return check_launch("selected_forward");
    }
    using Shape = ForwardShape<Dk, Dv>;
    allow_shared(attention_forward_kernel<T, Dk, Dv>, Shape::kSharedBytes);
    const auto tiles = tiles_of(static_cast<std::int64_t>(p.S) * (p.Hq / p.G), Shape::kRows);
    launch(false, attention_forward_kernel<T, Dk, Dv>, dim3(grid(tiles), grid(p.B * p.G)), Shape::kThreads,
           Shape::kSharedBytes, stream, p);
    check_launch("attention_forward");
  }

  static void dq(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (f.mask == Mask::selected) {
      if (plan.variant != Variant::mma_sync) return Selected::dq(p, plan, stream);
      const int bytes = SelectedShape<Dk, Dv>::shared_bytes(Dk, 16 * (Dk + Dv) * 2, f.geometry.n * f.geometry.l_sel);
      allow_shared(selected_dq_kernel<T, Dk, Dv>, bytes);
      launch(false, selected_dq_kernel<T, Dk, Dv>, dim3(grid(f.S), grid(f.B * f.G)), 128, bytes, stream, p);
      return check_launch("selected_dq");
    }
    const auto of_shape = [&]<typename Shape>(const char* name, auto* kernel, Shape) {
      allow_shared(kernel, Shape::kSharedBytes);
      const auto tiles = tiles_of(static_cast<std::int64_t>(f.S) * (f.Hq / f.G), Shape::kRows);
      launch(false, kernel, dim3(grid(tiles), grid(f.B * f.G)), Shape::kThreads, Shape::kSharedBytes, stream, p);
      check_launch(name);
    };
    if constexpr (Dk % 64 == 0)
      if (plan.variant != Variant::mma_sync)
        return of_shape("attention_dq_hopper", hopper::dq_kernel<T, Dk, Dv>, hopper::DqShape<Dk, Dv>());
    of_shape("attention_dq", attention_dq_kernel<T, Dk, Dv>, DqShape<Dk, Dv>());
  }

  template <bool Lists>
  static void dkv(const AttentionBackward& p, const AttentionPlan& plan, const QueryLists& lists,
                  const DkvPlan<Dk, Dv>& own, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    if (own.tiles == 0) return;
    const auto of_shape = [&]<typename Shape>(const char* name, auto* kernel, Shape) {
      allow_shared(kernel, Shape::kSharedBytes);
      launch(false, kernel, dim3(grid(own.pieces.count), grid(tiles_of(own.tiles, Shape::kKeyTiles)), grid(f.B * f.G)),
             Shape::kThreads, Shape::kSharedBytes, stream, p, lists, own.pieces, own.partials);
      check_launch(name);
    };
    bool done = false;
    if constexpr (Dk % 64 == 0)
      if ((done = plan.variant != Variant::mma_sync)) {
        if constexpr (Dk == 64 && Dv == 64)
          of_shape("attention_dkv_hopper", hopper::narrow_dkv_kernel<T, Dk, Lists>, hopper::NarrowDkvShape<Dk>());
        else
          of_shape("attention_dkv_hopper", hopper::dkv_kernel<T, Dk, Dv, Lists>, hopper::DkvShape<Dk, Dv, Lists>());
      }
    if (!done) of_shape("attention_dkv", attention_dkv_kernel<T, Dk, Dv, Lists>, DkvShape<Dk, Dv>());
    if (own.pieces.count == 1) return;
    const std::int64_t pairs = std::int64_t{f.B} * f.G;
    launch(false, sum_pieces_kernel<T, Dk, Dv, Lists>, dim3(grid(own.adding_ctas(pairs)), grid(own.tiles), grid(pairs)),
           kSumThreads, 0, stream, p, lists, own.pieces, own.partials);
    check_launch("sum_pieces");
  }

  static void dkv_of_lists(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
    const AttentionForward& f = p.forward;
    Arena arena(p.workspace);
    DkvOfListsPlan<Dk, Dv> own(f, plan.device.limits, arena);
    in_turns<T>(p, f.B, f.G, own.batches, own.groups, [&](const AttentionBackward& slice) {
      own.lists.make(slice.forward, 0, f.S, stream);
      wait_for(stream, p.rows_ready);
      dkv<true>(slice, plan, own.lists.lists, own.dkv, stream);
    });
  }

  static void backward(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
    const bool lists_alone = p.forward.mask == Mask::selected && !p.dq.data;
    if (!lists_alone) wait_for(stream, p.rows_ready);
    if (is_merged(plan.variant)) return Selected::merged(p, plan, stream);
    if (p.dq.data) dq(p, plan, stream);
    if (!p.dk.data && !p.dv.data) return;
    if (p.forward.mask == Mask::selected) return dkv_of_lists(p, plan, stream);
    Arena arena(p.workspace);
    dkv<false>(p, plan, {}, DkvPlan<Dk, Dv>(p.forward, plan.device.limits, arena), stream);
  }
};

// Calls action.operator()<T>() with the storage type.
template <typename Action>
void with_storage(Storage storage, Action&& action) {
  if (storage == Storage::bf16) return action.template operator()<bf16>();
  action.template operator()<fp16>();
}

template <int Dk, int Dv>
void forward_of_width(const AttentionForward& p, const AttentionPlan& plan, cudaStream_t stream) {
  with_storage(p.storage, [&]<typename T>() { Launches<T, Dk, Dv>::forward(p, plan, stream); });
}
template <int Dk, int Dv>
void backward_of_width(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
  with_storage(p.forward.storage, [&]<typename T>() { Launches<T, Dk, Dv>::backward(p, plan, stream); });
}

#define NSA_INSTANTIATE_WIDTH(Dk, Dv)                                                                  \
  template void forward_of_width<Dk, Dv>(const AttentionForward&, const AttentionPlan&, cudaStream_t); \
  template void backward_of_width<Dk, Dv>(const AttentionBackward&, const AttentionPlan&, cudaStream_t)

}  // namespace nsa::kernels
