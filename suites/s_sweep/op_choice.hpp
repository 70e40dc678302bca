// A choice of blocks is made of integers: NaN and infinity do not show in it. Its rules do.
#pragma once

#include <optional>
#include <string>

#include "suites/probes/finite_check.hpp"
#include "suites/s_sweep/op_content.hpp"

namespace suites::s_sweep_cases {

// Every query outside padding has min(n, t/l'+1) blocks, ascending and then -1, none after t, with the first, the
// current and the one before it (kSelectionDiffers); and where padding holds NaN, its choice is `clean`, the one
// without (kPoisonLeak). Nothing when all is well. blocks, clean [B,S,G,n].
[[nodiscard]] std::optional<probes::Diagnosis> diagnose_choice(const OpInput& input, const std::string& way,
                                                               const at::Tensor& blocks, const at::Tensor& clean);

}  // namespace suites::s_sweep_cases
