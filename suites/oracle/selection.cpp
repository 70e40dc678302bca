#include "suites/oracle/selection.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>
#include <vector>

#include "harness/compare.hpp"

namespace suites::oracle {

namespace {

using Blocks = std::vector<std::int64_t>;

struct Query {
  std::int64_t t;
  Blocks chosen;               // n entries, -1 included
  std::vector<double> scores;  // of the candidates 0 .. t/l'
  std::int64_t first, last;    // forced

  [[nodiscard]] bool forces(std::int64_t block) const {
    return block < first || block >= static_cast<std::int64_t>(scores.size()) - last;
  }
};

// "" when the form is right.
std::string fault_of_form(const Query& q, const nsa::Geometry& g) {
  const std::int64_t candidates = q.t / g.l_sel + 1, wanted = std::min(g.n_sel, candidates);
  const auto tail = std::find(q.chosen.begin(), q.chosen.end(), -1);
  if (std::any_of(tail, q.chosen.end(), [](std::int64_t b) { return b != -1; })) return "a block after the -1 padding";
  const Blocks blocks(q.chosen.begin(), tail);
  if (static_cast<std::int64_t>(blocks.size()) != wanted) {
    return fmt::format("{} blocks instead of {}", blocks.size(), wanted);
  }
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (blocks[i] <= blocks[i - 1]) return fmt::format("block {} after {}: not ascending", blocks[i], blocks[i - 1]);
  }
  if (blocks.front() < 0) return fmt::format("block {}", blocks.front());
  if (blocks.back() >= candidates) return fmt::format("block {} starts after the query", blocks.back());
  for (std::int64_t block = 0; block < candidates && q.first + q.last <= g.n_sel; ++block) {
    if (q.forces(block) && !std::binary_search(blocks.begin(), blocks.end(), block))
      return fmt::format("forced block {} is missing", block);
  }
  return "";
}

// How much better the best block left out is than the worst one chosen freely; <= 0 when the choice is the top.
double preference_gap(const Query& q) {
  const std::int64_t candidates = static_cast<std::int64_t>(q.scores.size());
  const std::set<std::int64_t> chosen(q.chosen.begin(), q.chosen.end());
  double worst_chosen = 1e300, best_left = -1e300;
  for (std::int64_t b = 0; b < candidates; ++b) {
    if (q.forces(b)) continue;
    const double score = q.scores[static_cast<std::size_t>(b)];
    if (std::isnan(score)) return score;  // justifies nothing
    if (chosen.contains(b)) {
      worst_chosen = std::min(worst_chosen, score);
    } else {
      best_left = std::max(best_left, score);
    }
  }
  return best_left > -1e300 && worst_chosen < 1e300 ? best_left - worst_chosen : 0;
}

}  // namespace

SelectionVerdict judge_selection(const SelectionArgs& args) {
  SelectionVerdict verdict;
  if (args.chosen.sizes() != args.reference.sizes()) throw std::invalid_argument("judge_selection: shapes differ");
  const at::Tensor chosen = args.chosen.to(at::kCPU, at::kLong).contiguous();
  const at::Tensor reference = args.reference.to(at::kCPU, at::kLong).contiguous();
  const at::Tensor scores = args.scores.to(at::kCPU, at::kDouble).contiguous();
  const auto c = chosen.accessor<std::int64_t, 4>();
  const auto r = reference.accessor<std::int64_t, 4>();
  const auto s = scores.accessor<double, 4>();
  const std::int64_t n = chosen.size(3);

  for (std::int64_t b = 0; b < chosen.size(0); ++b) {
    for (std::int64_t t = 0; t < chosen.size(1); ++t) {
      for (std::int64_t g = 0; g < chosen.size(2); ++g) {
        const std::int64_t candidates = t / args.geometry.l_sel + 1;
        Query q{t, {}, {}, args.first, args.last};
        Blocks wanted;
        for (std::int64_t i = 0; i < n; ++i) {
          q.chosen.push_back(c[b][t][g][i]);
          wanted.push_back(r[b][t][g][i]);
        }
        double top = 0;
        for (std::int64_t i = 0; i < candidates; ++i) {
          q.scores.push_back(s[b][t][g][i]);
          top = std::max(top, q.scores.back());
        }
        ++verdict.queries;
        if (q.chosen != wanted) ++verdict.differing;
        std::string fault = fault_of_form(q, args.geometry);
        const double gap = args.by_scores ? preference_gap(q) : 0;
        if (fault.empty() && !harness::at_most(gap, args.tie * top)) {
          fault = fmt::format("a block was left out whose score is {:.3g} higher than a chosen one's", gap);
        }
        if (fault.empty()) {
          verdict.widest_tie = std::max(verdict.widest_tie, gap);
        } else if (++verdict.unjustified == 1) {
          verdict.first_fault = fmt::format("batch {}, query {}, group {}: {}", b, t, g, fault);
          verdict.first = {{"batch", b},         {"query", t},          {"group", g},
                           {"chosen", q.chosen}, {"reference", wanted}, {"scores", q.scores}};
        }
      }
    }
  }
  return verdict;
}

at::Tensor decided(const at::Tensor& scores, const nsa::Geometry& geometry, double margin) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::int64_t S = scores.size(1), N = scores.size(3), n = geometry.n_sel;
  if (N <= n) return at::ones({scores.size(0), S, scores.size(2)}, scores.options().dtype(at::kBool));
  const auto indices = scores.options().dtype(at::kLong);
  const at::Tensor block = at::arange(N, indices);
  const at::Tensor own = at::arange(S, indices).floor_divide(geometry.l_sel).view({S, 1, 1});
  const at::Tensor ranked =
      scores.masked_fill(block.eq(0).logical_or(block.ge(own - 1)), kInfinity).masked_fill(block.gt(own), -kInfinity);
  const at::Tensor best = std::get<0>(ranked.topk(n + 1, 3));  // largest first
  const at::Tensor last = best.select(3, n - 1), next = best.select(3, n);
  return next.isneginf().logical_or(last.isposinf()).logical_or((last - next).gt(last * margin));
}

}  // namespace suites::oracle
