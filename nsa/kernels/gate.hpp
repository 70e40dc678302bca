// The gate's network (Eq 5) from the group's mean query: fc1, SiLU, fc2, over tau, softmax or sigmoid; and its backward
// pass. All arithmetic is fp32. Every sum has an order that the sizes alone decide.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct Gate {
  const float* mean = nullptr;  // [rows,Dk] contiguous; a row is a (token, group)
  // Contiguous, of `storage`; w1 begins at a multiple of 16 bytes.
  const void *w1 = nullptr, *b1 = nullptr;  // [Dk/2,Dk], [Dk/2]
  const void *w2 = nullptr, *b2 = nullptr;  // [3,Dk/2], [3]
  float* gates = nullptr;                   // [rows,3] contiguous: written; read by the backward pass
  std::int64_t rows = 0;
  int Dk = 0;  // 32, 64, 128 or 192
  float tau = 1;
  bool softmax = true;  // else sigmoid
  Storage storage = Storage::bf16;
};
void gate_forward(const Gate& p, cudaStream_t stream);

struct GateBackward {
  Gate forward;
  const float* dgates = nullptr;  // [rows,3] contiguous
  float* dmean = nullptr;         // [rows,Dk] contiguous, written; null: not wanted
  // Of `storage`, contiguous, written, all four or none: a null `partials` says that none is wanted.
  void *dw1 = nullptr, *db1 = nullptr, *dw2 = nullptr, *db2 = nullptr;
  float* partials = nullptr;  // gate_partials_bytes of workspace, at a multiple of 16 bytes
};
[[nodiscard]] std::int64_t gate_partials_bytes(std::int64_t rows, int Dk);
// Two launches: the rows, and the sum of what their CTAs leave of the weights' gradients; without partials one.
void gate_backward(const GateBackward& p, cudaStream_t stream);

// Shared memory of a CTA of either pass, which not every GPU of a generation has.
[[nodiscard]] int gate_shared_bytes(int Dk);

}  // namespace nsa::kernels
