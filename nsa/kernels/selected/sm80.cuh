// The selected branch, one query token at a time: forward pass and dQ.
//
// All heads of the group share the token's blocks and are the 16 rows of the matrix product (a group of fewer leaves
// rows empty). The CTA's warps deal the visible tokens out among themselves, 16 at a time; each warp runs through
// its share on its own, with its own ring of stages and its own softmax, and the shares are put together at the end
// in a fixed order. Nothing synchronises the warps in between. K and V come from L2 once a token: this is what
// bounds the kernel.
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/selected/choice.cuh"

namespace nsa::kernels {

template <int Dk, int Dv>
struct SelectedShape {
  static constexpr int kWarps = 4, kThreads = 128, kHeads = 16, kKeys = 16, kStages = Dk + Dv > 128 ? 3 : 4;
  static constexpr int kKBytes = kKeys * Dk * 2, kVBytes = kKeys * Dv * 2, kStageBytes = kKBytes + kVBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;
  // Afterwards the ring holds the warps' shares, [4][16][D] fp32.
  __host__ __device__ static constexpr int shared_bytes(int D, int inputs, int visible) {
    const int shares = kWarps * kHeads * D * 4;
    return (kRingBytes > shares ? kRingBytes : shares) + inputs + visible * 4;
  }
};

// What a warp walks: 16 visible tokens at a time, K and V in a ring that it fills itself.
template <typename T, int Dk, int Dv>
struct KeyWalk {
  using Shape = SelectedShape<Dk, Dv>;
  std::uint32_t ring;  // of this warp
  const int* tokens;   // the visible ones, in shared memory
  int visible, warp;
  const T *k, *v;
  std::int64_t k_stride, v_stride;

  __device__ int steps() const {  // of this warp
    const int groups = (visible + Shape::kKeys - 1) / Shape::kKeys;
    return (groups - warp + Shape::kWarps - 1) / Shape::kWarps;
  }
  __device__ int first(int step) const { return (step * Shape::kWarps + warp) * Shape::kKeys; }  // place in `tokens`
  __device__ std::uint32_t k_tile(int step) const { return ring + step % Shape::kStages * Shape::kStageBytes; }
  __device__ std::uint32_t v_tile(int step) const { return k_tile(step) + Shape::kKBytes; }

  __device__ void load(int step) const {
    if (step < steps()) {
      copy<Dk>(k_tile(step), first(step), k, k_stride);
      copy<Dv>(v_tile(step), first(step), v, v_stride);
    }
    cp_async_commit();
  }

 private:
  template <int D>
  __device__ void copy(std::uint32_t tile, int at, const T* data, std::int64_t stride) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Shape::kKeys * Tile<D>::kChunks / 32; ++i) {
      const int place = lane + 32 * i, row = place / Tile<D>::kChunks, chunk = place % Tile<D>::kChunks;
      const bool exists = at + row < visible;
      const T* from = data + (exists ? tokens[at + row] : 0) * stride + chunk * 8;
      cp_async(Tile<D>::at(tile, row, chunk), from, exists);
    }
  }
};

// [16 heads][D] of one token into shared memory, rows beyond the group zero.
template <typename T, int D, int Threads>
__device__ inline void load_heads(std::uint32_t tile, const Rows& x, int b, int t, int group, int h) {
  const T* first =
      static_cast<const T*>(x.data) + b * x.batch + t * x.token + static_cast<std::int64_t>(group) * h * x.head;
  Tile<D>::template load<16, Threads>(tile, x.data,
                                      [&](int head) -> const T* { return head < h ? first + head * x.head : nullptr; });
}

