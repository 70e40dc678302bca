// Forward: a thread owns eight columns of one output row. Backward: a CTA has eight tokens of a group. A team of lanes
// takes one row (token, head) after the other, each lane eight columns; neighbouring teams have neighbouring heads,
// whose rows lie beside each other. Their sums meet in shared memory: what has the tokens beside each other ([B,Hq,S])
// is written eight tokens, a sector, at a time, and the gate's gradient is summed over the heads in their order.
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
constexpr int kTokens = 8, kHeads = 32;  // of a CTA's tile, backward; more heads come one tile after the other
constexpr int kAhead = 2;                // rows that a team asks for at once

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

// Of a tile's rows: dout . o_b, and do_b . o_b where do_b is not dout itself.
struct RowSums {
  float dot[kBranches][kHeads][kTokens], delta[kBranches][kHeads][kTokens];
};

// What a CTA does at a time: `heads` of a group's heads from `head` on, of kTokens tokens.
struct Tile {
  int b, group, token, head, heads;
};

// The sums of kAhead rows a team, all of whose reads come before the first store: nvcc cannot move them over one.
// Lanes: the least power of two that is not below Dv/8; lanes without columns add 0.
template <typename T, typename Gate, int Lanes>
__device__ void sum_rows(RowSums& sums, const CombineBackward& p, const Tile& tile, int first) {
  const Combine& f = p.forward;
  constexpr int kTeams = kThreads / Lanes;
  const int chunk = static_cast<int>(threadIdx.x) % Lanes, team = static_cast<int>(threadIdx.x) / Lanes;
  uint4 raw[kAhead], o[kAhead][kBranches];
  int token[kAhead], head[kAhead];
  bool inside[kAhead], owns[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int row = first + i * kTeams + team;
    token[i] = row / tile.heads;
    head[i] = row - token[i] * tile.heads;
    inside[i] = token[i] < kTokens && tile.token + token[i] < f.S;
    owns[i] = inside[i] && chunk * kEight < f.Dv;
    raw[i] = o[i][0] = o[i][1] = o[i][2] = make_uint4(0, 0, 0, 0);
    if (!owns[i]) continue;
    raw[i] = *chunk_of<T>(p.dout, tile.b, tile.token + token[i], tile.head + head[i], chunk);
#pragma unroll
    for (int branch = 0; branch < kBranches; ++branch)
      o[i][branch] = *chunk_of<T>(f.branch[branch], tile.b, tile.token + token[i], tile.head + head[i], chunk);
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    float dout[kEight];
    widen<T>(dout, raw[i]);
#pragma unroll
    for (int branch = 0; branch < kBranches; ++branch) {
      float x[kEight], dot = 0.f;
      widen<T>(x, o[i][branch]);
#pragma unroll
      for (int c = 0; c < kEight; ++c) dot += dout[c] * x[c];
      dot = team_sum<Lanes>(dot);
      float delta = dot;
      const bool gated = p.gated_stats[branch] != nullptr, stores = p.dbranch[branch].data != nullptr;
      if (stores || !gated) {
        float scaled[kEight];
        const float gate = inside[i] ? gate_of<Gate>(f, tile.b, tile.token + token[i], tile.group, branch) : 0.f;
#pragma unroll
        for (int c = 0; c < kEight; ++c) scaled[c] = gate * dout[c];
        const uint4 stored = narrowed<T>(scaled);
        if (owns[i] && stores)
          store_whole(chunk_of<T>(p.dbranch[branch], tile.b, tile.token + token[i], tile.head + head[i], chunk),
                      stored);
        if (!gated) {
          widen<T>(scaled, stored);
          delta = 0.f;
#pragma unroll
          for (int c = 0; c < kEight; ++c) delta += scaled[c] * x[c];
          delta = team_sum<Lanes>(delta);
        }
      }
      if (!inside[i] || chunk != 0) continue;
      sums.dot[branch][head[i]][token[i]] = dot;
      sums.delta[branch][head[i]][token[i]] = delta;
    }
  }
}

