// A thread owns eight columns of a (token, group): of every head of the group and of the group's keys, which turn by
// the same four angles; backward also of its values. The mean is the thread's own sum over the heads, in their order.
//
//   row of a token   | q: head 0 .. Hq-1 | k_cmp: group 0 .. G-1 | k_sel | k_win | v_cmp | v_sel | v_win |
//   thread (g, c)      ^ its h heads       ^ g                     ^ g     ^ g     (backward: ^ g  ^ g  ^ g)
#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/rotate.hpp"

namespace nsa::kernels {

namespace {

constexpr int kRotateThreads = 256;
constexpr int kHeadsAtOnce = 4;  // asked for before the first of them is used

// Where a thread works.
struct Place {
  std::int64_t token;  // of all batch entries
  int b, t, group, chunk;
};
__device__ Place place_of(const Rotate& p, int chunks) {
  const unsigned i = blockIdx.x * kRotateThreads + threadIdx.x;
  const auto groups = static_cast<unsigned>(p.G), width = static_cast<unsigned>(chunks);
  const auto token = static_cast<int>(i / width / groups);
  return {token, token / p.S, token % p.S, static_cast<int>(i / width % groups), static_cast<int>(i % width)};
}

// Eight floats, as two accesses.
__device__ void load_eight(float (&x)[kEight], const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Four pairs by the angles of `turn` (cosine, sine of each), or back.
template <bool Back>
__device__ void turned(float (&x)[kEight], const float (&turn)[kEight]) {
#pragma unroll
  for (int i = 0; i < kEight; i += 2) {
    const float cosine = turn[i], sine = Back ? -turn[i + 1] : turn[i + 1], a = x[i], b = x[i + 1];
    x[i] = a * cosine - b * sine;
    x[i + 1] = a * sine + b * cosine;
  }
}

// The thread's eight columns of a row of the product.
template <typename T>
struct Columns {
  T* row;  // already at the chunk
  int Hq, G, Dk, Dv, group;
  __device__ uint4* q(int head) const { return at(static_cast<std::int64_t>(head) * Dk); }
  __device__ uint4* k(int kind) const { return at((Hq + static_cast<std::int64_t>(kind) * G + group) * Dk); }
  __device__ uint4* v(int kind) const {
    return at((Hq + static_cast<std::int64_t>(kKinds) * G) * Dk + (static_cast<std::int64_t>(kind) * G + group) * Dv);
  }
  __device__ uint4* at(std::int64_t column) const { return reinterpret_cast<uint4*>(row + column); }
};
template <typename T>
__device__ Columns<T> columns_of(const Rotate& p, const Place& at) {
  return {static_cast<T*>(p.rows) + at.token * p.width + at.chunk * kEight, p.Hq, p.G, p.Dk, p.Dv, at.group};
}

template <typename T>
__global__ void __launch_bounds__(kRotateThreads) rotate_forward_kernel(const Rotate p) {
  const Place at = place_of(p, p.Dk / kEight);
  if (at.b >= p.B) return;
  const Columns<T> own = columns_of<T>(p, at);
  const int heads = p.Hq / p.G, first = at.group * heads;
  float turn[kEight], mean[kEight] = {};
  uint4 keys[kKinds];
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) keys[kind] = *own.k(kind);
  load_eight(turn, p.rotations + static_cast<std::int64_t>(at.t) * p.Dk + at.chunk * kEight);
  for (int head = 0; head < heads; head += kHeadsAtOnce) {
    uint4 raw[kHeadsAtOnce];
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i)
      if (head + i < heads) raw[i] = *own.q(first + head + i);
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (head + i >= heads) break;
      float x[kEight];
      widen<T>(x, raw[i]);
#pragma unroll
      for (int c = 0; c < kEight; ++c) mean[c] += x[c];
      turned<false>(x, turn);
      store<T>(own.q(first + head + i), x);
    }
  }
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) {
    float x[kEight];
    widen<T>(x, keys[kind]);
    turned<false>(x, turn);
    store<T>(own.k(kind), x);
  }
  const float count = static_cast<float>(heads);
  auto* to = reinterpret_cast<float4*>(p.mean + (at.token * p.G + at.group) * p.Dk + at.chunk * kEight);
  to[0] = make_float4(mean[0] / count, mean[1] / count, mean[2] / count, mean[3] / count);
  to[1] = make_float4(mean[4] / count, mean[5] / count, mean[6] / count, mean[7] / count);
}

