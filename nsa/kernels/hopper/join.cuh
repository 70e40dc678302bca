// A query's parts (parts.cuh) put together: forward o and statistics, backward dQ.
#pragma once

#include "nsa/kernels/attention/softmax.cuh"
#include "nsa/kernels/common/heads.cuh"
#include "nsa/kernels/hopper/parts.cuh"

namespace nsa::kernels::hopper {

// Whether a query has a part from this place of its row of the block table: the block starts at or before the token,
// the part's first key too, and no earlier place holds the same number.
__device__ inline bool part_exists(const AttentionForward& p, const Pieces& pieces, int row_groups, int b, int t,
                                   int group, int part) {
  const int place = part / pieces.tiles_a_block;
  const int* row = p.blocks + ((static_cast<std::int64_t>(b) * p.S + t) * row_groups + group) * p.geometry.n;
  const int position = t - (p.packed.first_token ? p.packed.first_token[t] : 0), number = row[place];
  if (number < 0 || number > position / p.geometry.l_sel) return false;
  if (number * p.geometry.l_sel + part % pieces.tiles_a_block * kKeyTile > position) return false;
  for (int i = 0; i < place; ++i)
    if (row[i] == number) return false;
  return true;
}

// How a block of threads of join_parts_kernel finds its way: made on the host, where divisions cost nothing.
struct JoinShape {
  Divisor by_heads, by_parts, by_tokens;  // heads of a group, parts of a query, tokens of the chunk
  int queries;                            // (pair, token) of one block of threads

  JoinShape(int h, const Parts& parts, int queries_a_block)
      : by_heads(h), by_parts(parts.per_token), by_tokens(parts.count), queries(queries_a_block) {}
  // float2 [queries][h][parts], then bool [queries][parts]
  [[nodiscard]] int shared_bytes() const {
    return queries * by_parts.n * (by_heads.n * static_cast<int>(sizeof(float2)) + static_cast<int>(sizeof(bool)));
  }
};

__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The rows of some queries from their parts, in the parts' order: forward o and stats, backward dQ.
template <typename T, int D, bool Backward>
__global__ void __launch_bounds__(256) join_parts_kernel(const AttentionForward p, const Rows out, const Pieces pieces,
                                                         const Parts parts, const JoinShape shape) {
  if (parts.unless && *parts.unless) return;
  extern __shared__ float2 part_stats[];  // of every part of every row; then (what it is multiplied with, unused)
  const int h = shape.by_heads.n, n = shape.by_parts.n, rows = shape.queries * h;
  bool* exists = reinterpret_cast<bool*>(part_stats + rows * n);
  const int queries = parts.pairs * parts.count, first_query = static_cast<int>(blockIdx.x) * shape.queries;
  struct Query {
    int pair, t;
  };
  const auto query_of = [&](int local) -> Query {
    const int query = first_query + local, pair = shape.by_tokens.quotient(query);
    return {pair + parts.first_pair, query - pair * parts.count + parts.first};
  };

  for (int i = threadIdx.x; i < shape.queries * n; i += 256) {
    const int local = shape.by_parts.quotient(i);
    const Query query = query_of(local);
    exists[i] = first_query + local < queries &&
                part_exists(p, pieces, parts.row_groups, query.pair / p.G, query.t, query.pair % p.G, i - local * n);
  }
  __syncthreads();

  // A warp a row: its parts' weights, brought to one maximum.
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < rows; row += 8) {
    const int local = shape.by_heads.quotient(row), head = row - local * h;
    if (first_query + local >= queries) break;
    float2* weights = part_stats + row * n;
    const bool* present = exists + local * n;
    if constexpr (Backward) {
      for (int part = lane; part < n; part += 32) weights[part].x = present[part] ? p.scale : 0.f;
      continue;
    }
    const Query query = query_of(local);
    const float2* stats = parts.stats + static_cast<std::int64_t>(parts.at(query.pair, query.t, 0)) * h + head;
    float maximum = -INFINITY, total = 0;
    bool sees_keys = false;
    for (int part = lane; part < n; part += 32)
      if (present[part]) {
        weights[part] = stats[part * h];
        maximum = fmaxf(maximum, weights[part].x);
        sees_keys = true;
      }
    maximum = warp_max(maximum);
    const float origin = origin_of(maximum), factor = p.scale * kLog2E;
    for (int part = lane; part < n; part += 32) {
      const float2 own = weights[part];
      weights[part].x = present[part] ? exp2_fast((own.x - origin) * factor) * own.y : 0.f;
      total += weights[part].x;
    }
    total = total_of(warp_sum(total), __any_sync(0xffffffffu, sees_keys));
    const float inverse = normaliser(total);
    for (int part = lane; part < n; part += 32) weights[part].x *= inverse;
    if (lane == 0) {
      const std::int64_t at =
          (static_cast<std::int64_t>(query.pair / p.G) * p.Hq + query.pair % p.G * h + head) * p.S + query.t;
      reinterpret_cast<float2*>(p.stats)[at] = stored_statistics(maximum, total, factor);
    }
  }
  __syncthreads();

  for (int i = threadIdx.x; i < rows * (D / 8); i += 256) {
    const int column = i % (D / 8) * 8, row = i / (D / 8), local = shape.by_heads.quotient(row), head = row - local * h;
    if (first_query + local >= queries) return;
    const Query query = query_of(local);
    const float2* weights = part_stats + row * n;
    const bool* present = exists + local * n;  // elsewhere nothing was ever written
    const std::int64_t first = static_cast<std::int64_t>(parts.at(query.pair, query.t, 0)) * h + head;
    const T* source = static_cast<const T*>(parts.data) + first * D + column;
    float sum[8] = {};
#pragma unroll 8
    for (int part = 0; part < n; ++part) {
      const uint4 packed =
          present[part] ? *reinterpret_cast<const uint4*>(source + part * (h * D)) : make_uint4(0, 0, 0, 0);
      const float weight = weights[part].x;
      const std::uint32_t both[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = unpack<T>(both[j]);
        sum[2 * j] = fmaf(weight, x.x, sum[2 * j]);
        sum[2 * j + 1] = fmaf(weight, x.y, sum[2 * j + 1]);
      }
    }
    T* to = static_cast<T*>(out.data) + query.pair / p.G * out.batch + query.t * out.token +
            (query.pair % p.G * h + head) * out.head + column;
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pack<T>(sum[0], sum[1]), pack<T>(sum[2], sum[3]), pack<T>(sum[4], sum[5]), pack<T>(sum[6], sum[7]));
  }
}

}  // namespace nsa::kernels::hopper
