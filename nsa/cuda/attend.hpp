// Attention of one branch on our kernels; the three branches differ in their Mask.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <mutex>
#include <span>

#include "nsa/cuda/packing.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/attention/params.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

// What both passes need besides the tensors.
struct Problem {
  kernels::Mask mask;
  Geometry geometry;
  Packing packing;
};

struct AttentionOutput {
  at::Tensor o;      // [B,S,Hq,Dv]
  at::Tensor stats;  // [B,Hq,S,2]
};
// One forward pass without autograd. q, k, v aligned (rows.hpp); `blocks` [B,S,G,n] for Mask::selected, else undefined.
[[nodiscard]] AttentionOutput attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& blocks, const Problem& problem);
// The same of the window branch, and with it the gated sum of all: sum.branch[2] is set here.
[[nodiscard]] AttentionOutput attend_window_and_combine(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                        const Problem& problem, kernels::Combine sum);

struct Gradients {
  at::Tensor q, k, v;  // undefined where not wanted
};
// A backward pass without autograd. q, k, v, blocks, stats as of attend_forward; dout aligned, delta [B,Hq,S]. There
// are keys.
[[nodiscard]] kernels::AttentionBackward backward_parameters(const at::Tensor& q, const at::Tensor& k,
                                                             const at::Tensor& v, const at::Tensor& blocks,
                                                             const at::Tensor& stats, const at::Tensor& dout,
                                                             const at::Tensor& delta, const Problem& problem,
                                                             const Gradients& to);
// Backward passes of the same rows, one after the other: each may add to the dQ of the one before. In a CUDA graph
// small ones have dQ's kernels beside those of dK and dV.
void run_backward(std::span<const kernels::AttentionBackward> passes, const at::Tensor& q);

// delta (kernels::AttentionDelta) on its way from combine's backward pass, which has do and o at hand, to the branch's.
// It holds for the very gradient that it was made with: between the two passes other uses of o and hooks may put
// another one in its place or change it, and autograd numbers the changes.
class HandedDelta {
 public:
  void put(const at::Tensor& delta, const at::Tensor& gradient);
  // Undefined unless it holds for this gradient. Nothing stays behind.
  [[nodiscard]] at::Tensor take(const at::Tensor& gradient);

 private:
  struct Contents {
    at::Tensor delta;
    at::Tensor gradient;  // held: nobody else gets its address, and the engine adds in place only to what nobody holds
    std::int64_t version = 0;
    cudaStream_t stream = nullptr;  // on another one, delta's memory could be given away too early
  };
  std::mutex mutex_;  // threads may run backward passes of one graph at the same time
  Contents contents_;
};
// Of the branch behind an edge of the graph. Null where that is none of ours, or where the backward pass that is
// running ends before it, so that nobody would take what is put.
[[nodiscard]] HandedDelta* handed_delta(const torch::autograd::Edge& edge);

}  // namespace nsa::cuda
