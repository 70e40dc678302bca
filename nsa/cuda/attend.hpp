// Attention of one branch on our kernels; the three branches differ in their Mask.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <mutex>

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
