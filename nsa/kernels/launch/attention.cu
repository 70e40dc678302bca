#include <stdexcept>
#include <string>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/mma.cuh"
#include "nsa/kernels/interval/sm90.hpp"
#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/launch/width.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"

namespace nsa::kernels {

namespace {

// 8 threads a row, 16 bytes each and turn.
template <typename T>
__global__ void __launch_bounds__(256) delta_kernel(const AttentionDelta p) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x) / 8;  // (b, t, head)
  const std::int64_t rows = static_cast<std::int64_t>(p.B) * p.S * p.Hq;
  const bool exists = row < rows;
  const int head = static_cast<int>((exists ? row : 0) % p.Hq), lane = threadIdx.x % 8;
  const std::int64_t token = (exists ? row : 0) / p.Hq, b = token / p.S, t = token % p.S;
  const T* o = static_cast<const T*>(p.o.data) + b * p.o.batch + t * p.o.token + head * p.o.head;
  const T* g = static_cast<const T*>(p.dout.data) + b * p.dout.batch + t * p.dout.token + head * p.dout.head;
  float sum = 0;
  for (int column = lane * 8; exists && column < p.Dv; column += 64) {
    const uint4 x = *reinterpret_cast<const uint4*>(o + column), y = *reinterpret_cast<const uint4*>(g + column);
    const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = unpack<T>(xs[i]), c = unpack<T>(ys[i]);
      sum = fmaf(a.x, c.x, fmaf(a.y, c.y, sum));
    }
  }
  for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (exists && lane == 0) p.delta[(b * p.Hq + head) * p.S + t] = sum;
}

}  // namespace

void attention_forward(const AttentionForward& p, const AttentionPlan& plan, cudaStream_t stream) {
  if (plan.variant == Variant::intervals) return attention_forward_hopper(p, plan.device.sm_count, stream);
  with_widths(p.Dk, p.Dv, [&]<int Dk, int Dv>() { forward_of_width<Dk, Dv>(with_blocks(p), plan, stream); });
}

void forward_and_select(const AttentionForward& p, int* blocks, const AttentionPlan& plan, cudaStream_t stream) {
  if (plan.variant != Variant::intervals_and_choice)
    throw std::invalid_argument("forward_and_select: the plan is " + std::string(to_string(plan.variant)));
  forward_and_select_hopper(p, blocks, stream);
}

void window_and_combine(const AttentionForward& p, const AttentionPlan& plan, const Combine& sum, cudaStream_t stream) {
  if (plan.variant == Variant::intervals) return window_and_combine_hopper(p, plan.device.sm_count, sum, stream);
  attention_forward(p, plan, stream);
  combine_forward(sum, stream);
}

void attention_delta(const AttentionDelta& p, cudaStream_t stream) {
  const std::int64_t rows = static_cast<std::int64_t>(p.B) * p.S * p.Hq;
  const auto ctas = static_cast<unsigned>((rows + 31) / 32);
  if (p.storage == Storage::bf16)
    launch(false, delta_kernel<bf16>, ctas, 256, 0, stream, p);
  else
    launch(false, delta_kernel<fp16>, ctas, 256, 0, stream, p);
  check_launch("attention_delta");
}

void attention_backward(const AttentionBackward& p, const AttentionPlan& plan, cudaStream_t stream) {
  if (plan.variant == Variant::merged_intervals) {
    wait_for(stream, p.rows_ready);
    return attention_backward_hopper(p, plan.device, stream);
  }
  AttentionBackward x = p;
  x.forward = with_blocks(p.forward);
  with_widths(x.forward.Dk, x.forward.Dv, [&]<int Dk, int Dv>() { backward_of_width<Dk, Dv>(x, plan, stream); });
}

}  // namespace nsa::kernels
