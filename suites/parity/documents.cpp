#include "suites/parity/documents.hpp"

#include <ATen/ATen.h>

#include <string_view>

#include "suites/codes.hpp"
#include "suites/probes/contract_errors.hpp"

namespace suites::parity_cases {

std::vector<std::int64_t> document_lengths(const nsa::Geometry& g) {
  // The longest has more blocks than are chosen: a choice by another document's keys shows there.
  return {0, 1, g.l - 1, g.l_sel + 3, 0, g.w + 5, (g.n_sel + 1) * g.l_sel + 3, g.l, 0};
}

at::Tensor cumulative(const std::vector<std::int64_t>& lengths) {
  at::Tensor cu = at::zeros({static_cast<std::int64_t>(lengths.size()) + 1}, at::kInt);
  auto out = cu.accessor<std::int32_t, 1>();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    out[at + 1] = out[at] + static_cast<std::int32_t>(lengths[i]);
  }
  return cu;
}

void report_cu_seqlens(harness::Context& context, harness::Json evidence, const std::function<void()>& body) {
  try {
    body();
    context.expect("cu_seqlens reach the op as they were given", true, "", codes::kCuSeqlens);
  } catch (const nsa::ContractError& error) {
    if (!probes::about_cu_seqlens(error)) throw;
    const std::string_view what = error.what();
    evidence["refused_with"] = what;
    context.expect("cu_seqlens reach the op as they were given", false,
                   "a packed batch with legal cu_seqlens was refused by the op's contract: " + std::string(what),
                   codes::kCuSeqlens, evidence);
  }
}

}  // namespace suites::parity_cases
