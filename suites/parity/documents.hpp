// Packed batches for tests: documents of awkward lengths, and what to make of a refused cu_seqlens.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "harness/context.hpp"
#include "nsa/ops.hpp"

namespace suites::parity_cases {

// Empty, of one token, without a single compressed block, longer than a selection block, longer than the window.
[[nodiscard]] std::vector<std::int64_t> document_lengths(const nsa::Geometry& geometry);
// int32 [documents + 1] on the CPU
[[nodiscard]] at::Tensor cumulative(const std::vector<std::int64_t>& lengths);

// Runs `body`; a ContractError about cu_seqlens, whose values here are right, becomes a finding of its own.
void report_cu_seqlens(harness::Context& context, harness::Json evidence, const std::function<void()>& body);

}  // namespace suites::parity_cases
