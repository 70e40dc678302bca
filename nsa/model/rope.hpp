// Rotary position embedding: interleaved pairs (x0,x1), (x2,x3), ...; pair i turns by position / scale / base^(2i/D).
#pragma once

#include "nsa/ops.hpp"

namespace nsa {

// The rotations e^{i*angle} of every token as complex numbers [S, D/2] (complex64, complex128 for fp64 models); angles
// in fp32. Positions count from each document's start.
[[nodiscard]] at::Tensor rope_rotations(std::int64_t S, std::int64_t D, double base, double scale,
                                        const CuSeqlens& cu_seqlens, const at::TensorOptions& model);

// x [B,S,heads,D], every head turned by itself; computed in fp32 at least, result in x's dtype.
[[nodiscard]] at::Tensor rotate(const at::Tensor& x, const at::Tensor& rotations);

}  // namespace nsa