// The warps' shares [4][16][D] fp32, summed in the warps' order and stored as the token's rows.
template <typename T, int D, int Warps>
__device__ inline void store_sum(const float* shares, const Rows& x, bool adds, int b, int t, int group, int h) {
  T* first = static_cast<T*>(x.data) + b * x.batch + t * x.token + static_cast<std::int64_t>(group) * h * x.head;
  for (int place = threadIdx.x; place < h * (D / 8); place += Warps * 32) {
    const int head = place / (D / 8), column = place % (D / 8) * 8;
    float sum[8] = {};
#pragma unroll
    for (int warp = 0; warp < Warps; ++warp)
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += shares[(warp * 16 + head) * D + column + i];
    auto* const to = reinterpret_cast<uint4*>(first + head * x.head + column);
    const uint4 own = narrowed<T>(sum);
    *to = adds ? added<T>(own, *to) : own;
  }
}
template <int D>
__device__ inline void store_share(float* shares, const float (&c)[D / 8][4], int warp, const float (&factor)[2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < D / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float2*>(shares + (warp * 16 + lane / 4 + 8 * half) * D + n * 8 + lane % 4 * 2) =
          make_float2(c[n][2 * half] * factor[half], c[n][2 * half + 1] * factor[half]);
}

template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128) selected_forward_kernel(const AttentionForward p) {
  if constexpr (kLeftToHopper<Dk>) return __trap();
  using Shape = SelectedShape<Dk, Dv>;
  constexpr int kWarps = Shape::kWarps, kStages = Shape::kStages;
  extern __shared__ __align__(128) char shared[];
  __shared__ float maxima[kWarps][16], sums[kWarps][16];
  const int t = blockIdx.x, b = blockIdx.y / p.G, group = blockIdx.y % p.G, h = p.Hq / p.G;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t base = shared_address(shared);
  constexpr int kRing = Shape::shared_bytes(Dv, 0, 0), kQBytes = 16 * Dk * 2;
  const std::uint32_t q_tile = base + kRing;
  int* tokens = reinterpret_cast<int*>(shared + kRing + kQBytes);

  load_heads<T, Dk, Shape::kThreads>(q_tile, p.q, b, t, group, h);
  cp_async_commit();
  const int* row = p.blocks + ((static_cast<std::int64_t>(b) * p.S + t) * p.G + group) * p.geometry.n;
  const int first_token = p.packed.first_token ? p.packed.first_token[t] : 0;
  const int visible = visible_tokens<Shape::kThreads>(tokens, row, p.geometry.n, p.geometry.l_sel, t, first_token);

  const KeyWalk<T, Dk, Dv> walk{base + warp * kStages * Shape::kStageBytes,
                                tokens,
                                visible,
                                warp,
                                static_cast<const T*>(p.k.data) + b * p.k.batch + group * p.k.head,
                                static_cast<const T*>(p.v.data) + b * p.v.batch + group * p.v.head,
                                p.k.token,
                                p.v.token};
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) walk.load(step);
  cp_async_wait<kStages - 1>();
  __syncthreads();  // Q
  std::uint32_t q[Dk / 16][4];
#pragma unroll
  for (int kk = 0; kk < Dk / 16; ++kk) Tile<Dk>::a(q[kk], q_tile, 0, kk);

  const float factor = p.scale * kLog2E;
  RunningSoftmax softmax;
  float o[Dv / 8][4] = {};
  const int steps = walk.steps();
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncwarp();
    walk.load(step + kStages - 1);
    float s[2][4] = {};
#pragma unroll
    for (int kk = 0; kk < Dk / 16; ++kk) {
      std::uint32_t keys[4];
      Tile<Dk>::b(keys, walk.k_tile(step), 0, kk);
      mma<T>(s[0], q[kk], keys[0], keys[1]);
      mma<T>(s[1], q[kk], keys[2], keys[3]);
    }
    if (walk.first(step) + Shape::kKeys > visible) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (walk.first(step) + n * 8 + lane % 4 * 2 + i % 2 >= visible) s[n][i] = -INFINITY;
    }
    float rescale[2];
    softmax.update(s, factor, rescale);
#pragma unroll
    for (int n = 0; n < Dv / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] *= rescale[i / 2];
    std::uint32_t weights[4], values[4];
    as_a<T>(weights, s, 0);
#pragma unroll
    for (int n = 0; n < Dv / 16; ++n) {
      Tile<Dv>::b_transposed(values, walk.v_tile(step), 0, n);
      mma<T>(o[2 * n], weights, values[0], values[1]);
      mma<T>(o[2 * n + 1], weights, values[2], values[3]);
    }
    __syncwarp();
  }
  cp_async_wait<0>();

  // The warps' shares, brought to one common maximum.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(softmax.sum[half]);
    if (lane % 4 == 0) {
      maxima[warp][lane / 4 + 8 * half] = softmax.maximum[half];
      sums[warp][lane / 4 + 8 * half] = sum;
    }
  }
  __syncthreads();
  float rescale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    float highest = -INFINITY, sum = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) highest = fmaxf(highest, maxima[other][head]);
    const float origin = origin_of(highest);
#pragma unroll
    for (int other = 0; other < kWarps; ++other)
      sum += sums[other][head] * exp2_fast((maxima[other][head] - origin) * factor);
    const float total = total_of(sum, visible > 0);
    rescale[half] = exp2_fast((softmax.maximum[half] - origin) * factor) * normaliser(total);
    if (warp == 0 && lane % 4 == 0 && head < h) {
      const std::int64_t at = (static_cast<std::int64_t>(b) * p.Hq + group * h + head) * p.S + t;
      reinterpret_cast<float2*>(p.stats)[at] = stored_statistics(highest, total, factor);
    }
  }
  float* shares = reinterpret_cast<float*>(shared);
  store_share<Dv>(shares, o, warp, rescale);
  __syncthreads();
  store_sum<T, Dv, kWarps>(shares, p.o, false, b, t, group, h);
}

