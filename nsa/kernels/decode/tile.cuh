// One query of a group's heads against a tile of keys, by a CTA: its weights, and its weighted values.
//
//   16 rows = heads of the group (padded)        8 warps, 16 keys each: S = Q K^T, weights
//   up to 128 keys                               8 warps, 16 columns of V each: O = P V
//
// Note [Whole powers]
// Weights are counted from the row's maximum rounded up to a whole number k: 2^(x - k) = 2^(x - floor(x)) 2^(floor(x) -
// k). So what a tile leaves is a power of two off what any other tile would leave, and taking tiles together rounds
// nothing: blocks whose keys score alike get the same bits wherever they lie, and ties are ties.
#pragma once

#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/plan/decode_layout.hpp"

namespace nsa::kernels {

// 2^e of a whole e <= 0; below the smallest normal number, and of NaN, 0. 1.5 * 2^23 puts a whole number into the
// lowest bits, of which the shift leaves nine.
__device__ inline float whole_power(float e) {
  constexpr float kWhole = 12582912.f;
  return __int_as_float(
      static_cast<int>(static_cast<unsigned>(__float_as_int(fmaxf(e, -127.f) + (kWhole + 127.f))) << 23));
}
// 2^(x - origin), x <= origin, origin whole. Of -inf 0, of NaN and of infinity NaN. Without a branch: a thread has
// eight.
__device__ inline float weight_of(float x, float origin) {
  const float seen = x == -INFINITY ? -3e38f : x, whole = floorf(seen);
  return exp2_fast(seen - whole) * whole_power(whole - origin);
}

// Rows of keys and values, and how many.
struct DecodeKeys {
  const void *k, *v;
  std::int64_t k_stride, v_stride;  // elements
  int count;
};
// Those from row `first` on, `count` at most, of [B,S,G,D].
template <typename T>
__device__ inline DecodeKeys keys_from(const Rows& k, const Rows& v, int b, int group, int first, int end) {
  const auto at = [&](const Rows& rows) {
    return static_cast<const T*>(rows.data) + b * rows.batch + first * rows.token + group * rows.head;
  };
  return {at(k), at(v), k.token, v.token, min(kDecodeKeys, end - first)};
}

// A tile of a pair's compressed keys.
template <typename T>
__device__ inline DecodeKeys compressed_keys(const Decode& p, const DecodeCuts& cuts, int b, int group, int tile) {
  const int first = tile * cuts.tile_keys();
  return keys_from<T>(p.k_cmp, p.v_cmp, b, group, first, min(p.N, first + cuts.tile_keys()));
}
// The largest of a warp's numbers, NaN and -0 aside: floats order as their bits, the negative ones backwards.
__device__ inline float warp_max(float x) {
  const auto turned = [](int bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; };
  return __int_as_float(turned(__reduce_max_sync(0xffffffffu, turned(__float_as_int(x)))));
}
// Where the scores of block `place` of a tile stand; tile_blocks: of the next tile's first one.
__device__ inline std::int64_t score_row(const DecodeCuts& cuts, int tile, int place) {
  return (static_cast<std::int64_t>(tile) * (cuts.tile_blocks + 1) + place) * kDecodeHeads;
}

template <typename T, int Dk, int Dv>
struct DecodeTile {
  static constexpr int kHeads = kDecodeHeads;

  // A thread's share in a copy of up to Rows rows. Eight lanes a row at most: from row to row the swizzle stays, so
  // that both addresses grow by constants.
  template <int D, int Rows = kDecodeKeys>
  struct Copy {
    static constexpr int kChunks = D / 8, kLanes = kChunks < 8 ? kChunks : 8, kAtOnce = kDecodeThreads / kLanes;
    static constexpr int kSteps = (Rows + kAtOnce - 1) / kAtOnce;
    static_assert(kAtOnce % 8 == 0 && kChunks % kLanes == 0);
    const T* source;
    std::int64_t step;  // elements
    std::uint32_t place;
    int row = static_cast<int>(threadIdx.x) / kLanes, count;

    __device__ Copy(const char* to, const void* from, std::int64_t stride, int rows)
        : step(kAtOnce * stride), count(rows) {
      const int chunk = static_cast<int>(threadIdx.x) % kLanes;
      source = static_cast<const T*>(from) + row * stride + chunk * 8;
      place = Tile<D>::at(shared_address(to), row, chunk);
    }
    // Brings the rows as far as L2, where whoever writes them now is seen: all lanes' lines of a row are two or three.
    __device__ void bring() const {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (row + i * kAtOnce >= count) break;
        if (threadIdx.x % kLanes == 0)
#pragma unroll
          for (int c = 0; c < kChunks; c += 8) prefetch_line(source + i * step + c * 8);
      }
    }
    // Asks for the rows, and for zeros up to a multiple of 16 rows. A group of copies, with what came before.
    __device__ void ask() {
      const int filled = (count + 15) / 16 * 16;
#pragma unroll
      for (int i = 0; i < kSteps; ++i, source += step) {
        if (row + i * kAtOnce >= filled) break;
#pragma unroll
        for (int c = 0; c < kChunks; c += kLanes)
          cp_async(place + static_cast<std::uint32_t>(i * kAtOnce * Tile<D>::kRowBytes + c * 16), source + c * 8,
                   row + i * kAtOnce < count);
      }
    }
  };
  // Of the queries of a group: with zeros for heads that it has not.
  __device__ static Copy<Dk, kHeads> queries(const char* shared, const Decode& p, const DecodeCuts& cuts, int b,
                                             int group) {
    const T* from = static_cast<const T*>(p.q.data) + b * p.q.batch + group * cuts.heads * p.q.head;
    return {shared + DecodeShared::kQueries, from, p.q.head, cuts.heads};
  }
  // Weights between shared memory and memory, where they lie as in shared memory: 16 bytes a thread.
  static_assert(kDecodeHeads * kDecodeKeys / 8 == kDecodeThreads);
  __device__ static void store_weights(const char* shared, uint4* to) {
    to[threadIdx.x] = reinterpret_cast<const uint4*>(shared + DecodeShared::kWeights)[threadIdx.x];
  }
  __device__ static void load_weights(char* shared, const uint4* from) {  // a group of copies
    cp_async(shared_address(shared + DecodeShared::kWeights) + threadIdx.x * 16, from + threadIdx.x, true);
    cp_async_commit();
  }

