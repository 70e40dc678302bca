// Pairwise covering arrays: few rows in which every pair of values of every two factors stands together somewhere. What
// fails because of one value, or of two together, fails at some row; the full product would only repeat it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace suites::covering {

struct Factor {
  std::string name;
  std::vector<std::string> values;  // at least one
};
using Row = std::vector<int>;  // the value of each factor, by index

struct Choice {
  int factor = 0, value = 0;
  bool operator==(const Choice&) const = default;
};
struct Pair {
  Choice a, b;  // a.factor < b.factor
};
// Choices that must not stand together in a row, with the reason; two or more.
struct Forbidden {
  std::vector<Choice> choices;
  std::string reason;
};

struct Problem {
  std::vector<Factor> factors;
  std::vector<Forbidden> forbidden;
};

// What rows cover of a problem.
struct Coverage {
  std::size_t possible = 0, covered = 0;  // pairs of values; those that stand together in some row that is legal
  std::vector<Pair> illegal;              // that no legal row can hold
  std::vector<Pair> missed;               // legal, and in no row
  [[nodiscard]] std::size_t legal() const { return possible - illegal.size(); }
};
[[nodiscard]] Coverage coverage(const Problem& problem, const std::vector<Row>& rows);

// Legal rows that cover every legal pair; the same rows for the same problem and seed. Greedy: the rows grow one by
// one, the best of so many candidates each time. The count is near the smallest possible and not equal to it; one
// candidate takes a thirtieth of the time and a few rows more.
[[nodiscard]] std::vector<Row> pairwise(const Problem& problem, std::uint64_t seed, int candidates = 30);

// No forbidden choices stand in it together.
[[nodiscard]] bool legal(const Problem& problem, const Row& row);

}  // namespace suites::covering
