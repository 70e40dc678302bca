#include <stdexcept>
#include <string>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/mma.cuh"
#include "nsa/kernels/interval/sm90.hpp"
#include "nsa/kernels/launch/width.hpp"

namespace nsa::kernels {

namespace {

// action(width of q and k, width of v) with both as constants.
template <typename Action>
auto with_widths(int Dk, int Dv, Action&& action) {
  if (Dk == 32 && Dv == 32) return action.template operator()<32, 32>();
  if (Dk == 64 && Dv == 64) return action.template operator()<64, 64>();
  if (Dk == 128 && Dv == 128) return action.template operator()<128, 128>();
  if (Dk == 192 && Dv == 128) return action.template operator()<192, 128>();
  throw std::invalid_argument("attention: head widths " + std::to_string(Dk) + " and " + std::to_string(Dv) +
                              "; allowed: 32/32, 64/64, 128/128, 192/128");
}

// One document: its blocks are counted here.
AttentionForward with_blocks(AttentionForward p) {
  if (p.selection.J == 0) p.selection.J = (p.S + p.geometry.l_sel - 1) / p.geometry.l_sel;
  return p;
}

// Over intervals, in one kernel.
bool on_hopper(const AttentionBackward& p, const Device& device) {
  return p.forward.hopper && device.hopper && attention_backward_hopper_supports(p, device.limits);
}

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

std::int64_t attention_forward_workspace(const AttentionForward& p, const Device& device) {
  const AttentionForward f = with_blocks(p);
  return with_widths(f.Dk, f.Dv, [&]<int Dk, int Dv>() { return forward_workspace_of_width<Dk, Dv>(f, device); });
}

void attention_forward(const AttentionForward& p, const Device& device, cudaStream_t stream) {
  if (p.hopper && device.hopper && attention_forward_hopper_supports(p))
    return attention_forward_hopper(p, device, stream);
  const AttentionForward f = with_blocks(p);
  with_widths(f.Dk, f.Dv, [&]<int Dk, int Dv>() { forward_of_width<Dk, Dv>(f, device, stream); });
}

void window_and_combine(const AttentionForward& p, const Device& device, const Combine& sum, cudaStream_t stream) {
  if (p.hopper && device.hopper && window_and_combine_hopper_supports(p))
    return window_and_combine_hopper(p, device, sum, stream);
  attention_forward(p, device, stream);
  combine_forward(sum, stream);
}

void attention_delta(const AttentionDelta& p, cudaStream_t stream) {
  const std::int64_t rows = static_cast<std::int64_t>(p.B) * p.S * p.Hq;
  const auto ctas = static_cast<unsigned>((rows + 31) / 32);
  if (p.storage == Storage::bf16)
    delta_kernel<bf16><<<ctas, 256, 0, stream>>>(p);
  else
    delta_kernel<fp16><<<ctas, 256, 0, stream>>>(p);
  check_launch("attention_delta");
}

std::int64_t attention_backward_workspace(const AttentionBackward& p, const Device& device) {
  if (on_hopper(p, device)) return attention_backward_hopper_workspace(p, device.limits);
  AttentionBackward x = p;
  x.forward = with_blocks(p.forward);
  return with_widths(x.forward.Dk, x.forward.Dv,
                     [&]<int Dk, int Dv>() { return backward_workspace_of_width<Dk, Dv>(x, device); });
}

void attention_backward(const AttentionBackward& p, const Device& device, cudaStream_t stream) {
  if (on_hopper(p, device)) return attention_backward_hopper(p, device, stream);
  AttentionBackward x = p;
  x.forward = with_blocks(p.forward);
  with_widths(x.forward.Dk, x.forward.Dv, [&]<int Dk, int Dv>() { backward_of_width<Dk, Dv>(x, device, stream); });
}

}  // namespace nsa::kernels
