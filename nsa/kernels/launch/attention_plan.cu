#include "nsa/kernels/plan/attention_plan.hpp"

#include <algorithm>
#include <optional>

#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/interval/sm90.hpp"
#include "nsa/kernels/launch/width.hpp"
#include "nsa/kernels/plan/arena.hpp"
#include "nsa/kernels/plan/plan.cuh"
#include "nsa/kernels/selected/merged_plan.cuh"
#include "nsa/kernels/selected/plan.cuh"
#include "nsa/kernels/selected/sm90_union/joint_tiles.cuh"

namespace nsa::kernels {

namespace {

constexpr std::string_view kNoHopper = "the device has no wgmma", kHopperServes = "the device has wgmma";

bool goes_jointly(Variant x) {
  return x == Variant::joint || x == Variant::joint_or_parts || x == Variant::joint_or_merged_parts;
}

// Whether dQ had better be made beside dK and dV than as `whole` does all three.
bool goes_beside(const AttentionBackward& p, Variant whole, const Limits& limits) {
  if (!p.dq.data || !(p.dk.data || p.dv.data)) return false;
  const std::int64_t rows = std::int64_t{p.forward.B} * p.forward.S * p.forward.Hq;
  if (rows <= limits.beside_rows) return true;
  return rows <= limits.most_beside_rows && whole != Variant::merged_intervals && !is_merged(whole);
}

// Of one pair of head widths. What is cut does not depend on which storage type it is: both have two bytes.
template <int Dk, int Dv>
struct Planner {
  static constexpr bool kHopper = Dk % 64 == 0;
  template <bool Backward>
  using Parts = PartsPlan<bf16, Backward ? Dk : Dv>;
  struct Decision {
    Variant variant;
    std::string_view why;
  };

  static std::int64_t key_tiles(const AttentionForward& p) {
    return p.selection.J * tiles_of(p.geometry.l_sel, kKeyTile);
  }

  static Decision choose(const AttentionForward& p, const Device& device) {
    if (p.mask == Mask::selected) return choose_selected(p, device);
    const auto refusal = device.hopper ? attention_forward_hopper_refusal(p) : kNoHopper;
    if (refusal.empty()) return {Variant::intervals, kHopperServes};
    return {Variant::mma_sync, refusal};
  }
  static Decision choose(const AttentionBackward& p, const Device& device) {
    if (p.forward.mask == Mask::selected) return choose_selected(p, device);
    const auto refusal = device.hopper ? attention_backward_hopper_refusal(p, device.limits) : kNoHopper;
    if (refusal.empty()) return {Variant::merged_intervals, kHopperServes};
    return {kHopper && device.hopper ? Variant::intervals : Variant::mma_sync, refusal};
  }

  // Of the selected branch: forward and of dQ by itself; of the whole backward pass.
  static Decision choose_selected(const AttentionForward& p, const Device& device) {
    if (!device.hopper) return {Variant::mma_sync, kNoHopper};
    if constexpr (kHopper) {
      const Limits& limits = device.limits;
      const auto fits = [&]<typename Shape>(Shape) {
        return p.geometry.n <= Shape::kMostChosen &&
               Shape::shared_bytes(p.selection.J, p.geometry.n, p.Hq / p.G) <= limits.joint_bytes;
      };
      if (!fits(hopper::JointShape<Dk, Dv, false>()) || !fits(hopper::JointShape<Dk, Dv, true>()))
        return {Variant::parts, "the blocks of a tile of rows do not fit the shared memory"};
      if (hopper::expanded(p.k, p.B, p.S, p.G) || hopper::expanded(p.v, p.B, p.S, p.G))
        return {Variant::parts, "K or V is expanded"};
      if (key_tiles(p) <= std::min(limits.joint_tiles, limits.joint_tiles_a_head * (p.Hq / p.G)))
        return {Variant::joint, "few tiles of keys for the heads of a group"};
      if (p.S <= Parts<true>::joint_tokens(p, limits)) return {Variant::joint, "no more tokens than always go jointly"};
      return {Variant::joint_or_parts, "many tiles of keys: what is faster depends on how much neighbours share"};
    }
    return {Variant::mma_sync, "width 32"};
  }
  static Decision choose_selected(const AttentionBackward& p, const Device& device) {
    const AttentionForward& f = p.forward;
    const Decision own = choose_selected(f, device);
    if (own.variant == Variant::mma_sync) return own;
    if (!p.dq.data) return {Variant::lists, "no dQ is wanted"};
    if (!p.dk.data || !p.dv.data || !kMerges<Dk, Dv>) return own;
    if constexpr (kMerges<Dk, Dv>) {
      if (own.variant == Variant::joint && key_tiles(f) <= device.limits.merged_tiles) return own;
      const Decision merged =
          own.variant == Variant::parts
              ? Decision{Variant::merged_parts, own.why}
              : Decision{Variant::joint_or_merged_parts,
                         "many tiles of keys: what is faster for dQ depends on how much neighbours share"};
      if (PartsBackwardPlan<bf16, Dk, Dv>::fits(f, merged.variant, device.limits)) return merged;
    }
    return own;
  }

