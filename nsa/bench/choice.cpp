#include "nsa/bench/choice.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "nsa/ops.hpp"

namespace nsa::bench {

namespace {

constexpr std::int64_t kRowsAtOnce = 8192;  // the scores of all queries would be gigabytes

// The scores of every block for the queries `t`, [rows, G, blocks], between those of every kDriftPeriod-th query.
at::Tensor interpolated(const at::Tensor& t, const at::Tensor& knots) {
  const auto before = at::floor_divide(t, kDriftPeriod);
  const auto share = ((t - before * kDriftPeriod).to(at::kFloat) / static_cast<double>(kDriftPeriod)).view({-1, 1, 1});
  return at::lerp(knots.index_select(0, before), knots.index_select(0, before + 1), share);
}

}  // namespace

std::string_view to_string(ChoiceKind kind) { return kind == ChoiceKind::random ? "random" : "drift"; }

at::Tensor choose_blocks(ChoiceKind kind, const ChoiceShape& shape, std::uint64_t seed, at::Device device) {
  const auto& g = shape.geometry;
  const std::int64_t blocks = selection_blocks(g, shape.S), n = std::min(g.n_sel, blocks);
  auto generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  const auto draw = [&](std::int64_t rows) {
    return at::rand({rows, shape.G, blocks}, generator, at::device(device).dtype(at::kFloat));
  };
  const auto ints = at::device(device).dtype(at::kLong);
  const auto number = at::arange(blocks, ints);
  const at::Tensor knots = kind == ChoiceKind::drift ? draw((shape.S - 1) / kDriftPeriod + 2) : at::Tensor();
  auto result = at::full({1, shape.S, shape.G, g.n_sel}, -1, ints.dtype(at::kInt));

  for (std::int64_t begin = 0; begin < shape.S; begin += kRowsAtOnce) {
    const std::int64_t rows = std::min(kRowsAtOnce, shape.S - begin);
    const auto t = at::arange(begin, begin + rows, ints);
    const auto current = at::floor_divide(t, g.l_sel).view({-1, 1, 1});
    auto score = knots.defined() ? interpolated(t, knots) : draw(rows);
    score = score.masked_fill(number.eq(0).logical_or(number.ge(current - 1)), 2.0);  // forced
    score = score.masked_fill(number.gt(current), -1.0);                              // in the future
    const auto [value, place] = at::topk(score, n, -1);
    // -1 must come behind the numbers: it sorts as one above all of them.
    const auto ascending = std::get<0>(place.masked_fill(value.lt(0), blocks).sort(-1));
    result[0].narrow(0, begin, rows).narrow(2, 0, n).copy_(ascending.masked_fill(ascending.eq(blocks), -1));
  }
  return result;
}

}  // namespace nsa::bench
