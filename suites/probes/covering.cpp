#include "suites/probes/covering.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

namespace suites::covering {

namespace {

constexpr int kOpen = -1;  // a factor of a row that has no value yet

// The forbidden sets of a problem, found by the choice that was made last.
class Rules {
 public:
  explicit Rules(const Problem& problem) : problem_(problem) {
    for (const Factor& factor : problem.factors) of_.emplace_back(factor.values.size());
    for (const Forbidden& forbidden : problem.forbidden)
      for (const Choice& c : forbidden.choices)
        of_[static_cast<std::size_t>(c.factor)][static_cast<std::size_t>(c.value)].push_back(&forbidden);
  }

  // Also of a row with open factors: whether what the factor has completes nothing that is forbidden.
  [[nodiscard]] bool allow(const Row& row, std::size_t factor) const {
    const auto& rules = of_[factor][static_cast<std::size_t>(row[factor])];
    return std::none_of(rules.begin(), rules.end(), [&](const Forbidden* forbidden) {
      return std::all_of(forbidden->choices.begin(), forbidden->choices.end(),
                         [&](const Choice& c) { return row[static_cast<std::size_t>(c.factor)] == c.value; });
    });
  }
  // Of a whole row.
  [[nodiscard]] bool allow(const Row& row) const {
    for (std::size_t factor = 0; factor < row.size(); ++factor)
      if (!allow(row, factor)) return false;
    return true;
  }
  // Whether the open factors from `first` on can be given values, where what is set is allowed.
  [[nodiscard]] bool completable(Row& row, std::size_t first = 0) const {
    while (first < row.size() && row[first] != kOpen) ++first;
    if (first == row.size()) return true;
    bool can = false;
    for (int value = 0; !can && value < std::ssize(problem_.factors[first].values); ++value) {
      row[first] = value;
      can = allow(row, first) && completable(row, first + 1);
    }
    row[first] = kOpen;
    return can;
  }
  // Whether a legal row can hold both.
  [[nodiscard]] bool can_stand(const Pair& pair) const {
    Row row(problem_.factors.size(), kOpen);
    row[static_cast<std::size_t>(pair.a.factor)] = pair.a.value;
    row[static_cast<std::size_t>(pair.b.factor)] = pair.b.value;
    return allow(row, static_cast<std::size_t>(pair.a.factor)) && allow(row, static_cast<std::size_t>(pair.b.factor)) &&
           completable(row);
  }

 private:
  const Problem& problem_;
  std::vector<std::vector<std::vector<const Forbidden*>>> of_;  // by factor and value
};

// Which pairs stand together, as a square of bits over all values.
class PairSet {
 public:
  explicit PairSet(const Problem& problem) : problem_(problem) {
    for (const Factor& factor : problem.factors) {
      first_.push_back(values_);
      values_ += factor.values.size();
    }
    bits_.resize(values_ * values_);
  }
  [[nodiscard]] bool has(Choice a, Choice b) const { return bits_[at(a, b)]; }
  void add(Choice a, Choice b) { bits_[at(a, b)] = bits_[at(b, a)] = true; }
  void add(const Row& row) {
    for_pairs(row, [&](Choice a, Choice b) { add(a, b); });
  }
  // Calls `visit` for every pair of choices that a row makes.
  template <typename Visit>
  static void for_pairs(const Row& row, const Visit& visit) {
    for (int i = 0; i < std::ssize(row); ++i)
      for (int j = i + 1; j < std::ssize(row); ++j)
        visit(Choice{i, row[static_cast<std::size_t>(i)]}, Choice{j, row[static_cast<std::size_t>(j)]});
  }

