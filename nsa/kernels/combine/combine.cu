// Forward: a thread owns eight columns of one output row. Backward: a team of lanes owns one (token, group) and walks
// over the heads of the group; every lane holds eight columns and sums do . o_b over all heads, and the team's sum of
// those is the gate's gradient: a fixed order without shared memory.
#include <algorithm>

#include "nsa/kernels/combine.hpp"
#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/gates.cuh"

namespace nsa::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kMostBatches = 65535;  // of a grid's second dimension
constexpr unsigned kWarp = 0xffffffffU;

template <typename T>
__device__ T narrow(float x);
template <>
__device__ float narrow<float>(float x) {
  return x;
}
template <>
__device__ bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ fp16 narrow<fp16>(float x) {
  return __float2half_rn(x);
}

template <typename T, typename Gate>
__global__ void __launch_bounds__(kThreads) combine_forward_kernel(const Combine p) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  const unsigned chunks = static_cast<unsigned>(p.Dv / kEight), heads = static_cast<unsigned>(p.Hq);
  const int chunk = static_cast<int>(i % chunks), head = static_cast<int>(i / chunks % heads),
            t = static_cast<int>(i / chunks / heads);
  if (t >= p.S) return;
  for (int b = static_cast<int>(blockIdx.y); b < p.B; b += static_cast<int>(gridDim.y)) {
    float gate[kBranches], sum[kEight] = {};
    load_gates<Gate>(gate, p, b, t, head / (p.Hq / p.G));
#pragma unroll
    for (int branch = 0; branch < kBranches; ++branch)
      add_gated<T>(sum, gate[branch], *chunk_of<T>(p.branch[branch], b, t, head, chunk));
    store<T>(chunk_of<T>(p.o, b, t, head, chunk), sum);
  }
}

// A row's sum of weights for weights that are to be `gate` times as large. A row without any keeps its 0, which says
// so; a gate that is not finite gives NaN.
__device__ float gated_sum(float sum, float gate) {
  if (sum == 0.f) return 0.f;
  return fabsf(gate) < INFINITY ? sum / gate : NAN;
}

// Over a team, in every lane.
template <int Lanes>
__device__ float team_sum(float x) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWarp, x, distance);
  return x;
}

// Lanes: the least power of two that is not below Dv/8; lanes without columns add 0.
template <typename T, typename Gate, int Lanes>
__global__ void __launch_bounds__(kThreads) combine_backward_kernel(const CombineBackward p) {
  const Combine& f = p.forward;
  const unsigned team = (blockIdx.x * kThreads + threadIdx.x) / Lanes;
  const int chunk = static_cast<int>(threadIdx.x % Lanes), heads = f.Hq / f.G;
  const int group = static_cast<int>(team % static_cast<unsigned>(f.G)),
            t = static_cast<int>(team / static_cast<unsigned>(f.G));
  // No lane leaves early: all of a warp take part in the sums.
  const bool inside = t < f.S, owns = inside && chunk * kEight < f.Dv;

  for (int b = static_cast<int>(blockIdx.y); b < f.B; b += static_cast<int>(gridDim.y)) {
    float gate[kBranches] = {}, total[kBranches] = {};
    if (inside) load_gates<Gate>(gate, f, b, t, group);
#pragma unroll 2
    for (int j = 0; j < heads; ++j) {
      const int head = group * heads + j;
      const std::int64_t row = (static_cast<std::int64_t>(b) * f.Hq + head) * f.S + t;
      float delta[kBranches] = {};
      float2 stats[kBranches] = {};
      if (owns) {
        // All reads before the first store, over which nvcc cannot move them.
        const uint4 raw = *chunk_of<T>(p.dout, b, t, head, chunk);
        uint4 o[kBranches];
#pragma unroll
        for (int branch = 0; branch < kBranches; ++branch)
          o[branch] = *chunk_of<T>(f.branch[branch], b, t, head, chunk);
#pragma unroll
        for (int branch = 0; branch < kBranches; ++branch)
          if (p.gated_stats[branch] && chunk == 0)
            stats[branch] = reinterpret_cast<const float2*>(p.stats[branch])[row];
        float dout[kEight];
        widen<T>(dout, raw);
#pragma unroll
        for (int branch = 0; branch < kBranches; ++branch) {
          float x[kEight], scaled[kEight];
          widen<T>(x, o[branch]);
#pragma unroll
          for (int c = 0; c < kEight; ++c) total[branch] += dout[c] * x[c];
          if (p.gated_stats[branch]) {
#pragma unroll
            for (int c = 0; c < kEight; ++c) delta[branch] += dout[c] * x[c];
            continue;
          }
#pragma unroll
          for (int c = 0; c < kEight; ++c) scaled[c] = gate[branch] * dout[c];
          const uint4 stored = narrowed<T>(scaled);
          if (p.dbranch[branch].data) store_whole(chunk_of<T>(p.dbranch[branch], b, t, head, chunk), stored);
          widen<T>(scaled, stored);
#pragma unroll
          for (int c = 0; c < kEight; ++c) delta[branch] += scaled[c] * x[c];
        }
      }
#pragma unroll
      for (int branch = 0; branch < kBranches; ++branch) {
        if (!p.delta[branch]) continue;
        const float sum = team_sum<Lanes>(delta[branch]);
        if (!inside || chunk != 0) continue;
        p.delta[branch][row] = sum;
        if (p.gated_stats[branch])
          reinterpret_cast<float2*>(p.gated_stats[branch])[row] = {stats[branch].x,
                                                                   gated_sum(stats[branch].y, gate[branch])};
      }
    }
    if (p.dgates) {
#pragma unroll
      for (int branch = 0; branch < kBranches; ++branch) total[branch] = team_sum<Lanes>(total[branch]);
      if (inside && chunk == 0) {
        Gate* to = static_cast<Gate*>(p.dgates) + gate_place(f, b, t, group);
#pragma unroll
        for (int branch = 0; branch < kBranches; ++branch) to[branch] = narrow<Gate>(total[branch]);
      }
    }
  }
}

