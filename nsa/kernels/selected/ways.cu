#include "nsa/kernels/selected/ways.hpp"

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/heads.cuh"

namespace nsa::kernels::hopper {

namespace {

constexpr int kThreads = 512, kRows = 64;  // rows (token, head) of a tile

struct Costs {
  std::int64_t joint_tile, joint_start, part;
};

// A CTA a chunk. What is counted are integers: their sums have no order.
__global__ void __launch_bounds__(kThreads)
    ways_kernel(const AttentionForward p, const Ways ways, const int words, const Costs costs) {
  extern __shared__ unsigned bits[];  // [sampled tile][words]: of every block, whether a token of the tile chose it
  __shared__ int walked, parts;       // blocks of the tiles; (row, block) pairs
  const Heads heads(p.Hq / p.G);
  const int n = p.geometry.n, tokens = (kRows + heads.h - 1) / heads.h + 1;  // of a tile, at most
  const int chunk = ways.first + static_cast<int>(blockIdx.x) * ways.chunk;
  const int begin = ways.by_own ? chunk : chunk - (ways.first / 2 + kRows - 1) / kRows * kRows;
  const int end = ways.by_own ? min(chunk + ways.chunk, p.S) : chunk;
  const int tiles = (end - begin + kRows - 1) / kRows * heads.h;  // of a pair (batch entry, group)
  for (int i = threadIdx.x; i < kSampledTiles * words; i += kThreads) bits[i] = 0;
  if (threadIdx.x == 0) walked = parts = 0;
  __syncthreads();

  int own_walked = 0, own_parts = 0;
  for (int i = threadIdx.x; i < kSampledTiles * tokens * n; i += kThreads) {
    const int sample = i / (tokens * n), place = i % n;
    const int tile = static_cast<int>((2 * sample + 1) * static_cast<std::int64_t>(tiles) * p.B * p.G /
                                      (2 * kSampledTiles));  // of all pairs'
    const int pair = tile / tiles, b = pair / p.G, group = pair % p.G;
    const int first_row = begin * heads.h + tile % tiles * kRows, t = heads.token(first_row) + i / n % tokens;
    const int rows = min((t + 1) * heads.h, first_row + kRows) - max(t * heads.h, first_row);
    if (rows <= 0 || t >= end) continue;
    const int* row = p.blocks + ((static_cast<std::int64_t>(b) * p.S + t) * p.G + group) * n;
    const int position = t - (p.packed.first_token ? p.packed.first_token[t] : 0), number = row[place];
    if (number < 0 || number > position / p.geometry.l_sel) continue;
    bool repeated = false;
    for (int before = 0; before < place; ++before) repeated |= row[before] == number;
    if (repeated) continue;
    const int block = number + (p.selection.document_blocks ? p.selection.document_blocks[t] : 0);
    const unsigned bit = 1u << block % 32;
    own_walked += (atomicOr(&bits[sample * words + block / 32], bit) & bit) == 0;
    own_parts += rows;
  }
  atomicAdd(&walked, own_walked);
  atomicAdd(&parts, own_parts);
  __syncthreads();
  if (threadIdx.x > 0) return;
  const std::int64_t joint = walked * costs.joint_tile + kSampledTiles * costs.joint_start;
  ways.jointly[blockIdx.x] = joint * kRows < parts * costs.part;
}

}  // namespace

void choose_ways(const AttentionForward& p, const Ways& ways, const Limits& limits, cudaStream_t stream) {
  const int chunks = ways.chunks(p.S), words = (p.selection.J + 31) / 32;
  if (chunks == 0 || p.B * p.G == 0) return;
  const int bytes = kSampledTiles * words * static_cast<int>(sizeof(unsigned));
  cudaFuncSetAttribute(ways_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const Costs costs{limits.joint_tile_cost, limits.joint_start_cost,
                    ways.by_own ? limits.merged_part_cost : limits.part_cost};
  launch(false, ways_kernel, chunks, kThreads, bytes, stream, p, ways, words, costs);
  check_launch("choose_ways");
}

}  // namespace nsa::kernels::hopper