 private:
  [[nodiscard]] std::size_t id(Choice c) const {
    return first_[static_cast<std::size_t>(c.factor)] + static_cast<std::size_t>(c.value);
  }
  [[nodiscard]] std::size_t at(Choice a, Choice b) const { return id(a) * values_ + id(b); }
  const Problem& problem_;
  std::vector<std::size_t> first_;
  std::size_t values_ = 0;
  std::vector<bool> bits_;
};

template <typename Visit>
void for_all_pairs(const Problem& problem, const Visit& visit) {
  const auto count = [&](int factor) {
    return static_cast<int>(problem.factors[static_cast<std::size_t>(factor)].values.size());
  };
  const int n = static_cast<int>(problem.factors.size());
  for (int i = 0; i < n; ++i)
    for (int j = i + 1; j < n; ++j)
      for (int a = 0; a < count(i); ++a)
        for (int b = 0; b < count(j); ++b) visit(Pair{{i, a}, {j, b}});
}

class Greedy {
 public:
  Greedy(const Problem& problem, std::uint64_t seed, int candidates)
      : problem_(problem), rules_(problem), candidates_(candidates), covered_(problem), random_(seed) {
    for_all_pairs(problem, [&](const Pair& pair) {
      if (rules_.can_stand(pair)) open_.push_back(pair);
    });
  }

  std::vector<Row> rows() {
    std::vector<Row> all;
    while (!open_.empty()) {
      Row best;
      std::size_t most = 0;
      for (int i = 0; i < candidates_; ++i) {
        Row row = candidate();
        const std::size_t gain = new_pairs(row);
        if (gain > most) std::tie(best, most) = std::pair(std::move(row), gain);
      }
      covered_.add(best);
      std::erase_if(open_, [&](const Pair& pair) { return covered_.has(pair.a, pair.b); });
      all.push_back(std::move(best));
    }
    return all;
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  // A legal row round one pair that is still open; every other factor takes the value that covers most.
  Row candidate() {
    Row row(problem_.factors.size(), kOpen);
    const Pair& core = open_[below(open_.size())];
    row[static_cast<std::size_t>(core.a.factor)] = core.a.value;
    row[static_cast<std::size_t>(core.b.factor)] = core.b.value;
    std::vector<int> order(problem_.factors.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    for (const int factor : order)
      if (row[static_cast<std::size_t>(factor)] == kOpen)
        row[static_cast<std::size_t>(factor)] = best_value(row, factor);
    return row;
  }

  // Some value always does: the row was completable before.
  int best_value(const Row& row, int factor) {
    const int count = static_cast<int>(problem_.factors[static_cast<std::size_t>(factor)].values.size());
    int best = kOpen, most = -1;
    const auto start = static_cast<int>(below(static_cast<std::size_t>(count)));  // ties fall anywhere
    for (int i = 0; i < count; ++i) {
      const int value = (start + i) % count;
      Row trial = row;
      trial[static_cast<std::size_t>(factor)] = value;
      if (!rules_.allow(trial, static_cast<std::size_t>(factor)) || !rules_.completable(trial)) continue;
      int gain = 0;
      for (int other = 0; other < std::ssize(row); ++other) {
        const int set = row[static_cast<std::size_t>(other)];
        gain += set != kOpen && !covered_.has({factor, value}, {other, set}) ? 1 : 0;
      }
      if (gain > most) std::tie(best, most) = std::pair(value, gain);
    }
    return best;
  }

  std::size_t new_pairs(const Row& row) const {
    std::size_t count = 0;
    PairSet::for_pairs(row, [&](Choice a, Choice b) { count += covered_.has(a, b) ? 0 : 1; });
    return count;
  }

  const Problem& problem_;
  const Rules rules_;
  const int candidates_;
  PairSet covered_;
  std::vector<Pair> open_;
  std::mt19937_64 random_;
};

}  // namespace

bool legal(const Problem& problem, const Row& row) { return Rules(problem).allow(row); }

Coverage coverage(const Problem& problem, const std::vector<Row>& rows) {
  const Rules rules(problem);
  PairSet together(problem);
  for (const Row& row : rows)
    if (rules.allow(row)) together.add(row);
  Coverage result;
  for_all_pairs(problem, [&](const Pair& pair) {
    ++result.possible;
    if (together.has(pair.a, pair.b))
      ++result.covered;
    else if (rules.can_stand(pair))
      result.missed.push_back(pair);
    else
      result.illegal.push_back(pair);
  });
  return result;
}

std::vector<Row> pairwise(const Problem& problem, std::uint64_t seed, int candidates) {
  return Greedy(problem, seed, candidates).rows();
}

}  // namespace suites::covering
