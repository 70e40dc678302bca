// Which kernels a call of attention runs, why, and what they need: decided before anything is launched, by the problem
// and the device alone; README.md says what a launch computes again. Of pointers it is looked at whether they are null.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

// README.md says what each is, and when it is the faster one. All but mma_sync are Hopper's.
enum class Variant {
  mma_sync,              // every branch
  intervals,             // compressed and window; backward dQ by one kernel, dK and dV by another
  intervals_and_choice,  // compressed, forward: with the choice of blocks in one kernel
  merged_intervals,      // their backward pass in one kernel
  // The selected branch; backward this is how dQ is computed, and dK and dV follow by lists.
  joint,
  parts,
  joint_or_parts,  // the device decides, chunk by chunk (selected/ways.hpp)
  lists,           // dK and dV alone
  // Its backward pass with dQ's parts, dK and dV in one kernel; in the second one the device decides about dQ.
  merged_parts,
  joint_or_merged_parts,
};
[[nodiscard]] std::string_view to_string(Variant variant);  // "mma.sync", "joint or parts by chunk"

[[nodiscard]] inline bool is_merged(Variant x) {
  return x == Variant::merged_parts || x == Variant::joint_or_merged_parts;
}
[[nodiscard]] inline bool is_by_chunk(Variant x) {
  return x == Variant::joint_or_parts || x == Variant::joint_or_merged_parts;
}

// Nothing is allocated for one.
struct AttentionPlan {
  Variant variant = Variant::mma_sync;
  bool rows_ahead = false;     // what goes jointly has room for Q and dO of the next tile of rows (joint_tiles.cuh)
  std::int64_t workspace = 0;  // bytes
  std::int64_t launches = 0;   // of kernels, at most
  std::string_view why;        // of static storage
  Device device;               // for which it was made
};
// All three throw std::invalid_argument for head widths that no kernel has.
[[nodiscard]] AttentionPlan plan_forward(const AttentionForward& p, const Device& device);
// Of the compressed branch where the choice of blocks follows: intervals_and_choice, or plan_forward's own. The
// latter's choice then has a plan of its own (select_plan.hpp).
[[nodiscard]] AttentionPlan plan_forward_and_select(const AttentionForward& p, const Device& device);

// A backward pass is one call of attention_backward, or two: only_dq, and beside it on another stream only_dkv. Each
// has its plan and a workspace of its own.
struct BackwardPlan {
  AttentionPlan main;                 // of all that is wanted; where there are `keys`, of only_dq
  std::optional<AttentionPlan> keys;  // of only_dkv
};
[[nodiscard]] inline AttentionBackward only_dq(AttentionBackward p) {
  p.dk = p.dv = {};
  return p;
}
[[nodiscard]] inline AttentionBackward only_dkv(AttentionBackward p) {
  p.dq = {};
  return p;
}
// `captured`: the call becomes a part of a CUDA graph, so that a second stream costs nothing. Then it is two where a
// launch's last CTAs leave much of the GPU idle and no kernel would have made dQ, dK and dV together.
[[nodiscard]] BackwardPlan plan_backward(const AttentionBackward& p, const Device& device, bool captured = false);

}  // namespace nsa::kernels
