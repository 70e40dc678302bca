// A team of 1, 4 or 8 warps owns a row and holds it in registers, a thread up to four times eight columns of it.
// Forward a team has one row. Backward it walks over rows, a grid apart, and keeps its columns' share of the weight's
// gradient in fp32; the teams of a CTA are added in a fixed order, the CTAs by a kernel of its own.
//
//                     rows of up to 1024 columns         of up to 8192
//   CTA               8 teams of a warp                  one team of 4 or 8 warps
//   sum over a row    shuffles                           shuffles, then the warps' sums in order
#include <iterator>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/norm.hpp"
#include "nsa/kernels/plan/norm_plan.hpp"

namespace nsa::kernels {

namespace {

constexpr int kLanes = 32;
static_assert(NormTeam{1, 1}.columns() == kLanes * kEight);
constexpr unsigned kWholeWarp = 0xffffffffU;
// The sum over CTAs: each adds up eight columns, whose 32 bytes are what memory gives at once.
constexpr int kAddingThreads = 256, kAtOnce = kAddingThreads / kEight;

template <int Warps>
constexpr int teams() {
  return NormTeam{Warps, 1}.teams();
}
template <int Warps>
constexpr int threads() {
  return NormTeam{Warps, 1}.threads();
}

// Over a team, in every thread. All of its threads come here.
template <int Warps>
__device__ float row_sum(float x, float* of_warps) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
  if constexpr (Warps > 1) {
    if (threadIdx.x % kLanes == 0) of_warps[threadIdx.x / kLanes] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int warp = 0; warp < Warps; ++warp) x += of_warps[warp];
    __syncthreads();  // before the next row's
  }
  return x;
}

// Where a thread's chunks of a row are; those beyond the row's end are zeros.
template <int Warps>
struct Row {
  std::int64_t first;  // chunk of the row
  int own, chunks;     // the thread's first, and how many the row has

  __device__ Row(std::int64_t row, int width)
      : first(row * (width / kEight)), own(static_cast<int>(threadIdx.x) % (Warps * kLanes)), chunks(width / kEight) {}
  [[nodiscard]] __device__ bool has(int k) const { return own + k * Warps * kLanes < chunks; }
  [[nodiscard]] __device__ std::int64_t at(int k) const { return first + own + k * Warps * kLanes; }
  template <int Chunks>
  __device__ void load(uint4 (&values)[Chunks], const void* from) const {
#pragma unroll
    for (int k = 0; k < Chunks; ++k)
      values[k] = from && has(k) ? static_cast<const uint4*>(from)[at(k)] : make_uint4(0, 0, 0, 0);
  }
};

template <typename T, int Warps, int Chunks>
__global__ void __launch_bounds__(threads<Warps>()) norm_forward_kernel(const Norm p) {
  __shared__ float of_warps[Warps];
  const int team = static_cast<int>(threadIdx.x) / (Warps * kLanes);
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * teams<Warps>() + team;
  if (number >= p.rows) return;  // never one of several warps
  const Row<Warps> row(number, p.width);
  uint4 x[Chunks], delta[Chunks], weight[Chunks];
  row.load(x, p.x);
  if (p.delta) row.load(delta, p.delta);
  Row<Warps>(0, p.width).load(weight, p.weight);

  float square = 0;
#pragma unroll
  for (int k = 0; k < Chunks; ++k) {
    if (p.delta) {
      x[k] = added<T>(x[k], delta[k]);
      if (row.has(k)) store_whole(static_cast<uint4*>(p.sum) + row.at(k), x[k]);
    }
    float values[kEight];
    widen<T>(values, x[k]);
#pragma unroll
    for (int i = 0; i < kEight; ++i) square = fmaf(values[i], values[i], square);
  }
  const float mean = row_sum<Warps>(square, of_warps) / static_cast<float>(p.width);
  const float rstd = 1.F / sqrtf(mean + p.epsilon);
#pragma unroll
  for (int k = 0; k < Chunks; ++k) {
    float values[kEight], factors[kEight];
    widen<T>(values, x[k]);
    widen<T>(factors, weight[k]);
#pragma unroll
    for (int i = 0; i < kEight; ++i) values[i] = values[i] * rstd * factors[i];
    if (row.has(k)) store<T>(static_cast<uint4*>(p.y) + row.at(k), values);
  }
  if (p.rstd && row.own == 0) p.rstd[number] = rstd;
}