// `rows` rows of a batch entry, `lanes` threads each.
dim3 grid_of(const Combine& p, int rows, int lanes) {
  const std::int64_t threads = static_cast<std::int64_t>(p.S) * rows * lanes;
  return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
              static_cast<unsigned>(std::min(p.B, kMostBatches)));
}

template <typename T, typename Gate>
void forward_as(const Combine& p, cudaStream_t stream) {
  launch(false, combine_forward_kernel<T, Gate>, grid_of(p, p.Hq, p.Dv / kEight), kThreads, 0, stream, p);
}

template <typename T, typename Gate>
void backward_as(const CombineBackward& p, cudaStream_t stream) {
  const int chunks = p.forward.Dv / kEight;
  const auto with_lanes = [&](auto kernel, int lanes) {
    launch(false, kernel, grid_of(p.forward, p.forward.G, lanes), kThreads, 0, stream, p);
  };
  if (chunks <= 4)
    with_lanes(combine_backward_kernel<T, Gate, 4>, 4);
  else if (chunks <= 8)
    with_lanes(combine_backward_kernel<T, Gate, 8>, 8);
  else if (chunks <= 16)
    with_lanes(combine_backward_kernel<T, Gate, 16>, 16);
  else
    with_lanes(combine_backward_kernel<T, Gate, 32>, 32);
}

}  // namespace

void combine_forward(const Combine& p, cudaStream_t stream) {
  if (p.B == 0 || p.S == 0) return;
  if (p.storage == Storage::bf16)
    p.gates_fp32 ? forward_as<bf16, float>(p, stream) : forward_as<bf16, bf16>(p, stream);
  else
    p.gates_fp32 ? forward_as<fp16, float>(p, stream) : forward_as<fp16, fp16>(p, stream);
  check_launch("combine_forward");
}

void combine_backward(const CombineBackward& p, cudaStream_t stream) {
  if (p.forward.B == 0 || p.forward.S == 0) return;
  const bool gates_fp32 = p.forward.gates_fp32;
  if (p.forward.storage == Storage::bf16)
    gates_fp32 ? backward_as<bf16, float>(p, stream) : backward_as<bf16, bf16>(p, stream);
  else
    gates_fp32 ? backward_as<fp16, float>(p, stream) : backward_as<fp16, fp16>(p, stream);
  check_launch("combine_backward");
}

}  // namespace nsa::kernels
