// The forced blocks (selected/forced.cuh) of a tile of rows, which join_forward.cuh computes jointly.
#pragma once

#include "nsa/kernels/device/pieces.cuh"
#include "nsa/kernels/selected/forced.cuh"

namespace nsa::kernels::hopper {

// A token and its forced blocks, by their numbers among all documents'.
struct ForcedToken {
  int position, first_block, own_block;  // in its document; that document's first block; the token's own

  __device__ ForcedToken(const AttentionForward& p, int t)
      : position(t - (p.packed.first_token ? p.packed.first_token[t] : 0)),
        first_block(p.selection.document_blocks ? p.selection.document_blocks[t] : 0),
        own_block(first_block + position / p.geometry.l_sel) {}
};

// The tiles of keys that a tile of rows of the tokens [first_t, last_t] walks through: the first block of the first
// token's document, then all from the one before its own to the last token's. Documents that begin in between have
// their first blocks there. Tiles that no row sees are passed over.
class ForcedWalk {
 public:
  // The present one: keys [first, last) of a block.
  int block, first, last;

  __device__ ForcedWalk(const AttentionForward& p, int first_t, int last_t) : last_t_(last_t) {
    const ForcedToken from(p, first_t), to(p, last_t);
    block = from.first_block;
    near_block_ = max(from.own_block - 1, block + 1);
    last_block_ = to.own_block;
    enter(p);
    if (!is_seen()) next(p);
  }
  [[nodiscard]] __device__ bool has_more() const { return block <= last_block_; }
  __device__ void next(const AttentionForward& p) {
    do {
      first += kKeyTile;
      if (first >= end_) {
        block = max(block + 1, near_block_);
        if (!has_more()) return;
        enter(p);
      } else {
        last = min(first + kKeyTile, end_);
      }
    } while (!is_seen());
  }

 private:
  int last_t_, near_block_, last_block_, end_;  // end_: one past the block's last key

  __device__ bool is_seen() const { return first < last && first <= last_t_; }
  __device__ void enter(const AttentionForward& p) {
    const SelectionBlocks& x = p.selection;
    first = x.starts ? x.starts[block] : block * p.geometry.l_sel;
    end_ = x.ends ? x.ends[block] : min(p.S, (block + 1) * p.geometry.l_sel);
    last = min(first + kKeyTile, end_);
  }
};

}  // namespace nsa::kernels::hopper
