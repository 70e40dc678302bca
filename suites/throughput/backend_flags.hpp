// The backends as sets of flags, for cases that go through all of them.
#pragma once

#include <string_view>

#include "nsa/flags.hpp"

namespace suites::throughput_cases {

// "flash", "flash_masked", "sdpa", "sdpa_masked", "cuda" or "reference".
[[nodiscard]] nsa::EffectiveFlags flags_of_backend(std::string_view name);

}  // namespace suites::throughput_cases