  static AttentionPlan begun(const Decision& own, const Device& device) {
    AttentionPlan plan;
    plan.variant = own.variant, plan.why = own.why, plan.device = device;
    return plan;
  }
  // What computes o, or dQ, adds its needs.
  template <bool Backward>
  static void need_rows(const AttentionForward& p, AttentionPlan& plan, Arena& arena) {
    if (plan.variant == Variant::parts || plan.variant == Variant::joint_or_parts)
      plan.launches += Parts<Backward>(p, plan.variant, plan.device.limits, arena).launches(p);
    else
      plan.launches += 1;
    look_for_room<Backward>(p, plan);
  }
  template <bool Backward>
  static void look_for_room(const AttentionForward& p, AttentionPlan& plan) {
    if constexpr (kHopper)
      if (goes_jointly(plan.variant))
        plan.rows_ahead = hopper::JointShape<Dk, Dv, Backward>::shared_bytes_ahead(
                              p.selection.J, p.geometry.n, p.Hq / p.G) <= plan.device.limits.joint_bytes;
  }

  static AttentionPlan forward(const AttentionForward& p, const Device& device) {
    AttentionPlan plan = begun(choose(p, device), device);
    Arena arena(nullptr);
    need_rows<false>(p, plan, arena);
    plan.workspace = arena.most();
    return plan;
  }

  static AttentionPlan backward(const AttentionBackward& p, const Decision& own, const Device& device) {
    AttentionPlan plan = begun(own, device);
    if (p.forward.mask == Mask::selected)
      need_backward_of_selected(p, plan);
    else
      need_backward_over_intervals(p, plan);
    return plan;
  }
  static void need_backward_over_intervals(const AttentionBackward& p, AttentionPlan& plan) {
    const Limits& limits = plan.device.limits;
    if (plan.variant == Variant::merged_intervals) {
      plan.workspace = attention_backward_hopper_workspace(p, limits);
      plan.launches = kBackwardHopperLaunches;
      return;
    }
    Arena arena(nullptr);
    if (p.dq.data) plan.launches += 1;
    if (p.dk.data || p.dv.data) plan.launches += DkvPlan<Dk, Dv>(p.forward, limits, arena).launches();
    plan.workspace = arena.most();
  }
  static void need_backward_of_selected(const AttentionBackward& p, AttentionPlan& plan) {
    const AttentionForward& f = p.forward;
    const Limits& limits = plan.device.limits;
    Arena arena(nullptr);
    if constexpr (kMerges<Dk, Dv>)
      if (is_merged(plan.variant)) {
        plan.launches = PartsBackwardPlan<bf16, Dk, Dv>(f, plan.variant, limits, arena).launches(f);
        plan.workspace = arena.most();
        return look_for_room<true>(f, plan);
      }
    if (p.dq.data) need_rows<true>(f, plan, arena);
    arena.release(0);
    if (p.dk.data || p.dv.data) plan.launches += DkvOfListsPlan<Dk, Dv>(f, limits, arena).launches(f);
    plan.workspace = arena.most();
  }

  static BackwardPlan backward(const AttentionBackward& p, const Device& device, bool captured) {
    const Decision whole = choose(p, device);
    if (!captured || !goes_beside(p, whole.variant, device.limits)) return {backward(p, whole, device), std::nullopt};
    const AttentionBackward dq = only_dq(p), dkv = only_dkv(p);
    return {backward(dq, choose(dq, device), device), backward(dkv, choose(dkv, device), device)};
  }
};

}  // namespace

std::string_view to_string(Variant variant) {
  switch (variant) {
    case Variant::mma_sync:
      return "mma.sync";
    case Variant::intervals:
      return "wgmma intervals";
    case Variant::intervals_and_choice:
      return "wgmma intervals with the choice of blocks";
    case Variant::merged_intervals:
      return "merged wgmma intervals";
    case Variant::joint:
      return "joint";
    case Variant::parts:
      return "parts";
    case Variant::joint_or_parts:
      return "joint or parts by chunk";
    case Variant::lists:
      return "lists";
    case Variant::merged_parts:
      return "merged parts";
    case Variant::joint_or_merged_parts:
      return "joint or merged parts by chunk";
  }
  return "?";
}

AttentionPlan plan_forward(const AttentionForward& p, const Device& device) {
  return with_widths(p.Dk, p.Dv, [&]<int Dk, int Dv>() { return Planner<Dk, Dv>::forward(with_blocks(p), device); });
}

AttentionPlan plan_forward_and_select(const AttentionForward& p, const Device& device) {
  const auto refusal = device.hopper ? forward_and_select_hopper_refusal(p) : kNoHopper;
  if (!refusal.empty()) return plan_forward(p, device);
  AttentionPlan plan;
  plan.variant = Variant::intervals_and_choice;
  plan.launches = 1;
  plan.why = "one tile has all compressed keys";
  plan.device = device;
  return plan;
}

BackwardPlan plan_backward(const AttentionBackward& p, const Device& device, bool captured) {
  AttentionBackward x = p;
  x.forward = with_blocks(p.forward);
  return with_widths(p.forward.Dk, p.forward.Dv,
                     [&]<int Dk, int Dv>() { return Planner<Dk, Dv>::backward(x, device, captured); });
}

}  // namespace nsa::kernels
