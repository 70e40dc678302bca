// A packed batch as the kernels want it: for every token and for every block where its document begins, on the device.
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

// All undefined without cu_seqlens. int32; a token's entries are those of its document.
struct Packing {
  at::Tensor first_token;        // [S] the document's first token
  at::Tensor first_compressed;   // [S] its first compressed block
  at::Tensor compressed;         // [S] how many compressed blocks it has
  at::Tensor first_selection;    // [S] its first selection block
  at::Tensor compressed_starts;  // [N] first token of each compressed block
  at::Tensor selection_starts;   // [J] first token of each selection block
  at::Tensor selection_ends;     // [J] one past its last token
  std::int64_t J = 0;            // selection blocks of a batch entry, all documents together; also without cu_seqlens

  // As the kernels take it.
  [[nodiscard]] kernels::Packed kernel_view() const;
  [[nodiscard]] kernels::SelectionBlocks selection() const;
};
[[nodiscard]] const int* ints(const at::Tensor& t);  // null for an undefined one

// One copy to the device, that does not wait for it. The last packing of a thread is kept: a pass asks for the same one
// six times a layer.
[[nodiscard]] Packing pack(const CuSeqlens& cu_seqlens, std::int64_t S, const Geometry& g, at::Device device);

}  // namespace nsa::cuda
