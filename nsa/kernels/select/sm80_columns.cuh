// The operands of the scores: keys on their way through shared memory, a warp's queries in its registers (Eq 8).
//
// Note [Transposed scores]
// The product is K_cmp Q^T: a row is a compressed key, a column one head of one token. Of every n8 tile a thread holds
// the columns 2i, 2i+1 (i = lane % 4), and which head stands in which column is ours to say: tile p of a quad of four
// tokens holds heads 2p, 2p+1 of the quad's token i in the columns 2i, 2i+1. So a thread holds all heads of token i,
// their sum needs no exchange, and heads are padded to an even number only (to the next number of pairs that is
// compiled). Where the registers do not allow it (16 heads of 192), lanes i and i+2 share a token and exchange once.
// Rows are ours to arrange, too: two m16 tiles are 32 keys, and a thread holds keys 4g .. 4g+3 of them (g = lane / 4).
#pragma once

#include <algorithm>

#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/select.hpp"
#include "nsa/kernels/select/best.cuh"

namespace nsa::kernels {

// A CTA of four warps shares the keys; each has columns of its own, in registers throughout.
// Trapezoid: any geometry; else selection block j has the keys 4j-1 .. 4j+3, weights 1,2,2,2,1, as 32/16/64 has.
template <typename Type, int Width, int HeadPairs, bool Trapezoid>
struct SelectTile {
  using T = Type;
  static constexpr int Dk = Width, kPairs = HeadPairs;
  static constexpr bool kTrapezoid = Trapezoid;
  static constexpr int kSplit = Dk == 192 && kPairs == 8 ? 2 : 1;  // lanes that share a token
  static constexpr int kQuads = Dk == 192 || kPairs == 8 ? 1 : 2;
  static constexpr int kQuadTokens = 4 / kSplit, kQuadTiles = kPairs / kSplit;
  static constexpr int kTiles = kQuads * kQuadTiles;    // n8 tiles of a warp
  static constexpr int kCtasPerSm = Dk >= 128 ? 2 : 3;  // per SM: what registers and shared memory allow
  static constexpr int kThreads = 128;
  static constexpr int kWarpTokens = kQuads * kQuadTokens, kTokens = 4 * kWarpTokens;
  static constexpr int kWarpColumns = (kTiles + 1) / 2 * 16, kColumns = 4 * kWarpColumns;
  static constexpr int kKeys = 64;  // of a step
  static_assert(kTokens <= 32);     // a lane looks at each
  static constexpr int kStages = Dk == 128 && !kTrapezoid ? 3 : 2;

  // Shared memory: the stages of keys; Q on its way to the registers, then the lists; what the trapezoid needs.
  static constexpr int kKeyBytes = kKeys * Dk * 2;
  static constexpr int kListsAt = kStages * kKeyBytes;
  static constexpr int kTrapezoidsAt = kListsAt + std::max(kColumns * Dk * 2, 8 * kList * kTokens);
  static constexpr int kPitch = 33, kPartials = 64;
  static constexpr int kBytes = kTrapezoidsAt + (kTrapezoid ? kTokens * (kPitch + kPartials) * 4 : 0);
};

// Starts the copies of 64 keys at a time; a thread copies the same 16 bytes of several rows.
template <typename Plan>
struct KeyCopies {
  static constexpr int kLanes = std::min(8, Plan::Dk / 8);  // of a row
  static constexpr int kRows = Plan::kThreads / kLanes;
  const char* from;
  std::uint32_t to;
  int left;  // keys of the tensor from this thread's first one on

  // The key in a row: rows g, g+8 of the two m16 tiles of 32 hold keys 4g, 4g+1 and 4g+2, 4g+3.
  __device__ static constexpr int key_in(int row) {
    return row / 32 * 32 + row % 8 * 4 + row / 8 % 2 + row / 16 % 2 * 2;
  }
  __device__ KeyCopies(std::uint32_t shared, const Select& p, int b, int group, int first) {
    const int row = threadIdx.x / kLanes, chunk = threadIdx.x % kLanes;
    first += key_in(row);
    from = static_cast<const char*>(p.k_cmp.data) +
           (b * p.k_cmp.batch + group * p.k_cmp.head + chunk * 8 + first * p.k_cmp.token) * 2;
    to = Tile<Plan::Dk>::at(shared, row, chunk);
    left = p.N - first;
  }
  __device__ void start(const Select& p, int stage) {
    const std::int64_t row_bytes = p.k_cmp.token * 2;
    const std::uint32_t row = to + stage * Plan::kKeyBytes;
#pragma unroll
    for (int r = 0; r < Plan::kKeys; r += kRows) {
      const bool valid = key_in(r) < left;
      const char* source = from + key_in(r) * row_bytes;
#pragma unroll
      for (int c = 0; c < Plan::Dk / 8 / kLanes; ++c)
        cp_async(row + r * Plan::Dk * 2 + c * 128, valid ? source + c * 128 : p.k_cmp.data, valid);
    }
    from += Plan::kKeys * row_bytes;
    left -= Plan::kKeys;
  }
};

// A warp's columns: fragments of Q, and of the softmax maximum + log2(sum): p = 2^(q.k * scale - offset). Rounding that
// to fp32 costs no more than the rounding of q.k did, and saves registers that Q fills.
template <typename Plan>
struct Columns {
  std::uint32_t q[Plan::Dk / 16][Plan::kWarpColumns / 16][4];
  float offset[Plan::kTiles][2];

