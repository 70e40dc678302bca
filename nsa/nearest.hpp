// The known name that a misspelt one most likely meant, for "did you mean ...?" in messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace nsa {

// Edit distance with transpositions of neighbours (optimal string alignment); case is ignored.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest distance, the first of equals; "" when none is near enough to be a likely typo.
[[nodiscard]] std::string nearest(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace nsa
