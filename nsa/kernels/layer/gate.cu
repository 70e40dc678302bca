// A CTA takes tiles of kRows rows: the tile's means and fc1's weights lie in shared memory as fp32, and a thread
// computes patches of 4 x 4 outputs of each product. These are too small and too exact (fp32) for the tensor cores.
//
//   forward    a = M W1^T + b1 (patch: 4 rows x 4 hidden units), s = silu(a) ─> shared ─> a thread a row: gates
//   backward   the same a and s; dlogits from the gates
//              dW2 += dlogits^T s, db2           (a thread an output, in its register over all tiles of the CTA)
//              da = (dlogits W2) silu'(a)        (in the patch that holds a; written where s was)
//              dW1 += da^T M, db1                (patches of 4 hidden units x 4 columns, in registers over all tiles)
//              dM = da W1                        (patches of 4 rows x 4 columns, to memory)
//   sum        a CTA's sums ─> partials [CTA][W1 | b1 | W2 | b2] ─> 32 outputs a CTA, 16 threads each, in fixed order
#include "nsa/kernels/device/gates.cuh"
#include "nsa/kernels/gate.hpp"

namespace nsa::kernels {

namespace {

constexpr int kPatch = 4;

template <int Width>
struct GateShape {
  static constexpr int kWidth = Width, kHidden = Width / 2;
  static constexpr int kRows = Width <= 128 ? 64 : 32;  // 48 KB more of shared memory than any GPU of 8.x has, with 64
  static constexpr int kThreads = Width <= 64 ? 128 : 2 * Width;
  // Rows that are read at the same time lie in different banks.
  static constexpr int kWideStride = Width + 4, kHiddenStride = kHidden + 4;
  // Places in shared memory, in floats.
  static constexpr int kMean = 0, kW1 = kMean + kRows * kWideStride, kUnits = kW1 + kHidden * kWideStride,
                       kW2 = kUnits + kRows * kHiddenStride, kB1 = kW2 + kBranches * kHidden, kB2 = kB1 + kHidden,
                       kLogits = kB2 + 4, kFloats = kLogits + kRows * 4;
  static constexpr int kSharedBytes = kFloats * 4;
  // Patches of a product with the hidden units, and how its threads lie: neighbours have neighbouring units.
  static constexpr int kUnitPatches = kHidden / kPatch, kRowPatches = kRows / kPatch, kWidePatches = Width / kPatch;
  static_assert(kUnitPatches * kRowPatches <= kThreads, "a thread keeps its own patch of a");
  static_assert(kBranches * (kHidden + 1) <= kThreads, "a thread keeps its own output of dW2, db2");
  static_assert(kThreads % kWidePatches == 0);
  // Patches of dW1 that a thread keeps: every kStep-th of its four columns.
  static constexpr int kStep = kThreads / kWidePatches, kOwn = (kUnitPatches + kStep - 1) / kStep;
  // A CTA's sums, in floats: [W1 | b1 | W2 | b2].
  static constexpr int kSumB1 = kHidden * Width, kSumW2 = kSumB1 + kHidden, kSumB2 = kSumW2 + kBranches * kHidden,
                       kSums = kSumB2 + kBranches, kSumStride = kSums + 1;
  static_assert(kSumStride % 4 == 0, "read 16 bytes at a time");
  // The same on every GPU, so that the bits are.
  static constexpr int kMostCtas = Width == 64 ? 512 : Width == 128 ? 256 : 128;
};

std::int64_t tiles_of_rows(std::int64_t rows, int tile) { return (rows + tile - 1) / tile; }

__device__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

__device__ float4 four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ float dot(float sum, const float4& a, const float4& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ void add_scaled(float (&sum)[kPatch], float a, const float4& b) {
  sum[0] = fmaf(a, b.x, sum[0]);
  sum[1] = fmaf(a, b.y, sum[1]);
  sum[2] = fmaf(a, b.z, sum[2]);
  sum[3] = fmaf(a, b.w, sum[3]);
}

// What a CTA has in shared memory.
template <typename S>
struct Tile {
  float *mean, *w1, *units, *w2, *b1, *b2, *logits;
  __device__ explicit Tile(float* shared)
      : mean(shared + S::kMean),
        w1(shared + S::kW1),
        units(shared + S::kUnits),
        w2(shared + S::kW2),
        b1(shared + S::kB1),
        b2(shared + S::kB2),
        logits(shared + S::kLogits) {}

  template <typename T>
  __device__ void load_weights(const Gate& p) const {
    constexpr int kChunks = S::kWidth / kEight;
    const int first = static_cast<int>(threadIdx.x);
    for (int i = first; i < S::kHidden * kChunks; i += S::kThreads) {
      float x[kEight];
      load<T>(x, static_cast<const uint4*>(p.w1) + i);
      auto* to = reinterpret_cast<float4*>(w1 + i / kChunks * S::kWideStride + i % kChunks * kEight);
      to[0] = make_float4(x[0], x[1], x[2], x[3]);
      to[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
    for (int i = first; i < kBranches * S::kHidden; i += S::kThreads) w2[i] = wide(static_cast<const T*>(p.w2)[i]);
    for (int i = first; i < S::kHidden; i += S::kThreads) b1[i] = wide(static_cast<const T*>(p.b1)[i]);
    if (first < kBranches) b2[first] = wide(static_cast<const T*>(p.b2)[first]);
  }
  __device__ void load_weights(const Gate& p) const {
    p.storage == Storage::bf16 ? load_weights<bf16>(p) : load_weights<fp16>(p);
  }
  // Rows beyond the last one are 0.
  __device__ void load_means(const Gate& p, std::int64_t first) const {
    for (int i = static_cast<int>(threadIdx.x); i < S::kRows * S::kWidePatches; i += S::kThreads) {
      const int row = i / S::kWidePatches, column = i % S::kWidePatches * kPatch;
      const bool inside = first + row < p.rows;
      *reinterpret_cast<float4*>(mean + row * S::kWideStride + column) =
          inside ? four(p.mean + (first + row) * S::kWidth + column) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }
};

// A thread's patch of a product with the hidden units: rows row + i * kRowPatches, units unit + j * kUnitPatches.
template <typename S>
struct UnitPatch {
  int row = static_cast<int>(threadIdx.x) / S::kUnitPatches, unit = static_cast<int>(threadIdx.x) % S::kUnitPatches;
  float a[kPatch][kPatch] = {};  // [row][unit]

  __device__ bool owned() const { return row < S::kRowPatches; }
  __device__ int row_of(int i) const { return row + i * S::kRowPatches; }
  __device__ int unit_of(int j) const { return unit + j * S::kUnitPatches; }
  __device__ float& place(const Tile<S>& t, int i, int j) const {
    return t.units[row_of(i) * S::kHiddenStride + unit_of(j)];
  }
  // a, and its SiLU to shared memory.
  __device__ void compute(const Tile<S>& t) {
#pragma unroll
    for (int j = 0; j < kPatch; ++j)
#pragma unroll
      for (int i = 0; i < kPatch; ++i) a[i][j] = t.b1[unit_of(j)];
#pragma unroll 2
    for (int k = 0; k < S::kWidth; k += kPatch) {
      float4 mean[kPatch], w[kPatch];
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
        mean[i] = four(t.mean + row_of(i) * S::kWideStride + k);
        w[i] = four(t.w1 + unit_of(i) * S::kWideStride + k);
      }
#pragma unroll
      for (int i = 0; i < kPatch; ++i)
#pragma unroll
        for (int j = 0; j < kPatch; ++j) a[i][j] = dot(a[i][j], mean[i], w[j]);
    }
#pragma unroll
    for (int i = 0; i < kPatch; ++i)
#pragma unroll
      for (int j = 0; j < kPatch; ++j) place(t, i, j) = a[i][j] * sigmoid(a[i][j]);
  }
  // da in the place of SiLU(a).
  __device__ void differentiate(const Tile<S>& t) const {
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      const float4 dlogits = four(t.logits + row_of(i) * kPatch);
#pragma unroll
      for (int j = 0; j < kPatch; ++j) {
        const float* w2 = t.w2 + unit_of(j);
        const float ds = dlogits.x * w2[0] + dlogits.y * w2[S::kHidden] + dlogits.z * w2[2 * S::kHidden];
        const float open = sigmoid(a[i][j]);
        place(t, i, j) = ds * open * (1.f + a[i][j] * (1.f - open));
      }
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads) gate_forward_kernel(const Gate p) {
  extern __shared__ __align__(16) float shared[];
  const Tile<S> t(shared);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * S::kRows;
  t.load_weights(p);
  t.load_means(p, first);
  __syncthreads();
  UnitPatch<S> patch;
  if (patch.owned()) patch.compute(t);
  __syncthreads();

  const int row = static_cast<int>(threadIdx.x);
  if (row >= S::kRows || first + row >= p.rows) return;
  float x[kBranches] = {t.b2[0], t.b2[1], t.b2[2]};
#pragma unroll 4
  for (int unit = 0; unit < S::kHidden; unit += kPatch) {
    const float4 s = four(t.units + row * S::kHiddenStride + unit);
#pragma unroll
    for (int i = 0; i < kBranches; ++i) x[i] = dot(x[i], s, four(t.w2 + i * S::kHidden + unit));
  }
#pragma unroll
  for (int i = 0; i < kBranches; ++i) x[i] /= p.tau;
  if (p.softmax) {
    const float largest = fmaxf(fmaxf(x[0], x[1]), x[2]);  // of numbers: a NaN stays in its own exponential
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kBranches; ++i) sum += x[i] = expf(x[i] - largest);
#pragma unroll
    for (int i = 0; i < kBranches; ++i) x[i] /= sum;
  } else {
#pragma unroll
    for (int i = 0; i < kBranches; ++i) x[i] = sigmoid(x[i]);
  }
#pragma unroll
  for (int i = 0; i < kBranches; ++i) p.gates[(first + row) * kBranches + i] = x[i];
}

// The gradients of a row's logits; of a row beyond the last one 0.
template <typename S>
__device__ void load_dlogits(const Tile<S>& t, const GateBackward& p, std::int64_t first) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= S::kRows) return;
  const Gate& f = p.forward;
  float d[kBranches] = {};
  if (first + row < f.rows) {
    const std::int64_t place = (first + row) * kBranches;
    float gate[kBranches], product[kBranches], sum = 0.f;
#pragma unroll
    for (int i = 0; i < kBranches; ++i) {
      gate[i] = f.gates[place + i];
      d[i] = p.dgates[place + i];
      product[i] = gate[i] * d[i];
      sum += product[i];
    }
#pragma unroll
    for (int i = 0; i < kBranches; ++i)
      d[i] = (f.softmax ? gate[i] * (d[i] - sum) : product[i] * (1.f - gate[i])) / f.tau;
  }
  *reinterpret_cast<float4*>(t.logits + row * kPatch) = make_float4(d[0], d[1], d[2], 0.f);
}

// What a thread keeps of the weights' gradients over all tiles of its CTA.
template <typename S>
struct WeightSums {
  static constexpr int kSmall = kBranches * S::kHidden;
  int thread = static_cast<int>(threadIdx.x), column = thread % S::kWidePatches * kPatch,
      patch = thread / S::kWidePatches;
  float w1[S::kOwn][kPatch][kPatch] = {}, b1 = 0.f, w2 = 0.f;  // w2: also b2's, behind the units'

  __device__ void add_second(const Tile<S>& t) {
    if (thread < kSmall) {
      const int branch = thread / S::kHidden, unit = thread % S::kHidden;
#pragma unroll 8
      for (int row = 0; row < S::kRows; ++row)
        w2 = fmaf(t.logits[row * kPatch + branch], t.units[row * S::kHiddenStride + unit], w2);
    } else if (thread < kSmall + kBranches) {
      for (int row = 0; row < S::kRows; ++row) w2 += t.logits[row * kPatch + thread - kSmall];
    }
  }
  __device__ void add_first(const Tile<S>& t) {
    if (thread < S::kHidden) {
#pragma unroll 8
      for (int row = 0; row < S::kRows; ++row) b1 += t.units[row * S::kHiddenStride + thread];
    }
#pragma unroll 2
    for (int row = 0; row < S::kRows; ++row) {
      const float4 mean = four(t.mean + row * S::kWideStride + column);
#pragma unroll
      for (int own = 0; own < S::kOwn; ++own) {
        if (patch + own * S::kStep >= S::kUnitPatches) break;
        const float4 da = four(t.units + row * S::kHiddenStride + (patch + own * S::kStep) * kPatch);
        add_scaled(w1[own][0], da.x, mean);
        add_scaled(w1[own][1], da.y, mean);
        add_scaled(w1[own][2], da.z, mean);
        add_scaled(w1[own][3], da.w, mean);
      }
    }
  }
  __device__ void leave(float* to) const {
#pragma unroll
    for (int own = 0; own < S::kOwn; ++own) {
      if (patch + own * S::kStep >= S::kUnitPatches) break;
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
        const int unit = (patch + own * S::kStep) * kPatch + i;
        *reinterpret_cast<float4*>(to + unit * S::kWidth + column) =
            make_float4(w1[own][i][0], w1[own][i][1], w1[own][i][2], w1[own][i][3]);
      }
    }
    if (thread < S::kHidden) to[S::kSumB1 + thread] = b1;
    if (thread < kSmall + kBranches) to[S::kSumW2 + thread] = w2;
  }
};

// dM = da W1, to memory: patches of four rows and four columns.
template <typename S>
__device__ void store_dmean(const Tile<S>& t, const GateBackward& p, std::int64_t first) {
  for (int i = static_cast<int>(threadIdx.x); i < S::kRowPatches * S::kWidePatches; i += S::kThreads) {
    const int row = i / S::kWidePatches * kPatch, column = i % S::kWidePatches * kPatch;
    float sum[kPatch][kPatch] = {};
#pragma unroll 2
    for (int unit = 0; unit < S::kHidden; unit += kPatch) {
      float4 w[kPatch];
#pragma unroll
      for (int j = 0; j < kPatch; ++j) w[j] = four(t.w1 + (unit + j) * S::kWideStride + column);
#pragma unroll
      for (int j = 0; j < kPatch; ++j) {
        const float4 da = four(t.units + (row + j) * S::kHiddenStride + unit);
        add_scaled(sum[j], da.x, w[0]);
        add_scaled(sum[j], da.y, w[1]);
        add_scaled(sum[j], da.z, w[2]);
        add_scaled(sum[j], da.w, w[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < kPatch; ++j)
      if (first + row + j < p.forward.rows)
        *reinterpret_cast<float4*>(p.dmean + (first + row + j) * S::kWidth + column) =
            make_float4(sum[j][0], sum[j][1], sum[j][2], sum[j][3]);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads) gate_backward_kernel(const GateBackward p, int tiles) {
  extern __shared__ __align__(16) float shared[];
  const Tile<S> t(shared);
  WeightSums<S> sums;
  t.load_weights(p.forward);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const std::int64_t first = static_cast<std::int64_t>(tile) * S::kRows;
    t.load_means(p.forward, first);
    load_dlogits(t, p, first);
    __syncthreads();
    UnitPatch<S> patch;
    if (patch.owned()) patch.compute(t);
    __syncthreads();
    if (p.partials) sums.add_second(t);
    __syncthreads();
    if (patch.owned()) patch.differentiate(t);
    __syncthreads();
    if (p.partials) sums.add_first(t);
    if (p.dmean) store_dmean(t, p, first);
    __syncthreads();
  }
  if (p.partials) sums.leave(p.partials + static_cast<std::int64_t>(blockIdx.x) * S::kSumStride);
}

constexpr int kOutputs = 32, kTeams = 16;  // of a CTA of gate_sum_kernel

__device__ void store_as(Storage storage, void* to, int place, float x) {
  if (storage == Storage::bf16)
    static_cast<bf16*>(to)[place] = __float2bfloat16_rn(x);
  else
    static_cast<fp16*>(to)[place] = __float2half_rn(x);
}

__global__ void __launch_bounds__(kOutputs* kTeams) gate_sum_kernel(const GateBackward p, int ctas, int stride) {
  __shared__ float sums[kTeams][kOutputs];
  const int lane = static_cast<int>(threadIdx.x) % kOutputs, team = static_cast<int>(threadIdx.x) / kOutputs;
  const int width = p.forward.Dk, hidden = width / 2;
  const int b1 = hidden * width, w2 = b1 + hidden, b2 = w2 + kBranches * hidden, end = b2 + kBranches;
  const int output = static_cast<int>(blockIdx.x) * kOutputs + lane;
  float sum = 0.f;
  if (output < end) {
#pragma unroll 8
    for (int cta = team; cta < ctas; cta += kTeams) sum += p.partials[static_cast<std::int64_t>(cta) * stride + output];
  }
  sums[team][lane] = sum;
  __syncthreads();
  if (team != 0 || output >= end) return;
  for (int other = 1; other < kTeams; ++other) sum += sums[other][lane];
  const Storage storage = p.forward.storage;
  if (output < b1)
    store_as(storage, p.dw1, output, sum);
  else if (output < w2)
    store_as(storage, p.db1, output - b1, sum);
  else if (output < b2)
    store_as(storage, p.dw2, output - w2, sum);
  else
    store_as(storage, p.db2, output - b2, sum);
}

// Calls f with the shape of a width.
template <typename F>
auto with_shape(int Dk, F f) {
  switch (Dk) {
    case 32:
      return f(GateShape<32>());
    case 64:
      return f(GateShape<64>());
    case 128:
      return f(GateShape<128>());
    case 192:
      return f(GateShape<192>());
    default:
      throw LaunchError("gate: the kernels serve widths of 32, 64, 128 and 192");
  }
}

template <typename S>
int ctas_of(std::int64_t rows) {
  const std::int64_t tiles = tiles_of_rows(rows, S::kRows);
  return static_cast<int>(tiles < S::kMostCtas ? tiles : S::kMostCtas);
}

template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes, const char* name) {
  constexpr int kAllowedAnyway = 48 * 1024;
  if (bytes <= kAllowedAnyway) return;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
    check_launch(name);
}

}  // namespace

int gate_shared_bytes(int Dk) {
  return with_shape(Dk, []<typename S>(S) { return S::kSharedBytes; });
}

std::int64_t gate_partials_bytes(std::int64_t rows, int Dk) {
  return with_shape(Dk, [&]<typename S>(S) { return static_cast<std::int64_t>(ctas_of<S>(rows)) * S::kSumStride * 4; });
}

void gate_forward(const Gate& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  with_shape(p.Dk, [&]<typename S>(S) {
    allow_shared(gate_forward_kernel<S>, S::kSharedBytes, "gate_forward");
    const dim3 grid(static_cast<unsigned>(tiles_of_rows(p.rows, S::kRows)));
    gate_forward_kernel<S><<<grid, S::kThreads, S::kSharedBytes, stream>>>(p);
  });
  check_launch("gate_forward");
}

void gate_backward(const GateBackward& p, cudaStream_t stream) {
  const Gate& f = p.forward;
  with_shape(f.Dk, [&]<typename S>(S) {
    const int ctas = ctas_of<S>(f.rows), tiles = static_cast<int>(tiles_of_rows(f.rows, S::kRows));
    if (ctas > 0) {
      allow_shared(gate_backward_kernel<S>, S::kSharedBytes, "gate_backward");
      gate_backward_kernel<S><<<dim3(static_cast<unsigned>(ctas)), S::kThreads, S::kSharedBytes, stream>>>(p, tiles);
      check_launch("gate_backward");
    }
    if (!p.partials) return;
    const dim3 grid(static_cast<unsigned>((S::kSums + kOutputs - 1) / kOutputs));
    gate_sum_kernel<<<grid, kOutputs * kTeams, 0, stream>>>(p, ctas, S::kSumStride);
    check_launch("gate_sum");
  });
}

}  // namespace nsa::kernels
