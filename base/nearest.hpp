// The known name that a misspelt one most likely meant, for "did you mean ...?" in messages.
#pragma once

#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace base {

// Edit distance with transpositions of neighbours (optimal string alignment); case is ignored.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate with the smallest distance, the first of equals; "" when none is near enough to be a likely typo: at
// most two fifths of the longer name, and at least 1.
[[nodiscard]] std::string nearest(std::string_view name, std::span<const std::string_view> candidates);
template <std::ranges::input_range Names>
[[nodiscard]] std::string nearest(std::string_view name, const Names& candidates) {
  const std::vector<std::string_view> views(std::ranges::begin(candidates), std::ranges::end(candidates));
  return nearest(name, std::span<const std::string_view>(views));
}

}  // namespace base
