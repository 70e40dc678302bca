// The outcome of many points of a covering design, told as one case: the first failures each as a finding of its own,
// and then what all of them have in common.
#pragma once

#include <optional>
#include <vector>

#include "harness/context.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/s_sweep/design.hpp"

namespace suites::s_sweep_cases {

class SweepLog {
 public:
  SweepLog(harness::Context& context, const Design& design) : context_(context), design_(design) {}

  // The phase of the case: the point that is about to run.
  void begin(const Point& point) { context_.phase(design_.name(point)); }
  // Its outcome; nothing found is a pass. The fourth and later failures are only counted.
  void add(const Point& point, const std::optional<probes::Diagnosis>& found);
  // Whether enough is told: a further failure need not be located, only counted.
  [[nodiscard]] bool full() const { return failing_.size() >= kTold; }
  // The check of the whole: how many points failed, and the values that separate them from the others.
  void finish();

 private:
  static constexpr std::size_t kTold = 3;
  [[nodiscard]] std::string pattern() const;

  harness::Context& context_;
  const Design& design_;
  std::vector<Point> passing_, failing_;
};

}  // namespace suites::s_sweep_cases
