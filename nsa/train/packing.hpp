// Documents end to end in one row.
#pragma once

#include <cstdint>
#include <vector>

#include "nsa/ops.hpp"

namespace nsa::train {

// `begins`: where documents begin in a row of `length` tokens, after its first one; ascending. A document that began
// before the row begins anew at its first token.
[[nodiscard]] at::Tensor cu_seqlens_of(const std::vector<std::int32_t>& begins, std::int64_t length);
// False when every token begins a document, so that none follows from the one before it.
[[nodiscard]] bool predicts_something(const std::vector<std::int32_t>& begins, std::int64_t length);

}  // namespace nsa::train
