// The residual addition and the RMSNorm that follows it, in one pass over memory each way:
//   sum = x + delta, as it is stored;   y = sum * rstd * weight,   rstd = 1 / sqrt(mean(sum^2) + epsilon) of the row.
// Backward, the gradient that arrives at the sum by the residual's way goes into the same addition, rounded once.
//
// Rows are dense, of a width that is a multiple of 8 up to kWidestNorm; data begins at multiples of 16 bytes.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct NormBackwardPlan;  // plan/norm_plan.hpp

inline constexpr int kWidestNorm = 8192;  // a row is in the registers of 256 threads at most

struct Norm {
  const void* x = nullptr;       // [rows, width]
  const void* delta = nullptr;   // [rows, width]; null: the sum is x
  const void* weight = nullptr;  // [width]
  void* sum = nullptr;           // [rows, width], written; null without delta
  void* y = nullptr;             // [rows, width], written
  float* rstd = nullptr;         // [rows], written; null: not wanted
  std::int64_t rows = 0;
  int width = 0;
  float epsilon = 1e-6F;
  Storage storage = Storage::bf16;  // of all but rstd
};
void norm_forward(const Norm& p, cudaStream_t stream);

struct NormBackward {
  const void* dy = nullptr;      // [rows, width]
  const void* dsum = nullptr;    // [rows, width], what arrives at the sum besides; null: nothing does
  const void* sum = nullptr;     // [rows, width]
  const void* weight = nullptr;  // [width]
  const float* rstd = nullptr;   // [rows]
  void* dx = nullptr;            // [rows, width], written: of x, and of delta as well; null: not wanted
  void* dweight = nullptr;       // [width], written; null: not wanted
  float* workspace = nullptr;    // NormBackwardPlan::workspace floats; null without dweight
  std::int64_t rows = 0;
  int width = 0;
  Storage storage = Storage::bf16;  // of all but rstd
};
// The weight's gradient is the sum of one part a CTA, in the order of the CTAs: the same bits in every run on a device.
// The plan is plan_norm_backward's of these rows, this width and the current device.
void norm_backward(const NormBackward& p, const NormBackwardPlan& plan, cudaStream_t stream);

}  // namespace nsa::kernels
