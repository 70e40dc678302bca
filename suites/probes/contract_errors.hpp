// What the product's refusals are about.
#pragma once

#include <string_view>

#include "nsa/ops.hpp"

namespace suites::probes {

// The offsets of packed documents: each refusal of them has their name, in whatever words.
[[nodiscard]] inline bool about_cu_seqlens(const nsa::ContractError& error) {
  return std::string_view(error.what()).find("cu_seqlens") != std::string_view::npos;
}

}  // namespace suites::probes
