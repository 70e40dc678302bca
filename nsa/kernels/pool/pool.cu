// A thread owns eight columns of one row of the output and gathers what they are made of, in ascending order: nothing
// is written twice and no sum depends on the order in which threads run. Forward, neighbouring blocks read the same
// tokens; they run side by side, so the second reading comes from the cache. The two shapes of the forward kernel add
// in the same order: a mean is the same bits in a long and in a short sequence.
#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/plan/pool_plan.hpp"
#include "nsa/kernels/pool.hpp"

namespace nsa::kernels {

namespace {

constexpr int kThreads = kPoolThreads;
static_assert(kEight == kPoolColumns);
// Few outputs: every SM gets some, and a thread asks for all tokens of a usual block at once.
constexpr int kFewThreads = 32, kFewAtOnce = 32, kAtOnce = 8;
constexpr int kMostBatches = 65535;  // of a grid's second dimension

// What thread i of a batch entry and tensor (the grid's y and z) owns: there are rows * G * D/8 of them.
struct Place {
  int row, group, chunk;
  __device__ Place(unsigned i, int G, int D) {
    const unsigned chunks = static_cast<unsigned>(D) / kEight, groups = static_cast<unsigned>(G);
    chunk = static_cast<int>(i % chunks);
    group = static_cast<int>(i / chunks % groups);
    row = static_cast<int>(i / chunks / groups);
  }
};

template <typename T, int Threads, int AtOnce>
__global__ void __launch_bounds__(Threads) pool_forward_kernel(const __grid_constant__ Pool p) {
  const Pool::Tensor& tensor = p.tensors[blockIdx.z];
  const Place at(blockIdx.x * Threads + threadIdx.x, p.G, tensor.D);
  if (at.row >= p.N) return;
  const int start = p.block_start ? p.block_start[at.row] : at.row * p.geometry.d;
  for (int b = static_cast<int>(blockIdx.y); b < p.B; b += static_cast<int>(gridDim.y)) {
    float sum[kEight] = {};
    for (int t = 0; t < p.geometry.l; t += AtOnce) {
      // The conditions, also where they always hold, keep the loads together: without them the compiler puts additions
      // between the loads to save registers, and only two or three are on their way at a time.
      uint4 raw[AtOnce];
#pragma unroll
      for (int k = 0; k < AtOnce; ++k)
        if (t + k < p.geometry.l) raw[k] = *chunk_of<T>(tensor.x, b, start + t + k, at.group, at.chunk);
#pragma unroll
      for (int k = 0; k < AtOnce; ++k) {
        if (t + k >= p.geometry.l) break;
        float x[kEight];
        load<T>(x, &raw[k]);
#pragma unroll
        for (int i = 0; i < kEight; ++i) sum[i] += x[i];
      }
    }
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum[i] /= static_cast<float>(p.geometry.l);
    store<T>(chunk_of<T>(tensor.y, b, at.row, at.group, at.chunk), sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) pool_backward_kernel(const __grid_constant__ Pool p) {
  const Pool::Tensor& tensor = p.tensors[blockIdx.z];
  const Place at(blockIdx.x * kThreads + threadIdx.x, p.G, tensor.D);
  if (at.row >= p.S) return;
  const int t = at.row - (p.packed.first_token ? p.packed.first_token[at.row] : 0);  // from the document's start
  const int first_block = p.packed.first_block ? p.packed.first_block[at.row] : 0;
  const int blocks = p.document_blocks ? p.document_blocks[at.row] : p.N;
  // Block i holds t when i*d <= t < i*d + l.
  const int first = t < p.geometry.l ? 0 : (t - p.geometry.l) / p.geometry.d + 1;
  const int last = min(blocks - 1, t / p.geometry.d);
  for (int b = static_cast<int>(blockIdx.y); b < p.B; b += static_cast<int>(gridDim.y)) {
    float sum[kEight] = {};
    for (int block = first; block <= last; ++block) {
      float dy[kEight];
      load<T>(dy, chunk_of<T>(tensor.y, b, first_block + block, at.group, at.chunk));
#pragma unroll
      for (int i = 0; i < kEight; ++i) sum[i] += dy[i];
    }
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum[i] /= static_cast<float>(p.geometry.l);
    store<T>(chunk_of<T>(tensor.x, b, at.row, at.group, at.chunk), sum);
  }
}

// Of all entries and tensors, for so many rows of an entry's output.
dim3 grid_of(const Pool& p, int rows, int threads) {
  return dim3(static_cast<unsigned>((pool_threads(p, rows) + threads - 1) / threads),
              static_cast<unsigned>(std::min(p.B, kMostBatches)), static_cast<unsigned>(p.count));
}

template <typename T>
void forward(const Pool& p, cudaStream_t stream) {
  if (pools_few(p))
    launch(false, pool_forward_kernel<T, kFewThreads, kFewAtOnce>, grid_of(p, p.N, kFewThreads), kFewThreads, 0, stream,
           p);
  else
    launch(false, pool_forward_kernel<T, kThreads, kAtOnce>, grid_of(p, p.N, kThreads), kThreads, 0, stream, p);
}

}  // namespace

void pool_forward(const Pool& p, cudaStream_t stream) {
  if (p.B == 0 || p.N == 0 || p.count == 0) return;
  if (p.storage == Storage::bf16)
    forward<bf16>(p, stream);
  else
    forward<fp16>(p, stream);
  check_launch("pool_forward");
}

void pool_backward(const Pool& p, cudaStream_t stream) {
  if (p.B == 0 || p.S == 0 || p.count == 0) return;
  const dim3 grid = grid_of(p, p.S, kThreads);
  if (p.storage == Storage::bf16)
    launch(false, pool_backward_kernel<bf16>, grid, kThreads, 0, stream, p);
  else
    launch(false, pool_backward_kernel<fp16>, grid, kThreads, 0, stream, p);
  check_launch("pool_backward");
}

}  // namespace nsa::kernels
