// Queries and compressed keys whose scores tie to the last bit, and the rule for them: of blocks that score the same
// the lower numbers are chosen. The rule needs no oracle.
#pragma once

#include "nsa/tests/fixtures.hpp"

namespace nsa::fixtures {

struct Ties {
  enum class Kind { no_query, equal_keys, two_kinds_of_blocks };  // q = 0; one key; even blocks tie, odd blocks tie
  Kind kind;
  std::int64_t S, h, Dk;
  Geometry g;
  at::ScalarType type;

  [[nodiscard]] std::string name() const {
    const char* kinds[] = {"q = 0", "equal keys", "two kinds of blocks"};
    return std::string(kinds[static_cast<int>(kind)]) + " S " + std::to_string(S) + " h " + std::to_string(h) +
           " width " + std::to_string(Dk) + " " + std::to_string(g.l) + "/" + std::to_string(g.d) + "/" +
           std::to_string(g.l_sel) + " n " + std::to_string(g.n_sel) + " " + c10::toString(type);
  }
  // One group. Numbers are small and whole, so that scores are exact and equal keys tie whatever the order of sums.
  [[nodiscard]] SelectArgs args(const at::Device& device = at::kCPU) const {
    const std::int64_t N_c = compressed_blocks(g, S), period = kind == Kind::equal_keys ? 1 : 2 * g.l_sel / g.d;
    auto q = random({1, S, h, Dk}, 1).round(), k = random({1, N_c, 1, Dk}, 2).round();
    if (kind == Kind::no_query)
      q.zero_();
    else
      k = k.index_select(1, at::arange(N_c, at::kLong).remainder(period));
    return {q.to(device, type), k.to(device, type), g, std::nullopt};
  }
  // Rows of `blocks` [1,S,1,n], of tokens `first` and later, that leave a block out and take a later one of its kind.
  [[nodiscard]] std::int64_t wrong_rows(const at::Tensor& blocks, std::int64_t first = 0) const {
    const std::int64_t apart = kind == Kind::two_kinds_of_blocks ? 2 : 1, rows = blocks.size(1);
    const std::int64_t N_sel = selection_blocks(g, first + rows);
    const auto table = blocks.to(at::kCPU, at::kLong).view({rows, g.n_sel});
    const auto chosen =
        at::zeros({rows, N_sel + 1}, at::kBool).scatter_(1, table.masked_fill(table.lt(0), N_sel), true);
    std::int64_t wrong = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool* taken = chosen[row].data_ptr<bool>();
      bool right = true;
      for (std::int64_t j = 1 + apart; j <= (first + row) / g.l_sel - 2; ++j) right &= !taken[j] || taken[j - apart];
      wrong += right ? 0 : 1;
    }
    return wrong;
  }
};

// The geometries of configs/models with the heads and widths of their groups, the case that was first seen to fail, and
// one more; lengths at which some block must be left out.
inline std::vector<Ties> ties(at::ScalarType type) {
  struct Place {
    std::int64_t h, Dk;
    Geometry g;
    std::vector<std::int64_t> lengths;
  };
  constexpr Geometry kPaper{.l = 32, .d = 16, .l_sel = 64, .n_sel = 16, .w = 512}, kFew{32, 16, 64, 4, 512};
  const std::vector<Place> places = {{2, 16, {8, 4, 16, 4, 32}, {128, 301}},  // tiny
                                     {6, 64, kPaper, {1200}},                 // m7c_125m
                                     {16, 128, kPaper, {1130}},               // kernel_bench
                                     {16, 192, kPaper, {1130}},               // paper
                                     {6, 64, kFew, {320, 500, 700}},
                                     {5, 32, {8, 2, 16, 5, 16}, {257, 400}}};
  std::vector<Ties> all;
  for (const Place& p : places)
    for (const std::int64_t S : p.lengths)
      for (const auto kind : {Ties::Kind::no_query, Ties::Kind::equal_keys, Ties::Kind::two_kinds_of_blocks})
        all.push_back({kind, S, p.h, p.Dk, p.g, type});
  return all;
}

}  // namespace nsa::fixtures