template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128) selected_dq_kernel(const AttentionBackward p) {
  if constexpr (kLeftToHopper<Dk>) return __trap();
  using Shape = SelectedShape<Dk, Dv>;
  constexpr int kWarps = Shape::kWarps, kStages = Shape::kStages;
  extern __shared__ __align__(128) char shared[];
  const AttentionForward& f = p.forward;
  const int t = blockIdx.x, b = blockIdx.y / f.G, group = blockIdx.y % f.G, h = f.Hq / f.G;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t base = shared_address(shared);
  constexpr int kRing = Shape::shared_bytes(Dk, 0, 0), kQBytes = 16 * Dk * 2, kOBytes = 16 * Dv * 2;
  const std::uint32_t q_tile = base + kRing, o_tile = q_tile + kQBytes;
  int* tokens = reinterpret_cast<int*>(shared + kRing + kQBytes + kOBytes);

  load_heads<T, Dk, Shape::kThreads>(q_tile, f.q, b, t, group, h);
  load_heads<T, Dv, Shape::kThreads>(o_tile, p.dout, b, t, group, h);
  cp_async_commit();
  const int* row = f.blocks + ((static_cast<std::int64_t>(b) * f.S + t) * f.G + group) * f.geometry.n;
  const int first_token = f.packed.first_token ? f.packed.first_token[t] : 0;
  const int visible = visible_tokens<Shape::kThreads>(tokens, row, f.geometry.n, f.geometry.l_sel, t, first_token);

  const KeyWalk<T, Dk, Dv> walk{base + warp * kStages * Shape::kStageBytes,
                                tokens,
                                visible,
                                warp,
                                static_cast<const T*>(f.k.data) + b * f.k.batch + group * f.k.head,
                                static_cast<const T*>(f.v.data) + b * f.v.batch + group * f.v.head,
                                f.k.token,
                                f.v.token};
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) walk.load(step);

  float origin[2], inverse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    const std::int64_t at = (static_cast<std::int64_t>(b) * f.Hq + group * h + head) * f.S + t;
    const float2 stats = head < h ? reinterpret_cast<const float2*>(f.stats)[at] : make_float2(0.f, 0.f);
    origin[half] = stats.y == 0.f ? 0.f : stats.x;
    inverse[half] = normaliser(stats.y);
    delta[half] = head < h ? p.delta[at] : 0.f;
  }
  cp_async_wait<kStages - 1>();
  __syncthreads();  // Q, dO
  std::uint32_t q[Dk / 16][4], dout[Dv / 16][4];
#pragma unroll
  for (int kk = 0; kk < Dk / 16; ++kk) Tile<Dk>::a(q[kk], q_tile, 0, kk);
#pragma unroll
  for (int kk = 0; kk < Dv / 16; ++kk) Tile<Dv>::a(dout[kk], o_tile, 0, kk);

  const float factor = f.scale * kLog2E;
  float dq[Dk / 8][4] = {};
  const int steps = walk.steps();
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncwarp();
    walk.load(step + kStages - 1);
    float s[2][4] = {}, dp[2][4] = {};
    std::uint32_t b_fragment[4];
#pragma unroll
    for (int kk = 0; kk < Dk / 16; ++kk) {
      Tile<Dk>::b(b_fragment, walk.k_tile(step), 0, kk);
      mma<T>(s[0], q[kk], b_fragment[0], b_fragment[1]);
      mma<T>(s[1], q[kk], b_fragment[2], b_fragment[3]);
    }
#pragma unroll
    for (int kk = 0; kk < Dv / 16; ++kk) {
      Tile<Dv>::b(b_fragment, walk.v_tile(step), 0, kk);
      mma<T>(dp[0], dout[kk], b_fragment[0], b_fragment[1]);
      mma<T>(dp[1], dout[kk], b_fragment[2], b_fragment[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float weight = exp2_fast(fmaf(s[n][i], factor, -origin[i / 2])) * inverse[i / 2];
        const bool seen = walk.first(step) + n * 8 + lane % 4 * 2 + i % 2 < visible;
        s[n][i] = seen ? weight * (dp[n][i] - delta[i / 2]) : 0.f;
      }
    std::uint32_t ds[4];
    as_a<T>(ds, s, 0);
#pragma unroll
    for (int n = 0; n < Dk / 16; ++n) {
      Tile<Dk>::b_transposed(b_fragment, walk.k_tile(step), 0, n);
      mma<T>(dq[2 * n], ds, b_fragment[0], b_fragment[1]);
      mma<T>(dq[2 * n + 1], ds, b_fragment[2], b_fragment[3]);
    }
    __syncwarp();
  }
  cp_async_wait<0>();
  __syncthreads();
  float* shares = reinterpret_cast<float*>(shared);
  const float scale[2] = {f.scale, f.scale};
  store_share<Dk>(shares, dq, warp, scale);
  __syncthreads();
  store_sum<T, Dk, kWarps>(shares, p.dq, p.adds_dq, b, t, group, h);
}

}  // namespace nsa::kernels
