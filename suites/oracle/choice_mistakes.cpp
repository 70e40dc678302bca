// What a wrong choice of blocks is the right answer to.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "suites/oracle/selection.hpp"

namespace suites::oracle {

namespace {

enum class Over { sum, largest, first, all_groups, one_in_g };      // how the heads of a group become one score
enum class Scale { right, none, by_width, by_heads, half, twice };  // of the scores; right: 1/sqrt(Dk)

struct Choosing {
  const char* what;
  Over heads = Over::sum;
  Scale scale = Scale::right;
  bool sees_future = false;  // the softmax counts blocks that are not complete
  std::int64_t shift = 0;    // of equation 9's sum, in compressed blocks; in units of l/d - 1 where `whole_overlap`
  bool whole_overlap = false;
  bool overlaps = true;  // equation 9 counts all compressed blocks that a block shares tokens with
  // And each as often as it stands in the sum, which is at most l/d times; or once; or without that bound.
  enum class Weights { overlap, once, triangle } weights = Weights::overlap;
  bool later_ties = false;
  bool largest = true;
  bool first = true, current = true, previous = true;  // forced
  at::ScalarType rounded = at::kDouble;
};

const std::vector<Choosing>& mistakes() {
  static const std::vector<Choosing> all = {
      {.what = "the scores were not divided by sqrt(Dk)", .scale = Scale::none},
      {.what = "the scores were divided by Dk, not by its root", .scale = Scale::by_width},
      {.what = "the scores were divided by the root of the number of heads, not by sqrt(Dk)", .scale = Scale::by_heads},
      {.what = "the scores were half of what they should be", .scale = Scale::half},
      {.what = "the scores were twice what they should be", .scale = Scale::twice},
      {.what = "the largest head of a group decided, not the sum of its heads", .heads = Over::largest},
      {.what = "the first head of a group decided, not the sum of its heads", .heads = Over::first},
      {.what = "all groups shared one choice", .heads = Over::all_groups},
      {.what = "heads j, j + G, j + 2G ... were summed, not the group's own h neighbouring heads",
       .heads = Over::one_in_g},
      {.what =
           "the softmax counted compressed blocks that are not complete yet, so that the choice depends on the future",
       .sees_future = true},
      {.what = "the sum of equation 9 were shifted by l/d - 1 compressed blocks towards the future",
       .shift = 1,
       .whole_overlap = true},
      {.what = "the sum of equation 9 were shifted by l/d - 1 compressed blocks towards the past",
       .shift = -1,
       .whole_overlap = true},
      {.what = "the sum of equation 9 were shifted by one compressed block towards the future", .shift = 1},
      {.what = "the sum of equation 9 were shifted by one compressed block towards the past", .shift = -1},
      {.what = "equation 9 counted only compressed blocks that begin in the block", .overlaps = false},
      {.what = "equation 9 counted each overlapping compressed block once, not by its overlap",
       .weights = Choosing::Weights::once},
      {.what = "equation 9's weights were a triangle, not bounded by l/d", .weights = Choosing::Weights::triangle},
      {.what = "ties went to the later block", .later_ties = true},
      {.what = "the lowest scores were chosen", .largest = false},
      {.what = "block 0 were not forced", .first = false},
      {.what = "the query's own block were not forced", .current = false},
      {.what = "the block before the query's own were not forced", .previous = false},
      {.what = "scores were rounded to fp16 before they are ranked", .rounded = at::kHalf},
      {.what = "scores were rounded to bf16 before they are ranked", .rounded = at::kBFloat16}};
  return all;
}

at::Tensor count(std::int64_t n, const at::Tensor& like) { return at::arange(n, like.options().dtype(at::kLong)); }

double factor(Scale scale, const at::Tensor& q) {
  const auto width = static_cast<double>(q.size(3)), right = 1 / std::sqrt(width);
  switch (scale) {
    case Scale::right:
      break;
    case Scale::none:
      return 1;
    case Scale::by_width:
      return 1 / width;
    case Scale::by_heads:
      return 1 / std::sqrt(static_cast<double>(q.size(2)));
    case Scale::half:
      return right / 2;
    case Scale::twice:
      return right * 2;
  }
  return right;
}

// [B,S,G,n], ascending, padded with -1.
at::Tensor choice_by(const Choosing& by, const at::Tensor& q, const at::Tensor& k, const nsa::Geometry& g) {
  const std::int64_t S = q.size(1), G = k.size(2), h = q.size(2) / G, N = k.size(1),
                     blocks = (S + g.l_sel - 1) / g.l_sel;
  const bool mixed = by.heads == Over::one_in_g;
  // [B,G,h,S,N]: scores of each head over the keys of its own group.
  at::Tensor scores = at::einsum("bsghd,bngd->bghsn", {q.unflatten(2, {G, h}), k}) * factor(by.scale, q);
  const at::Tensor t = count(S, q), hidden = (count(N, q) * g.d + (g.l - 1)).gt(t.unsqueeze(1));  // [S,N]
  if (!by.sees_future) scores = scores.masked_fill(hidden, -1e30);
  at::Tensor p = N == 0 ? scores : at::softmax(scores, -1).masked_fill(hidden, 0);
  if (mixed) p = p.flatten(1, 2).unflatten(1, {h, G}).transpose(1, 2);
  at::Tensor of_group;  // [B,G,S,N]
  switch (by.heads) {
    case Over::sum:
    case Over::one_in_g:
      of_group = p.sum(2);
      break;
    case Over::largest:
      of_group = p.amax(2);
      break;
    case Over::first:
      of_group = p.select(2, 0);
      break;
    case Over::all_groups:
      of_group = p.sum(2).mean(1, true).expand({-1, G, -1, -1});
      break;
  }
  const std::int64_t wide = g.l_sel / g.d, deep = g.l / g.d, shift = by.shift * (by.whole_overlap ? deep - 1 : 1);
  at::Tensor importance = at::zeros({q.size(0), G, S, blocks}, q.options());
  const std::int64_t overlap = by.overlaps ? deep : 1,
                     places = wide + overlap - 1;  // of compressed blocks that a block shares tokens with
  for (std::int64_t j = 0; j < blocks; ++j)
    for (std::int64_t place = 0; place < places; ++place) {
      const std::int64_t slope = std::min(place + 1, places - place), i = j * wide + place - (places - wide) + shift,
                         weight = by.weights == Choosing::Weights::once       ? 1
                                  : by.weights == Choosing::Weights::triangle ? slope
                                                                              : std::min({slope, wide, overlap});
      if (i >= 0 && i < N) importance.select(3, j) += weight * of_group.select(3, i);
    }
  if (by.rounded != at::kDouble) importance = importance.to(by.rounded).to(at::kDouble);
  if (!by.largest) importance = -importance;
  const at::Tensor block = count(blocks, q), own = at::floor_divide(t, g.l_sel).unsqueeze(1);
  at::Tensor forced = at::zeros({S, blocks}, q.options().dtype(at::kBool));
  if (by.first) forced = forced.logical_or(block.eq(0));
  if (by.current) forced = forced.logical_or(block.eq(own));
  if (by.previous) forced = forced.logical_or(block.eq(own - 1));
  at::Tensor ranked = importance.masked_fill(forced, 1e30).masked_fill(block.gt(own), -1e30);
  if (by.later_ties) ranked = ranked.flip(3);
  at::Tensor order = std::get<1>(at::sort(ranked, /*stable=*/true, -1, /*descending=*/true));
  if (by.later_ties) order = blocks - 1 - order;
  const at::Tensor taken = order.slice(3, 0, g.n_sel);
  const at::Tensor sorted = std::get<0>(at::sort(taken.masked_fill(taken.gt(own), blocks), -1));
  const at::Tensor padded = at::constant_pad_nd(sorted, {0, g.n_sel - sorted.size(3)}, blocks);
  return padded.masked_fill(padded.eq(blocks), -1).transpose(1, 2);
}

}  // namespace

std::string mistake_in_choice(const at::Tensor& chosen, const at::Tensor& q, const at::Tensor& k_cmp,
                              const nsa::Geometry& geometry) {
  const at::NoGradGuard no_grad;
  const at::Tensor given = chosen.to(at::kLong), wide_q = q.to(at::kDouble), wide_k = k_cmp.to(at::kDouble);
  const auto rows_like = [&](const at::Tensor& other) { return other.eq(given).all(-1); };
  const at::Tensor wrong = rows_like(choice_by({.what = ""}, wide_q, wide_k, geometry)).logical_not();
  const double rows = wrong.sum().item<double>(), all = static_cast<double>(wrong.numel()), right = all - rows;
  if (rows == 0) return "it were right and the reference's scores, by which it is judged, were not";
  std::vector<const char*> best;  // those that explain the most alike: a few rows may not tell them apart
  double most = 0;
  for (const Choosing& mistake : mistakes()) {
    const at::Tensor same = rows_like(choice_by(mistake, wide_q, wide_k, geometry));
    // Near ties may fall otherwise.
    const double told = same.logical_and(wrong).sum().item<double>() / rows,
                 kept = right == 0 ? 1 : same.logical_and(wrong.logical_not()).sum().item<double>() / right;
    if (told < 0.98 || kept < 0.98 || told + kept < most) continue;
    if (told + kept > most) best.clear();
    best.push_back(mistake.what);
    most = told + kept;
  }
  constexpr std::size_t kTooMany = 3;  // then nothing is known
  return best.size() >= kTooMany ? "" : fmt::format("{}", fmt::join(best, ", or as if "));
}

}  // namespace suites::oracle
