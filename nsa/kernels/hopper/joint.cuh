// The selected branch for neighbouring queries together: 64 rows (token, head) walk through the blocks that any of
// their tokens chose, each row with a mask of its own.
//
// Against parts.cuh: nothing is written in between and no list is needed, but a row also computes with blocks that only
// its neighbours chose. So it pays where the choices are few (short sequences) or alike (a trained model's neighbours
// share most blocks; ways.hpp). The same walk gives the forward pass (o, statistics) and dQ.
//
//   block of one warpgroup; Q (and dO) [64 rows]; two stages of K, V of 64 keys; for each token of the tile a bit a
//   block
//
// The next tile's scores stand in the tensor cores' queue behind this tile's result: Note [Scores ahead] in dkv.cuh.
// Then the forward pass needs a tile's V a step later than its K, and asks for it a step later: what it asks for is
// free at the step's first barrier and wanted at the next step's, so that copies are always on their way and one
// barrier a step suffices. The backward pass wants V with K, and K twice: K's stage is free in the middle of a step.
#pragma once

#include "nsa/kernels/attention/softmax.cuh"
#include "nsa/kernels/common/tile.cuh"
#include "nsa/kernels/hopper/hopper.hpp"
#include "nsa/kernels/hopper/rows.cuh"
#include "nsa/kernels/hopper/slab.cuh"
#include "nsa/kernels/hopper/ways.hpp"

namespace nsa::kernels::hopper {

template <int Dk, int Dv, bool Backward>
struct JointShape {
  static constexpr int kThreads = 128, kRows = 64, kOut = Backward ? Dk : Dv;
  static constexpr int kBlocks = Dk + Dv > 128 ? 2 : 3;  // a multiprocessor, as shared memory and registers allow
  using Q = Slab<kRows, Dk>;
  using O = Slab<kRows, Dv>;      // dO
  using Out = Slab<kRows, kOut>;  // leaves through Q's place
  using K = Slab<kKeyTile, Dk>;
  using V = Slab<kKeyTile, Dv>;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;
  static constexpr int kTileBytes = 1024 + Q::kBytes + (Backward ? O::kBytes : 0) + 2 * kStageBytes;

  // Bits are kept in words of 32 blocks; `blocks` selection blocks in all, h heads a group.
  __host__ __device__ static int tokens(int h) { return (kRows + h - 1) / h + 1; }
  __host__ __device__ static int words(int blocks) { return (blocks + 31) / 32; }
  static int shared_bytes(int blocks, int h) {
    return kTileBytes + (words(blocks) * (tokens(h) + 1) + blocks) * static_cast<int>(sizeof(int));
  }
};

// The tile's tokens, what each of them chose, and the blocks that any of them did.
struct JointChoice {
  unsigned* chosen;  // [tokens][words]
  unsigned* any;     // [words]
  int* blocks;       // ascending, `count` of them
  int words;

