// The covering designs of the sweep (probes/covering.hpp): axes, what may not meet, and points such that every two
// values of different axes meet in some point; and what failing points have in common.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "reports/json.hpp"
#include "suites/probes/covering.hpp"

namespace suites::s_sweep_cases {

using Axis = covering::Factor;
// The number of a value for every axis.
using Point = std::vector<std::size_t>;

// One value of each of two axes, first < second.
struct Pair {
  std::size_t first = 0, a = 0, second = 0, b = 0;
};

class Design {
 public:
  using Allowed = std::function<bool(const Pair&)>;
  // Deterministic. A pair that `allowed` refuses stands in no point; a pair that it allows but that no point can
  // hold, because other axes leave no value for it, is listed in `impossible`. Throws std::invalid_argument for an
  // axis without values.
  Design(std::vector<Axis> axes, const Allowed& allowed);

  std::vector<Axis> axes;
  std::vector<Point> points;
  std::size_t pairs = 0;     // that points can hold; every one of them is held
  std::size_t excluded = 0;  // refused by `allowed`
  std::vector<Pair> impossible;

  [[nodiscard]] std::string name(const Point& point) const;  // "S=31 dtype=bf16 ..."
  [[nodiscard]] reports::Json json(const Point& point) const;
  // Pairs that occur in `points`, counted anew: the figure for a report.
  [[nodiscard]] std::size_t held(const std::vector<Point>& some_points) const;
};

// What all failing points have in common and no other has: all sets of the fewest values that do it, one or two values
// each. Several, when the points do not tell which of them it is; none, when no one and no two values do it.
using Shared = std::vector<std::pair<std::size_t, std::size_t>>;  // (axis, value)
[[nodiscard]] std::vector<Shared> separating_values(const std::vector<Point>& failing,
                                                    const std::vector<Point>& passing);

}  // namespace suites::s_sweep_cases
