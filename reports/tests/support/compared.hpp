// Runs to compare with each other, for tests: the same two cases in each, on a GPU.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "reports/compare.hpp"

namespace reports::sample {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// What a run on a GPU records; every kind of value that a provider writes.
[[nodiscard]] Json provenance();

// Runs "r1", "r2", ... of the same two cases, alpha/case0 and alpha/case1, which pass.
class Compared {
 public:
  explicit Compared(std::size_t runs = 2);
  reports::Run& operator[](std::size_t i) { return runs_[i].run; }
  Case& at(std::size_t run, std::size_t c = 0) { return runs_[run].run.suites[0].cases[c]; }
  [[nodiscard]] Comparison operator()();  // of these runs, with their causes
  std::vector<NamedRun> runs_;
};

[[nodiscard]] std::vector<std::string> names(const std::vector<Difference>& rows);

// What a case records beside a figure that it measured n times.
[[nodiscard]] Json interval(double low, double high, int n = 7);

}  // namespace reports::sample
