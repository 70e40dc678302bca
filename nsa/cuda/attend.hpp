// Attention of one branch on our kernels; the three branches differ in their Mask.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string_view>

#include "nsa/cuda/packing.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/plan/device.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

// What both passes need besides the tensors: made once a call and kept for backward. The plans
// (kernels/plan/attention_plan.hpp) are made for `device`, one forward and one when the backward pass runs
// (run_backward), and `on_launch` is told their variants, and of which pass. `in_one_graph`: the launches of all
// branches may go as one CUDA graph (together.hpp).
struct Problem {
  kernels::Mask mask;
  Geometry geometry;
  Packing packing;
  kernels::Device device;
  std::function<void(bool backward, std::string_view kernel)> on_launch = {};
  bool in_one_graph = true;
};

// For tensors like q, on the device that is current.
[[nodiscard]] Problem problem_of(kernels::Mask mask, const at::Tensor& q, const Geometry& g,
                                 const CuSeqlens& cu_seqlens);

struct AttentionOutput {
  at::Tensor o;      // [B,S,Hq,Dv]
  at::Tensor stats;  // [B,Hq,S,2]
};
// One forward pass without autograd. q, k, v aligned (rows.hpp); `blocks` [B,S,G,n] for Mask::selected, else undefined.
// `into`: memory for the results; undefined: fresh.
[[nodiscard]] AttentionOutput attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& blocks, const Problem& problem,
                                             const AttentionOutput& into = {});
// The compressed branch, and with it the choice of blocks where one kernel does both; else `blocks` is undefined, and
// select_for (select.hpp) makes them.
struct AttendedAndChosen {
  AttentionOutput branch;
  at::Tensor blocks;  // [B,S,G,n]
};
[[nodiscard]] AttendedAndChosen attend_forward_and_select(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                          const Problem& problem, const AttentionOutput& into = {},
                                                          const at::Tensor& blocks_into = {});
// The same of the window branch, and with it the gated sum of all: sum.branch[2] is set here.
[[nodiscard]] AttentionOutput attend_window_and_combine(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                        const Problem& problem, kernels::Combine sum,
                                                        const AttentionOutput& into = {});

struct Gradients {
  at::Tensor q, k, v;  // undefined where not wanted
};
// What attend_forward was given and gave.
struct AttentionKept {
  at::Tensor q, k, v, blocks, o, stats;
};
// The whole backward pass of one branch without autograd; dout aligned. Wanted: of q, k, v.
[[nodiscard]] Gradients attend_backward(const AttentionKept& kept, const at::Tensor& dout, const Problem& problem,
                                        const std::array<bool, 3>& wanted);
// Its last part. q, k, v, blocks, stats as of attend_forward; dout aligned, delta [B,Hq,S]. There are keys.
struct Pass {
  Problem problem;
  kernels::AttentionBackward parameters;
};
[[nodiscard]] Pass backward_pass(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& blocks, const at::Tensor& stats, const at::Tensor& dout,
                                 const at::Tensor& delta, Problem problem, const Gradients& to);
// Backward passes of the same rows, one after the other: each may add to the dQ of the one before. Each is planned
// here, once: not before is known which gradients are wanted, how dO lies, and whether the call is captured.
//
// Note [Keys beside rows]
// No launch of a short problem fills the GPU to its end: the last CTAs of dK and dV leave a sixth of it idle, sums of
// pieces and query lists nearly all. But dQ's chain of launches and each pass's dK and dV know nothing of each other.
// So in a CUDA graph each pass's keys have a stream of their own (kernels::BackwardPlan). All streams have one
// priority, and of dQ's launches the selected branch's comes first (attend_all.cpp): jointly a CTA of it fills an SM
// for as long as any, and what it leaves at its end others fill, which nothing would behind it. Query lists hang on the
// blocks alone: they are made beside make_rows, which launches what makes dO's sums and the statistics that the passes
// read.
void run_backward(std::span<const Pass> passes, const at::Tensor& q, const std::function<void()>& make_rows);

}  // namespace nsa::cuda