  __device__ bool has(int local_token, int block) const {
    return chosen[local_token * words + block / 32] >> block % 32 & 1;
  }
  // By all threads of the block; returns how many blocks there are.
  template <int Threads>
  __device__ int collect(const AttentionForward& p, int b, int group, int first_t, int last_t) const {
    __shared__ int count;
    const int tokens = last_t - first_t + 1, n = p.geometry.n;
    for (int i = threadIdx.x; i < tokens * words; i += Threads) chosen[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < tokens * n; i += Threads) {
      const int local = i / n, t = first_t + local;
      const int number = p.blocks[((static_cast<std::int64_t>(b) * p.S + t) * p.G + group) * n + i % n];
      const int position = t - (p.packed.first_token ? p.packed.first_token[t] : 0);
      if (number < 0 || number > position / p.geometry.l_sel) continue;
      const int block = number + (p.selection.document_blocks ? p.selection.document_blocks[t] : 0);
      atomicOr(&chosen[local * words + block / 32], 1u << block % 32);
    }
    __syncthreads();
    for (int word = threadIdx.x; word < words; word += Threads) {
      unsigned all = 0;
      for (int local = 0; local < tokens; ++local) all |= chosen[local * words + word];
      any[word] = all;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      int before = 0;
      for (int word = 0; word < words; ++word) {
        const unsigned bits = any[word];
        if (bits >> lane & 1) blocks[before + __popc(bits & ((1u << lane) - 1))] = word * 32 + lane;
        before += __popc(bits);
      }
      if (lane == 0) count = before;
    }
    __syncthreads();
    return count;
  }
};

// A tile of keys: first .. last - 1, of a block that any token chose.
struct JointKeys {
  int block = 0, first = 0, last = 0;
};

// `out`: o, or dq. `dout` and `delta` are for the backward pass. `ways`: by default all rows are computed.
template <typename T, int Dk, int Dv, bool Backward>
__global__ void __launch_bounds__(128, JointShape<Dk, Dv, Backward>::kBlocks)
    joint_kernel(const AttentionForward p, const Rows dout, const float* delta, const Rows out, const Ways ways) {
#if NSA_ON_HOPPER
  using Shape = JointShape<Dk, Dv, Backward>;
  constexpr int kTiles = kKeyTile / 8, kOut = Shape::kOut;
  const Heads heads(p.Hq / p.G);
  const int b = blockIdx.y / p.G, group = blockIdx.y % p.G, rows = p.S * heads.h;
  // The most blocks first.
  for (int first_row = ((rows - 1) / Shape::kRows - static_cast<int>(blockIdx.x)) * Shape::kRows; first_row >= 0;
       first_row -= static_cast<int>(gridDim.x) * Shape::kRows) {
    const int first_t = heads.token(first_row), last_t = heads.token(min(first_row + Shape::kRows, rows) - 1);
    if (ways.jointly && first_t >= ways.first && !ways.jointly[(first_t - ways.first) / ways.chunk]) continue;
    extern __shared__ char shared[];
    __shared__ int q_offset[Shape::kRows], o_offset[Shape::kRows], out_offset[Shape::kRows];
    const std::uint32_t start = shared_address(shared), q_tile = (start + 1023) & ~1023u;
    const std::uint32_t o_tile = q_tile + Shape::Q::kBytes, stages = o_tile + (Backward ? Shape::O::kBytes : 0);
    const auto k_tile = [&](int stage) { return stages + stage * Shape::kStageBytes; };
    const auto v_tile = [&](int stage) { return k_tile(stage) + Shape::K::kBytes; };

    if (threadIdx.x < Shape::kRows) {
      const Row row = RowOrder{heads, nullptr, nullptr, 0, rows}.row(first_row + static_cast<int>(threadIdx.x));
      const auto offset = [&](const Rows& x) {
        return offset_of(row, static_cast<int>(x.token / 8), static_cast<int>(x.head / 8));
      };
      q_offset[threadIdx.x] = offset(p.q);
      o_offset[threadIdx.x] = Backward ? offset(dout) : -1;
      out_offset[threadIdx.x] = offset(out);
    }
    __syncthreads();
    Shape::Q::template gather<Shape::kThreads>(q_tile, group_rows<T>(p.q, b, group, heads.h), q_offset);
    if constexpr (Backward)
      Shape::O::template gather<Shape::kThreads>(o_tile, group_rows<T>(dout, b, group, heads.h), o_offset);

    unsigned* const bits = reinterpret_cast<unsigned*>(shared + Shape::kTileBytes);
    const int words = Shape::words(p.selection.J), tokens = Shape::tokens(heads.h);
    const JointChoice choice{bits, bits + tokens * words, reinterpret_cast<int*>(bits + (tokens + 1) * words), words};
    const int parts = (p.geometry.l_sel + kKeyTile - 1) / kKeyTile;  // tiles of keys a block
    const int tiles = choice.collect<Shape::kThreads>(p, b, group, first_t, last_t) * parts;
    const auto keys_of = [&](int tile) {
      JointKeys x;
      if (tile >= tiles) return x;
      x.block = choice.blocks[tile / parts];
      const int first = p.selection.starts ? p.selection.starts[x.block] : x.block * p.geometry.l_sel;
      const int last = p.selection.ends ? p.selection.ends[x.block] : min(p.S, first + p.geometry.l_sel);
      x.first = first + tile % parts * kKeyTile;
      x.last = min(x.first + kKeyTile, last);
      return x;
    };
    const T* k = static_cast<const T*>(p.k.data) + b * p.k.batch + group * p.k.head;
    const T* v = static_cast<const T*>(p.v.data) + b * p.v.batch + group * p.v.head;
    const auto load_k = [&](int tile, const JointKeys& x) {
      if (tile < tiles)
        Shape::K::template load<Shape::kThreads>(k_tile(tile % 2), k, static_cast<int>(p.k.token), x.first, x.last);
    };
    const auto load_v = [&](int tile, const JointKeys& x) {
      if (tile < tiles)
        Shape::V::template load<Shape::kThreads>(v_tile(tile % 2), v, static_cast<int>(p.v.token), x.first, x.last);
    };
    JointKeys keys = keys_of(0), next = keys_of(1);
    constexpr int kAheadV = Backward ? 1 : 0;  // tiles, when those of K are one ahead
    load_k(0, keys);
    if constexpr (Backward) load_v(0, keys);
    commit_copies();
    load_k(1, next);
    load_v(kAheadV, Backward ? next : keys);
    commit_copies();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_row = warp * 16 + lane / 4;
    const float factor = p.scale * kLog2E;
    int t[2];
    std::int64_t statistics_at[2];
    bool sees_keys[2] = {};
    RunningSoftmax softmax;
    float origin[2], inverse[2], own_delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(first_row + own_row + 8 * half, rows - 1);
      t[half] = heads.token(row);
      statistics_at[half] =
          (static_cast<std::int64_t>(b) * p.Hq + group * heads.h + heads.head(row, t[half])) * p.S + t[half];
      if constexpr (Backward) {
        const float2 stats = reinterpret_cast<const float2*>(p.stats)[statistics_at[half]];
        origin[half] = stats.y == 0.f ? 0.f : stats.x;
        inverse[half] = normaliser(stats.y);
        own_delta[half] = delta[statistics_at[half]];
      }
    }

    float result[kOut / 8][4] = {}, s[kTiles][4], dp[kTiles][4];
    std::uint32_t left[kKeyTile / 16][4];  // P or dS of one tile
    const auto start_scores = [&](int tile) {
      product_of_columns<T, Dk / 16>(s, typename Shape::Q(), q_tile, typename Shape::K(), k_tile(tile % 2));
      products_commit();
      if constexpr (Backward) {
        product_of_columns<T, Dv / 16>(dp, typename Shape::O(), o_tile, typename Shape::V(), v_tile(tile % 2));
        products_commit();
      }
    };
    const auto start_result = [&](int tile) {
#pragma unroll
      for (int kk = 0; kk < kKeyTile / 16; ++kk)
        Product<T, kOut>::values(
            result, left[kk], Backward ? Shape::K::rows(k_tile(tile % 2), kk) : Shape::V::rows(v_tile(tile % 2), kk));
      products_commit();
    };
    // From S (and dP), which are on their way, to P or dS. No sum into `result` is.
    const auto weigh = [&] {
      int end[2];  // each row sees the keys below its own end
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool chose = choice.has(t[half] - first_t, keys.block);
        end[half] = chose ? min(t[half] + 1, keys.last) : 0;
        sees_keys[half] |= end[half] > keys.first;
      }
      const bool masked = min(end[0], end[1]) < keys.first + kKeyTile;
      const auto seen = [&](int n, int i) { return keys.first + n * 8 + lane % 4 * 2 + i % 2 < end[i / 2]; };
      products_wait<Backward ? 1 : 0>();
      pin(s);
      if constexpr (Backward) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] = exp2_fast(fmaf(s[n][i], factor, -origin[i / 2])) * inverse[i / 2];
        products_wait<0>();
        pin(dp);
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] *= dp[n][i] - own_delta[i / 2];
      }
      if (masked) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (!seen(n, i)) s[n][i] = Backward ? 0.f : -INFINITY;
      }
      if constexpr (!Backward) {
        float rescale[2];
        softmax.update(s, factor, rescale);
#pragma unroll
        for (int n = 0; n < kOut / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) result[n][i] *= rescale[i / 2];
      }