// A row's place in what has the tokens beside each other, which threads take one after the other.
struct Place {
  int branch, head, token;
  std::int64_t row;  // negative: outside
  __device__ Place(const CombineBackward& p, const Tile& tile, int i) {
    const int a_branch = tile.heads * kTokens;
    branch = i / a_branch;
    head = (i - branch * a_branch) / kTokens;
    token = i % kTokens;
    const bool inside = branch < kBranches && tile.token + token < p.forward.S && p.delta[branch];
    row = inside
              ? (static_cast<std::int64_t>(tile.b) * p.forward.Hq + tile.head + head) * p.forward.S + tile.token + token
              : -1;
  }
};
template <typename Gate>
__device__ float2 gated_statistics(const CombineBackward& p, const Tile& tile, const Place& place) {
  if (place.row < 0 || !p.gated_stats[place.branch]) return {};
  const float2 stats = reinterpret_cast<const float2*>(p.stats[place.branch])[place.row];
  const float gate = gate_of<Gate>(p.forward, tile.b, tile.token + place.token, tile.group, place.branch);
  return {stats.x, gated_sum(stats.y, gate)};
}

template <typename T, typename Gate, int Lanes>
__global__ void __launch_bounds__(kThreads, 3) combine_backward_kernel(const CombineBackward p) {
  __shared__ RowSums sums;
  const Combine& f = p.forward;
  const int heads = f.Hq / f.G, own = static_cast<int>(threadIdx.x), first_tile = static_cast<int>(blockIdx.x);
  Tile tile;
  tile.group = first_tile % f.G;
  tile.token = first_tile / f.G * kTokens;
  for (tile.b = static_cast<int>(blockIdx.y); tile.b < f.B; tile.b += static_cast<int>(gridDim.y)) {
    float dgate = 0.f;  // of a token and branch, in the first threads
    for (int done = 0; done < heads; done += kHeads) {
      tile.head = tile.group * heads + done;
      tile.heads = min(heads - done, kHeads);
      Place place(p, tile, own);
      float2 statistics = gated_statistics<Gate>(p, tile, place);  // under way while the rows are
      for (int first = 0; first < kTokens * tile.heads; first += kAhead * kThreads / Lanes)
        sum_rows<T, Gate, Lanes>(sums, p, tile, first);
      __syncthreads();
      for (int i = own; i < kBranches * tile.heads * kTokens; i += kThreads) {
        if (i != own) {
          place = Place(p, tile, i);
          statistics = gated_statistics<Gate>(p, tile, place);
        }
        if (place.row < 0) continue;
        p.delta[place.branch][place.row] = sums.delta[place.branch][place.head][place.token];
        if (p.gated_stats[place.branch]) reinterpret_cast<float2*>(p.gated_stats[place.branch])[place.row] = statistics;
      }
      if (own < kTokens * kBranches)
        for (int head = 0; head < tile.heads; ++head) dgate += sums.dot[own % kBranches][head][own / kBranches];
      __syncthreads();  // before the next rows' sums
    }
    const int t = tile.token + own / kBranches;
    if (p.dgates && own < kTokens * kBranches && t < f.S)
      static_cast<Gate*>(p.dgates)[gate_place(f, tile.b, t, tile.group) + own % kBranches] = narrow<Gate>(dgate);
  }
}

// `ctas` for each batch entry, of which a grid has no more than it can.
dim3 grid_of(const Combine& p, std::int64_t ctas) {
  return dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(std::min(p.B, kMostBatches)));
}

template <typename T, typename Gate>
void forward_as(const Combine& p, cudaStream_t stream) {
  const std::int64_t threads = static_cast<std::int64_t>(p.S) * p.Hq * (p.Dv / kEight);
  launch(false, combine_forward_kernel<T, Gate>, grid_of(p, (threads + kThreads - 1) / kThreads), kThreads, 0, stream,
         p);
}

template <typename T, typename Gate>
void backward_as(const CombineBackward& p, cudaStream_t stream) {
  const Combine& f = p.forward;
  const int chunks = f.Dv / kEight;
  const auto run = [&](auto kernel) {
    const std::int64_t tiles = (f.S + kTokens - 1) / kTokens;
    launch(false, kernel, grid_of(f, tiles * f.G), kThreads, 0, stream, p);
  };
  if (chunks <= 4)
    run(combine_backward_kernel<T, Gate, 4>);
  else if (chunks <= 8)
    run(combine_backward_kernel<T, Gate, 8>);
  else if (chunks <= 16)
    run(combine_backward_kernel<T, Gate, 16>);
  else
    run(combine_backward_kernel<T, Gate, 32>);
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