  // What stands in a column of the block; padding is not valid.
  struct Source {
    int t, head;
    bool valid;
    __device__ Source(const Select& p, int group, int t0, int column) {
      const int warp = column / Plan::kWarpColumns, tile = column % Plan::kWarpColumns / 8, i = column % 8 / 2;
      const int quad = tile / Plan::kQuadTiles,
                pair = tile % Plan::kQuadTiles + i / Plan::kQuadTokens * Plan::kQuadTiles;
      const int heads = p.Hq / p.G, own = pair * 2 + column % 2;
      t = t0 + warp * Plan::kWarpTokens + quad * Plan::kQuadTokens + i % Plan::kQuadTokens;
      head = group * heads + own;
      valid = tile < Plan::kTiles && own < heads && t < p.S;
    }
  };

  __device__ static void start_copies(std::uint32_t queries, const Select& p, int b, int group, int t0) {
    constexpr int kLanes = KeyCopies<Plan>::kLanes, kRows = KeyCopies<Plan>::kRows;
    const int chunk = threadIdx.x % kLanes;
    const char* data = static_cast<const char*>(p.q.data);
#pragma unroll 2
    for (int column = threadIdx.x / kLanes; column < Plan::kColumns; column += kRows) {
      const Source source(p, group, t0, column);
      const char* from = data + (b * p.q.batch + source.t * p.q.token + source.head * p.q.head + chunk * 8) * 2;
      const std::uint32_t to = Tile<Plan::Dk>::at(queries, column, chunk);
#pragma unroll
      for (int c = 0; c < Plan::Dk / 8 / kLanes; ++c)
        cp_async(to + c * 128, source.valid ? from + c * 128 : data, source.valid);
    }
  }
  // Padding and rows that see nothing have p = 0.
  __device__ static void stage_offsets(float* offsets, const Select& p, int b, int group, int t0) {
    for (int column = threadIdx.x; column < Plan::kColumns; column += Plan::kThreads) {
      const Source source(p, group, t0, column);
      float2 stats{0, 0};
      if (source.valid)
        stats = reinterpret_cast<const float2*>(
            p.stats)[(static_cast<std::int64_t>(b) * p.Hq + source.head) * p.S + source.t];
      offsets[column] = stats.y == 0 ? INFINITY : stats.x + log2f(stats.y);
    }
  }
  __device__ void load(std::uint32_t queries, const float* offsets) {
    const int column = threadIdx.x / 32 * Plan::kWarpColumns;
#pragma unroll
    for (int k = 0; k < Plan::Dk / 16; ++k)
#pragma unroll
      for (int pair = 0; pair < Plan::kWarpColumns / 16; ++pair)
        Tile<Plan::Dk>::b(q[k][pair], queries, column + pair * 16, k);
#pragma unroll
    for (int tile = 0; tile < Plan::kTiles; ++tile)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        offset[tile][e] = offsets[column + tile * 8 + threadIdx.x % 4 * 2 + e];
      }
  }

  // The probabilities of 32 keys, summed over the heads of the token: own[quad][0..3] of keys 4g .. 4g+3.
  __device__ void probabilities(float (&own)[Plan::kQuads][4], std::uint32_t keys, int row, float scale) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float c[Plan::kTiles][4] = {};
#pragma unroll
      for (int k = 0; k < Plan::Dk / 16; ++k) {
        std::uint32_t a[4];
        Tile<Plan::Dk>::a(a, keys, row + half * 16, k);
#pragma unroll
        for (int tile = 0; tile < Plan::kTiles; ++tile)
          mma<typename Plan::T>(c[tile], a, q[k][tile / 2][tile % 2 * 2], q[k][tile / 2][tile % 2 * 2 + 1]);
      }
#pragma unroll
      for (int quad = 0; quad < Plan::kQuads; ++quad)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float sum = 0;
#pragma unroll
          for (int x = 0; x < Plan::kQuadTiles * 2; ++x) {
            const int tile = quad * Plan::kQuadTiles + x / 2, e = x % 2;
            sum += exp2_fast(fmaf(c[tile][r * 2 + e], scale, -offset[tile][e]));
          }
          if (Plan::kSplit == 2) sum += __shfl_xor_sync(kWarp, sum, 2);
          own[quad][half * 2 + r] = sum;
        }
    }
  }
};

}  // namespace nsa::kernels
