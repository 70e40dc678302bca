// What every kernel that chooses blocks does with the tokens of a tile.
#pragma once

#include "nsa/kernels/select.hpp"
#include "nsa/kernels/select/best.cuh"

namespace nsa::kernels {

// Tokens of one group that are computed together.
struct TokenTile {
  int b, group, first, count;
};

// The tokens [begin, end) of a tile that belong to one document.
struct DocumentTokens {
  int begin, end, first_token, first_key;  // of the document
  int current;                             // the block of the last of them

  // From `begin` on; by a whole warp, whose lanes look at a token each.
  __device__ DocumentTokens(const Select& p, const TokenTile& tile, int from)
      : begin(from), end(tile.count), first_token(0), first_key(0) {
    if (p.packed.first_token) {
      const int lane = threadIdx.x & 31;
      const int own = lane < tile.count ? p.packed.first_token[tile.first + lane] : -1;
      first_token = __shfl_sync(kWarp, own, begin);
      end = begin + __popc(__ballot_sync(kWarp, lane >= begin && own == first_token));
      first_key = p.packed.first_block ? p.packed.first_block[tile.first + begin] : 0;
    }
    current = (tile.first + end - 1 - first_token) / p.geometry.l_sel;
  }
  __device__ bool has(int token) const { return token >= begin && token < end; }
  __device__ int block_of(const Select& p, const TokenTile& tile, int token) const {
    return (tile.first + token - first_token) / p.geometry.l_sel;
  }
  // Whether any of them chooses by score, and the highest block that a token may choose so; 0: none.
  __device__ bool scored(const Select& p) const { return current >= p.geometry.n && p.geometry.n > 3; }
  __device__ int last_choice(const Select& p, const TokenTile& tile, int token) const {
    const int own = block_of(p, tile, token);
    return has(token) && own >= p.geometry.n ? own - 2 : 0;
  }
};

// The row of a token of block `own`, by one warp. Where own >= n, `list` holds the n - 3 best blocks, ascending.
__device__ inline void write_choice(const Select& p, const TokenTile& tile, int token, int own, const Entry* list) {
  const int n = p.geometry.n;
  int* row = p.blocks + ((static_cast<std::int64_t>(tile.b) * p.S + tile.first + token) * p.G + tile.group) * n;
  for (int i = threadIdx.x & 31; i < n; i += 32)
    row[i] = own < n ? (i <= own ? i : -1) : i == 0 ? 0 : i < n - 2 ? list[i - 1].block : own - (n - 1 - i);
}

}  // namespace nsa::kernels