template <typename T>
__device__ uint4 gradient_of(const Rows& rows, const Place& at, int head) {
  return rows.data ? *chunk_of<T>(rows, at.b, at.t, head, at.chunk) : make_uint4(0, 0, 0, 0);
}

template <typename T>
__global__ void __launch_bounds__(kRotateThreads) rotate_backward_kernel(const RotateBackward p, int chunks) {
  const Rotate& f = p.forward;
  const Place at = place_of(f, chunks);
  if (at.b >= f.B) return;
  const Columns<T> own = columns_of<T>(f, at);
  const bool turns = at.chunk * kEight < f.Dk, copies = at.chunk * kEight < f.Dv;
  uint4 keys[kKinds], values[kKinds];
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) {
    if (turns) keys[kind] = gradient_of<T>(p.dk[kind], at, at.group);
    if (copies) values[kind] = gradient_of<T>(p.dv[kind], at, at.group);
  }
  if (turns) {
    const int heads = f.Hq / f.G, first = at.group * heads;
    float turn[kEight], share[kEight] = {};
    load_eight(turn, f.rotations + static_cast<std::int64_t>(at.t) * f.Dk + at.chunk * kEight);
    if (p.dmean) {
      load_eight(share, p.dmean + (at.token * f.G + at.group) * f.Dk + at.chunk * kEight);
#pragma unroll
      for (int c = 0; c < kEight; ++c) share[c] /= static_cast<float>(heads);
    }
    for (int head = 0; head < heads; head += kHeadsAtOnce) {
      uint4 raw[kHeadsAtOnce];
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i)
        if (head + i < heads) raw[i] = gradient_of<T>(p.dq, at, first + head + i);
#pragma unroll
      for (int i = 0; i < kHeadsAtOnce; ++i) {
        if (head + i >= heads) break;
        float x[kEight];
        widen<T>(x, raw[i]);
        turned<true>(x, turn);
#pragma unroll
        for (int c = 0; c < kEight; ++c) x[c] += share[c];
        store<T>(own.q(first + head + i), x);
      }
    }
#pragma unroll
    for (int kind = 0; kind < kKinds; ++kind) {
      float x[kEight];
      widen<T>(x, keys[kind]);
      turned<true>(x, turn);
      store<T>(own.k(kind), x);
    }
  }
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind)
    if (copies) store_whole(own.v(kind), values[kind]);
}

dim3 rotate_grid(const Rotate& p, int chunks) {
  const std::int64_t threads = static_cast<std::int64_t>(p.B) * p.S * p.G * chunks;
  return dim3(static_cast<unsigned>((threads + kRotateThreads - 1) / kRotateThreads));
}

}  // namespace

void rotate_forward(const Rotate& p, cudaStream_t stream) {
  if (p.B == 0 || p.S == 0) return;
  const dim3 grid = rotate_grid(p, p.Dk / kEight);
  if (p.storage == Storage::bf16)
    rotate_forward_kernel<bf16><<<grid, kRotateThreads, 0, stream>>>(p);
  else
    rotate_forward_kernel<fp16><<<grid, kRotateThreads, 0, stream>>>(p);
  check_launch("rotate_forward");
}

void rotate_backward(const RotateBackward& p, cudaStream_t stream) {
  const Rotate& f = p.forward;
  if (f.B == 0 || f.S == 0) return;
  const int chunks = (f.Dk > f.Dv ? f.Dk : f.Dv) / kEight;
  const dim3 grid = rotate_grid(f, chunks);
  if (f.storage == Storage::bf16)
    rotate_backward_kernel<bf16><<<grid, kRotateThreads, 0, stream>>>(p, chunks);
  else
    rotate_backward_kernel<fp16><<<grid, kRotateThreads, 0, stream>>>(p, chunks);
  check_launch("rotate_backward");
}

}  // namespace nsa::kernels
