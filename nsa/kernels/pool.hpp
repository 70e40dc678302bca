// Compression by the mean (Eq 7 with phi = avg): block i is the mean of the tokens [i*d, i*d+l) of its document.
#pragma once

#include "nsa/kernels/params.hpp"

namespace nsa::kernels {

struct Pool {
  // Keys and values, or one of them: of any widths, in one launch.
  struct Tensor {
    Rows x;  // forward: read [B,S,G,D]; backward: the gradient of x, every element is written
    Rows y;  // forward: written [B,N,G,D]; backward: the gradient of y, read
    int D = 0;
  };
  Tensor tensors[2];
  int count = 0;
  const int* block_start = nullptr;      // packed: [N] first token of each compressed block; null: i*d
  Packed packed;                         // backward, packed
  const int* document_blocks = nullptr;  // packed, backward: [S] compressed blocks of the token's document
  Geometry geometry;
  int B = 0, S = 0, N = 0, G = 0;
  Storage storage = Storage::bf16;
};
void pool_forward(const Pool& p, cudaStream_t stream);
// A gather: every token sums its at most ceil(l/d) blocks in ascending order, in fp32.
void pool_backward(const Pool& p, cudaStream_t stream);

}  // namespace nsa::kernels
