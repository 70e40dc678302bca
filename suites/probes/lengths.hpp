// Which lengths to sweep, and what the good and the bad ones have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nsa/config.hpp"

namespace suites {

// Lengths at which something begins or ends: one token, compression and selection blocks, the window, the number of
// selected blocks. Ascending, without duplicates, without what `others` has already.
[[nodiscard]] std::vector<std::int64_t> boundary_lengths(const nsa::Geometry& geometry,
                                                         const std::vector<std::int64_t>& others);

// Lengths for the standard level: boundary_lengths, and the same edges of the compression stride and of the tiles that
// kernels are made of (16 to 256 tokens, and 1024, the queries that a chunk of the selection holds), each size - 1,
// size, size + 1, and the middles of those tiles. Up to n*l' + 1 or 1025, whichever is more.
[[nodiscard]] std::vector<std::int64_t> standard_lengths(const nsa::Geometry& geometry);

// The block sizes by which a length may matter, with their symbols: {"l", 32}, ..., {"n*l'", 1024}.
[[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> block_sizes(const nsa::Geometry& geometry);

// S mod modulus == remainder for every bad length and for no good one; the smallest such modulus.
// Needs two bad lengths.
struct Congruence {
  std::int64_t modulus = 0, remainder = 0;
};
[[nodiscard]] std::optional<Congruence> separating_congruence(const std::vector<std::int64_t>& good,
                                                              const std::vector<std::int64_t>& bad);

}  // namespace suites
