// Chosen blocks without a selection, for the selected branch alone: [1,S,G,n] int32, as `select` gives them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "nsa/config.hpp"

namespace nsa::bench {

// The blocks besides the three forced ones: drawn anew for each query, or from a score that changes slowly with it, as
// in trained models: all of them are others only some kDriftPeriod queries on.
enum class ChoiceKind { random, drift };
inline constexpr std::int64_t kDriftPeriod = 256;
[[nodiscard]] std::string_view to_string(ChoiceKind kind);

struct ChoiceShape {
  std::int64_t S = 1, G = 1;
  Geometry geometry;
};
[[nodiscard]] at::Tensor choose_blocks(ChoiceKind kind, const ChoiceShape& shape, std::uint64_t seed,
                                       at::Device device);

}  // namespace nsa::bench