#pragma unroll
      for (int kk = 0; kk < kKeyTile / 16; ++kk) as_a<T>(left[kk], s, kk);
    };
    if (tiles > 0) {
      wait_copies<1>();
      publish_to_async();
      __syncthreads();
      pin(s);
      if constexpr (Backward) pin(dp);
      products_begin();
      start_scores(0);
      weigh();
    }
    for (int tile = 1; tile < tiles; ++tile) {
      wait_copies<0>();
      publish_to_async();
      __syncthreads();  // this tile's K and what the products want of V are there, the other V is used up
      pin(result);
      pin(s);
      if constexpr (Backward) pin(dp);
      products_begin();
      start_result(tile - 1);
      start_scores(tile);
      keys = next;
      next = keys_of(tile + 1);
      load_v(tile + kAheadV, Backward ? next : keys);
      if constexpr (!Backward) load_k(tile + 1, next);
      products_wait<Backward ? 2 : 1>();
      pin(result);
      if constexpr (Backward) {
        __syncthreads();  // the last tile's K is used up
        load_k(tile + 1, next);
      }
      commit_copies();
      weigh();
    }
    wait_copies<0>();  // with no tile at all, Q may still be arriving
    publish_to_async();
    __syncthreads();
    if (tiles > 0) {
      pin(result);
      products_begin();
      start_result(tiles - 1);
      products_wait<0>();
      pin(result);
    }

    char* staging = shared + (q_tile - start);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float scale = p.scale;
      if constexpr (!Backward) {
        const float total = total_of(quad_sum(softmax.sum[half]), sees_keys[half]);
        scale = normaliser(total);
        if (first_row + own_row + 8 * half < rows && lane % 4 == 0)
          reinterpret_cast<float2*>(p.stats)[statistics_at[half]] =
              stored_statistics(softmax.maximum[half], total, factor);
      }
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n)
        *reinterpret_cast<std::uint32_t*>(staging + (Shape::Out::at(q_tile, own_row + 8 * half, n) - q_tile) +
                                          lane % 4 * 4) =
            pack<T>(result[n][2 * half] * scale, result[n][2 * half + 1] * scale);
    }
    __syncwarp();
    T* to = static_cast<T*>(out.data) + b * out.batch + static_cast<std::int64_t>(group) * heads.h * out.head;
    for (int place = lane; place < 16 * (kOut / 8); place += 32) {  // a warp stores its own rows
      const int row = warp * 16 + place / (kOut / 8), chunk = place % (kOut / 8), offset = out_offset[row];
      if (offset >= 0)
        *reinterpret_cast<uint4*>(to + static_cast<std::int64_t>(offset) * 8 + chunk * 8) =
            *reinterpret_cast<const uint4*>(staging + (Shape::Out::at(q_tile, row, chunk) - q_tile));
    }
    __syncthreads();  // all of the tile's shared memory is used up
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