  // Makes the tile's weights, in the storage type for multiply() and in fp32, [16][DecodeShared::kWeightRow]; 0 beyond
  // the tile's keys. Leaves `stats` [16] in memory. `factor`: log2(e) / sqrt(Dk). Waits for all copies but the last
  // group's, and ends with all threads together.
  __device__ static void weigh(char* shared, const DecodeShared& at, int count, float factor, float2* stats) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31;
    const int row = lane / 4, first = warp * 16;
    float* const maxima = reinterpret_cast<float*>(shared + DecodeShared::kSums);  // [8][16]
    float* const sums = maxima + kDecodeWarps * kHeads;                            // [8][16]
    cp_async_wait<1>();
    __syncthreads();

    float x[2][4] = {};
    if (first < count) {
      float odd[2][4] = {};  // two chains of products are half as long
#pragma unroll
      for (int k = 0; k < Dk / 16; k += 2) {
        std::uint32_t a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Tile<Dk>::a(a[i], shared_address(shared + DecodeShared::kQueries), 0, k + i);
          Tile<Dk>::b(b[i], shared_address(shared + at.keys), first, k + i);
        }
        mma<T>(x[0], a[0], b[0][0], b[0][1]);
        mma<T>(x[1], a[0], b[0][2], b[0][3]);
        mma<T>(odd[0], a[1], b[1][0], b[1][1]);
        mma<T>(odd[1], a[1], b[1][2], b[1][3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[n][e] += odd[n][e];
    }
    float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + n * 8 + lane % 4 * 2 + e % 2;
        x[n][e] = key < count ? x[n][e] * factor : -INFINITY;
        highest[e / 2] = fmaxf(highest[e / 2], x[n][e]);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = quad_max(highest[half]);
      if (lane % 4 == 0) maxima[warp * kHeads + row + half * 8] = highest[half];
    }
    __syncthreads();

    const float origin[2] = {origin_in(maxima, row), origin_in(maxima, row + 8)};
    char* const weights = shared + DecodeShared::kWeights;
    float* const wide = reinterpret_cast<float*>(shared + DecodeShared::kWideWeights);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = row + half * 8;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float w0 = weight_of(x[n][half * 2], origin[half]), w1 = weight_of(x[n][half * 2 + 1], origin[half]);
        sum += w0 + w1;
        const int key = first + n * 8 + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(weights + Tile<kDecodeKeys>::at(0, own, key / 8) + key % 8 * 2) =
            pack<T>(w0, w1);
        *reinterpret_cast<float2*>(wide + own * DecodeShared::kWeightRow + key) = make_float2(w0, w1);
      }
      sum = quad_sum(sum);
      if (lane % 4 == 0) sums[warp * kHeads + own] = sum;
    }
    __syncthreads();
    if (warp == 0 && lane % 4 == 0)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) sum += sums[w * kHeads + row + half * 8];
        stats[row + half * 8] = make_float2(origin[half], sum);
      }
  }

  // The weights in shared memory times the tile's values: leaves the sums `o` [h][Dv] in memory. Waits for all copies.
  __device__ static void multiply(char* shared, const DecodeShared& at, int count, int heads, float* o) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) & 31, row = lane / 4;
    const std::uint32_t weights = shared_address(shared + DecodeShared::kWeights);
    cp_async_wait<0>();
    __syncthreads();
    for (int n = warp; n < Dv / 16; n += kDecodeWarps) {
      float c[2][4] = {};
      for (int k = 0; k * 16 < count; ++k) {
        std::uint32_t a[4], b[4];
        Tile<kDecodeKeys>::a(a, weights, 0, k);
        Tile<Dv>::b_transposed(b, shared_address(shared + at.values), k * 16, n);
        mma<T>(c[0], a, b[0], b[1]);
        mma<T>(c[1], a, b[2], b[3]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (row + half * 8 < heads)
            *reinterpret_cast<float2*>(o + (row + half * 8) * Dv + n * 16 + j * 8 + lane % 4 * 2) =
                make_float2(c[j][half * 2], c[j][half * 2 + 1]);
    }
  }

 private:
  // A row's maximum over the warps, rounded up; 0 where there is none.
  __device__ static float origin_in(const float* maxima, int row) {
    float highest = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) highest = fmaxf(highest, maxima[w * kHeads + row]);
    return origin_of(ceilf(highest));
  }
};

}  // namespace nsa::kernels