// A CTA's part of the weight's gradient, [CTAs, width]: what its teams have. The upper half of them is added to the
// lower one, team by team, until one is left.
template <int Warps, int Chunks>
__device__ void store_part(float* parts, float (&own)[Chunks][kEight], int width) {
  const Row<Warps> row(0, width);
  const int team = static_cast<int>(threadIdx.x) / (Warps * kLanes);
  if constexpr (teams<Warps>() > 1) {
    __shared__ float of_teams[teams<Warps>() / 2][Chunks * kEight][kLanes];
#pragma unroll
    for (int half = teams<Warps>() / 2; half > 0; half /= 2) {
      if (team >= half && team < 2 * half)
#pragma unroll
        for (int k = 0; k < Chunks; ++k)
#pragma unroll
          for (int i = 0; i < kEight; ++i) of_teams[team - half][k * kEight + i][row.own] = own[k][i];
      __syncthreads();
      if (team < half)
#pragma unroll
        for (int k = 0; k < Chunks; ++k)
#pragma unroll
          for (int i = 0; i < kEight; ++i) own[k][i] += of_teams[team][k * kEight + i][row.own];
      __syncthreads();
    }
  }
  if (team > 0) return;
  float* const part = parts + static_cast<std::int64_t>(blockIdx.x) * width;
#pragma unroll
  for (int k = 0; k < Chunks; ++k)
    if (row.has(k)) {
      float4* const to = reinterpret_cast<float4*>(part + row.at(k) * kEight);
      to[0] = make_float4(own[k][0], own[k][1], own[k][2], own[k][3]);
      to[1] = make_float4(own[k][4], own[k][5], own[k][6], own[k][7]);
    }
}

// With z = sum * rstd and g = dy * weight: dx = dsum + rstd * (g - z * mean(g * z)), dweight = sum over rows of dy * z.
template <typename T, int Warps, int Chunks>
__global__ void __launch_bounds__(threads<Warps>(), NormBackwardPlan::kThreadsOfSm / threads<Warps>())
    norm_backward_kernel(const NormBackward p) {
  __shared__ float of_warps[Warps];
  const int team = static_cast<int>(threadIdx.x) / (Warps * kLanes);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * teams<Warps>();
  uint4 weight[Chunks];
  Row<Warps>(0, p.width).load(weight, p.weight);
  float dweight[Chunks][kEight] = {};
  for (std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * teams<Warps>() + team; number < p.rows;
       number += step) {
    const Row<Warps> row(number, p.width);
    uint4 sum[Chunks], dy[Chunks], dsum[Chunks];
    row.load(sum, p.sum);
    row.load(dy, p.dy);
    row.load(dsum, p.dsum);
    const float rstd = p.rstd[number];
    float product = 0;
#pragma unroll
    for (int k = 0; k < Chunks; ++k) {
      float z[kEight], d[kEight], factors[kEight];
      widen<T>(z, sum[k]);
      widen<T>(d, dy[k]);
      widen<T>(factors, weight[k]);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        z[i] *= rstd;
        dweight[k][i] = fmaf(d[i], z[i], dweight[k][i]);
        product = fmaf(d[i] * factors[i], z[i], product);
      }
    }
    if (!p.dx) continue;
    const float mean = row_sum<Warps>(product, of_warps) / static_cast<float>(p.width);
#pragma unroll
    for (int k = 0; k < Chunks; ++k) {
      // From 16 bits again: as fp32 from before the sum a row would take twice the registers.
      hold(sum[k]);
      hold(dy[k]);
      hold(weight[k]);
      float z[kEight], d[kEight], factors[kEight], dx[kEight];
      widen<T>(z, sum[k]);
      widen<T>(d, dy[k]);
      widen<T>(factors, weight[k]);
      widen<T>(dx, dsum[k]);
#pragma unroll
      for (int i = 0; i < kEight; ++i) dx[i] = fmaf(rstd, fmaf(-z[i] * rstd, mean, d[i] * factors[i]), dx[i]);
      if (row.has(k)) store<T>(static_cast<uint4*>(p.dx) + row.at(k), dx);
    }
  }
  griddepcontrol_launch_dependents();
  if (p.dweight) store_part<Warps>(p.workspace, dweight, p.width);
}

