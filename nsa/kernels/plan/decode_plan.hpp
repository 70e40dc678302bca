// How a step of decoding is cut into CTAs, and what it needs: decided before anything is launched, by the problem and
// the device alone. Of pointers nothing is looked at.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nsa/kernels/decode.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

inline constexpr int kDecodeKeys = 128;  // of a tile, at most
inline constexpr int kDecodeHeads = 16;  // rows of a tile; those beyond the group's are padding

// The tiles of a pair (batch entry, group), in this order; each leaves a part.
struct DecodeCuts {
  int compressed = 0, window = 0;
  int first = 0, last = 0;  // of the first block, and of the tokens from `last_token` on
  int chosen = 0;           // of the blocks that are chosen by score
  int heads = 0;            // query heads of a group
  int current = 0;          // the block of the query's token
  int last_token = 0;
  int wanted = 0;       // blocks that are chosen by score
  int block_tiles = 1;  // of one of them
  int block_keys = 0;   // compressed keys of a selection block: l'/d
  int reach = 0;        // strides of a compressed block: l/d
  int tile_blocks = 0;  // selection blocks of a compressed tile
  [[nodiscard]] __host__ __device__ int known() const { return compressed + window + first + last; }
  [[nodiscard]] __host__ __device__ int parts() const { return known() + chosen; }
  // Tokens of the selected branch's cache that are read for a pair.
  [[nodiscard]] std::int64_t selected_tokens(const Decode& p) const {
    const std::int64_t whole = wanted + (first > 0 ? 1 : 0);
    return whole * p.geometry.l_sel + p.t + 1 - last_token;
  }
  [[nodiscard]] __host__ __device__ int tile_keys() const { return tile_blocks * block_keys; }
};

enum class DecodeVariant {
  in_order,
  early,  // each launch but the first begins while the one before it runs (device/early.cuh): Hopper
};
[[nodiscard]] std::string_view to_string(DecodeVariant variant);  // "decoding by early launches"

struct DecodePlan {
  DecodeVariant variant = DecodeVariant::in_order;
  DecodeCuts cuts;
  std::int64_t workspace = 0;  // bytes
  std::int64_t launches = 0;   // of kernels: 4, 2 where nothing is chosen by score, none for B = 0
  int scores_bytes = 0, attend_bytes = 0, join_bytes = 0;  // of a CTA's dynamic shared memory
  std::string_view why;                                    // of static storage
  Device device;                                           // for which it was made
};
// "" when the kernels serve the problem, else what was asked and what is served: widths 32/32, 64/64, 128/128, 192/128;
// 1 to 16 heads a group; n from 3 to 64; d divides l and l', l <= l', l'/d up to 128; up to 65,535 tiles of a row
// of the batch; as many blocks as a choice has room for, more than 40,000.
[[nodiscard]] std::string decode_refusal(const Decode& p);
// Throws std::invalid_argument with decode_refusal's words.
[[nodiscard]] DecodePlan plan_decode(const Decode& p, const Device& device);

}  // namespace nsa::kernels
