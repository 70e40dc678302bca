// dK and dV of the merged backward pass (parts_backward.cuh) between the chunks of queries, and their end.
//
// Note [Sums over chunks]
// A tile of keys meets the queries of one chunk after the other. Its dK and dV stay in fp32 in the workspace in between
// (`sums`), in the order of the threads' registers, which but that kernel and those below none needs to know. The first
// piece of a list starts with them instead of zeros; further pieces leave theirs in `partials`, which
// finish_chunk_kernel adds in order before the next chunk begins. So every sum has a fixed order.
#pragma once

#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/selected/sm90_split/join.cuh"

namespace nsa::kernels::hopper {

// dK and dV of the pairs of a turn, see Note [Sums over chunks].
struct KeySums {
  float* sums = nullptr;      // [pairs, tiles of keys, kPartial]
  float* partials = nullptr;  // [pairs, slots, kPartial]
  int slots = 0;
};
// The slot of a list's second piece, the list being the offset-th entry of its pair's on: those of lists longer than a
// piece never meet.
__device__ inline std::int64_t second_slot(const KeySums& x, const Pieces& pieces, int pair, int offset, int part) {
  return static_cast<std::int64_t>(pair) * x.slots + offset / pieces.tokens * pieces.tiles_a_block + part;
}

// c as the threads hold it, in m16n8k16's layout: n, thread, 4 values.
template <int N>
__device__ inline void load_sums(float (&c)[N][4], const float* from) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float4 x = reinterpret_cast<const float4*>(from)[n * 128 + threadIdx.x];
    c[n][0] = x.x, c[n][1] = x.y, c[n][2] = x.z, c[n][3] = x.w;
  }
}
template <int N>
__device__ inline void store_sums(const float (&c)[N][4], float* to) {
#pragma unroll
  for (int n = 0; n < N; ++n)
    reinterpret_cast<float4*>(to)[n * 128 + threadIdx.x] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
}

// CTAs that add: shares of a tile, at least a kSumThreads-th of the tiles of keys, pairs.
struct Adders {
  int shares, tiles, pairs;

  [[nodiscard]] __host__ __device__ int count() const { return shares * tiles * pairs; }
};
// Adds what the further pieces of a chunk's lists have left to the sums. Few lists have any: CTA `cta` of the
// adders looks at every so many-th tile of keys, a thread a tile, and then does its share of those that have.
template <int Dk, int Dv>
__device__ inline void add_pieces(const AttentionForward& p, const QueryLists& lists, const Pieces& pieces,
                                  const KeySums& key_sums, const Adders& adders, int cta) {
  constexpr int kAtOnce = 8, kQuads = kPartial<Dk, Dv> / 4;
  struct Tile {
    int number, pieces;
    std::int64_t slot;
  };
  __shared__ Tile found[kSumThreads];
  __shared__ int count;
  const int tiles = p.selection.J * pieces.tiles_a_block;
  const int share = cta % adders.shares, first = cta / adders.shares % adders.tiles,
            pair = cta / adders.shares / adders.tiles;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const int own = first + static_cast<int>(threadIdx.x) * adders.tiles;
  if (own < tiles) {
    const KeyTile keys = list_tile(lists, p, pieces, Heads(p.Hq / p.G), 0, own, pair);
    const int* offsets = lists.offset(pair, 0, p.selection.J);
    if (keys.pieces > 1 && keys.first < keys.last)
      found[atomicAdd(&count, 1)] = {own, keys.pieces,
                                     second_slot(key_sums, pieces, pair, offsets[own / pieces.tiles_a_block] - *offsets,
                                                 own % pieces.tiles_a_block)};
  }
  __syncthreads();
  const int stride = pieces.tiles_a_block * kQuads;
  for (int i = 0; i < count; ++i) {
    const Tile tile = found[i];
    float4* const sums =
        reinterpret_cast<float4*>(key_sums.sums) + (static_cast<std::int64_t>(pair) * tiles + tile.number) * kQuads;
    for (int place = share * kSumThreads + static_cast<int>(threadIdx.x); place < kQuads;
         place += adders.shares * kSumThreads) {
      const float4* source = reinterpret_cast<const float4*>(key_sums.partials) + tile.slot * kQuads + place;
      float4 sum = sums[place];
      for (int piece = 1; piece < tile.pieces; piece += kAtOnce) {
        float4 more[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k, source += stride)
          if (piece + k < tile.pieces) more[k] = *source;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
          if (piece + k < tile.pieces)
            sum = {sum.x + more[k].x, sum.y + more[k].y, sum.z + more[k].z, sum.w + more[k].w};
      }
      sums[place] = sum;
    }
  }
}

// After a chunk: its pieces added, and dQ joined from its parts. In one launch, for adding waits for memory's latency,
// and joining for its rate.
template <typename T, int Dk, int Dv, bool Once>
__global__ void __launch_bounds__(JoinShape<Dk>::kThreads, JoinShape<Dk>::kCtasPerSm)
    finish_chunk_kernel(const AttentionBackward p, const QueryLists lists, const Pieces pieces, const KeySums key_sums,
                        const Adders adders, const Parts parts, const JoinRows rows) {
  static_assert(JoinShape<Dk>::kThreads == kSumThreads);
#if NSA_ON_HOPPER
  const int cta = static_cast<int>(blockIdx.x);
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  if (cta < adders.count())
    add_pieces<Dk, Dv>(p.forward, lists, pieces, key_sums, adders, cta);
  else
    join_parts<T, Dk, Once>(p, parts, rows, cta - adders.count());
#else
  __trap();
#endif
}

// dK and dV of a turn's pairs from the sums. Grid: (tiles of keys, pairs).
template <typename T, int Dk, int Dv>
__global__ void __launch_bounds__(128)
    store_sums_kernel(const AttentionBackward p, const Pieces pieces, const KeySums key_sums) {
#if NSA_ON_HOPPER
  const AttentionForward& f = p.forward;
  const int pair = blockIdx.y, b = pair / f.G, group = pair % f.G;
  const KeyTile keys = keys_of_tile(f, pieces, blockIdx.x);
  const int lane = threadIdx.x % 32, own_key = keys.first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const float* sums =
      key_sums.sums + (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * kPartial<Dk, Dv>;
  const auto store = [&]<int D>(const Rows& x, float scale, const float* from) {
    float c[D / 8][4];
    load_sums(c, from);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = own_key + 8 * half;
      T* const row = static_cast<T*>(x.data) + b * x.batch + key * x.token + group * x.head;
      store_row(key < keys.last ? row : nullptr, c, half, scale, false);
    }
  };
  store.template operator()<Dk>(p.dk, f.scale, sums);
  store.template operator()<Dv>(p.dv, 1.f, sums + kKeyTile * Dk);
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
