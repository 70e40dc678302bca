// The choice turned round: for every block the queries that chose it, ascending in the token. A counting sort in a
// fixed order, so the lists are the same bits every time.
//
// A set of lists is of one pair (batch entry, group) and one stretch of tokens; set s, of stretch s / (B*G) and pair
// s % (B*G), has the offsets from s * (J+1) on, and its tokens begin at entry s * stretch * n.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct Inverse {
  const int* blocks = nullptr;  // [B,S,G,n] as AttentionForward takes them, or such columns of [B,S,row_groups,n]
  // Packed: [S] number of the first selection block of the token's document; null: 0.
  const int* document_blocks = nullptr;
  Packed packed;
  Geometry geometry;
  int* offsets = nullptr;          // [sets][J + 1], every element is written
  int* tokens = nullptr;           // [sets][stretch][n] capacity; what the offsets name is written
  int* places = nullptr;           // the same: where in its token's row of `blocks` the block stands; null: not wanted
  int* workspace = nullptr;        // InversePlan::workspace bytes (lists_plan.hpp)
  int B = 0, S = 0, G = 0, J = 0;  // J selection blocks of a batch entry (packed: of all documents together)
  const int* unless = nullptr;     // not null: of every stretch; where it is not 0, on the device, the lists are empty
  bool forced = true;              // false: the lists leave out what is_forced() (selected/forced.cuh)
  int row_groups = 0;              // groups in a row of the table; 0: G
  int begin = 0, end = 0;          // only the tokens [begin, end); end 0: all S
  int stretch = 0;                 // tokens that have lists of their own; 0: all together
};
// Launches what InversePlan(p) says.
void invert_choice(const Inverse& p, cudaStream_t stream);

}  // namespace nsa::kernels
