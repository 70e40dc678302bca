// Tokens for model-level cases: crops of the real text that training reads.
#pragma once

#include <ATen/core/Tensor.h>

#include "harness/context.hpp"
#include "nsa/config.hpp"

namespace suites::probes {

struct TokenShape {
  std::int64_t B = 1;
  std::int64_t S = 1;
};
// [B, S+1] int64 on the case's device: random crops of the text of `config` (or of the setting `data`), drawn with the
// case's seed. Throws std::runtime_error when the text is missing or shorter than S + 1.
[[nodiscard]] at::Tensor text_tokens(const harness::Context& context, const nsa::Config& config, TokenShape shape,
                                     int trial = 0);

}  // namespace suites::probes