// Eight columns of all CTAs' parts. Begins while the last of them are written (Note [Early kernels]).
template <typename T>
__global__ void __launch_bounds__(kAddingThreads) add_parts_kernel(const NormBackward p, int count) {
  const int column = static_cast<int>(threadIdx.x) % kEight, first = static_cast<int>(threadIdx.x) / kEight;
  const float* const parts = p.workspace + static_cast<std::int64_t>(blockIdx.x) * kEight + column;
  griddepcontrol_wait();
  float sum = 0;
#pragma unroll 8
  for (int i = first; i < count; i += kAtOnce) sum += parts[static_cast<std::int64_t>(i) * p.width];
#pragma unroll
  for (int distance = kEight; distance < kLanes; distance *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, distance);
  __shared__ float of_warps[kAddingThreads / kLanes][kEight];
  if (threadIdx.x % kLanes < kEight) of_warps[threadIdx.x / kLanes][column] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total[kEight] = {};
#pragma unroll
  for (int warp = 0; warp < kAddingThreads / kLanes; ++warp)
#pragma unroll
    for (int i = 0; i < kEight; ++i) total[i] += of_warps[warp][i];
  store<T>(static_cast<uint4*>(p.dweight) + blockIdx.x, total);
}

// Calls work.operator()<Warps, Chunks>() with the team's numbers.
template <std::size_t First = 0, typename Work>
void with_team(const NormTeam& team, const Work& work) {
  constexpr NormTeam kOwn = kNormTeams[First];
  if (team.columns() == kOwn.columns()) return work.template operator()<kOwn.warps, kOwn.chunks>();
  if constexpr (First + 1 < std::size(kNormTeams)) with_team<First + 1>(team, work);
}

template <typename T>
void forward(const Norm& p, cudaStream_t stream) {
  with_team(norm_team(p.width), [&]<int Warps, int Chunks>() {
    auto* const kernel = norm_forward_kernel<T, Warps, Chunks>;
    const auto ctas = static_cast<unsigned>((p.rows + teams<Warps>() - 1) / teams<Warps>());
    kernel<<<ctas, threads<Warps>(), 0, stream>>>(p);
  });
}

template <typename T>
void backward(const NormBackward& p, const NormBackwardPlan& plan, cudaStream_t stream) {
  const auto ctas = static_cast<unsigned>(plan.ctas);
  with_team(plan.team, [&]<int Warps, int Chunks>() {
    auto* const kernel = norm_backward_kernel<T, Warps, Chunks>;
    if (ctas > 0) kernel<<<ctas, threads<Warps>(), 0, stream>>>(p);
  });
  if (!p.dweight) return;
  const auto columns = static_cast<unsigned>(p.width / kEight);
  launch(plan.early, add_parts_kernel<T>, dim3(columns), kAddingThreads, 0, stream, p, static_cast<int>(ctas));
}

}  // namespace

void norm_forward(const Norm& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  if (p.storage == Storage::bf16)
    forward<bf16>(p, stream);
  else
    forward<fp16>(p, stream);
  check_launch("norm_forward");
}

void norm_backward(const NormBackward& p, const NormBackwardPlan& plan, cudaStream_t stream) {
  if (p.storage == Storage::bf16)
    backward<bf16>(p, plan, stream);
  else
    backward<fp16>(p, plan, stream);
  check_launch("norm_backward");
}

}  // namespace nsa::kernels
