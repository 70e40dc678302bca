// The one softmax of the reference: over the keys that a row may see, with rows that see none.
#pragma once

#include <ATen/core/Tensor.h>

namespace nsa::reference {

struct MaskedSoftmax {
  at::Tensor p;    // [..., keys], exactly 0 where not visible, all 0 in an empty row
  at::Tensor lse;  // [...], natural log, -inf in an empty row
};
// scores [..., keys] in fp32 or fp64; `visible` bool, broadcastable to it. Gradients are exactly 0
// where nothing is seen.
[[nodiscard]] MaskedSoftmax masked_softmax(const at::Tensor& scores, const at::Tensor& visible);

}  // namespace nsa::reference
