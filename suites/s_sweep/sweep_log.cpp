#include "suites/s_sweep/sweep_log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/codes.hpp"

namespace suites::s_sweep_cases {

void SweepLog::add(const Point& point, const std::optional<probes::Diagnosis>& found) {
  if (!found) {
    passing_.push_back(point);
    return;
  }
  failing_.push_back(point);
  if (failing_.size() > kTold) return;
  harness::Json evidence = design_.json(point);
  evidence.update(found->evidence);
  context_.expect(design_.name(point), false, fmt::format("{}: {}", design_.name(point), found->message), found->code,
                  evidence);
}

std::string SweepLog::pattern() const {
  if (passing_.empty()) return "all of them: no value of an axis is to blame";
  if (failing_.size() == 1) return "one alone cannot tell what is to blame";
  const std::vector<Shared> found = separating_values(failing_, passing_);
  if (found.empty()) return "no value and no two values have all of them in common that the others lack";
  constexpr std::size_t kShown = 3;
  if (found.size() > kShown) return "too few to tell what they have in common";
  std::vector<std::string> sets;
  for (const Shared& values : found) {
    std::vector<std::string> words;
    for (const auto& [axis, value] : values) {
      words.push_back(fmt::format("{}={}", design_.axes[axis].name, design_.axes[axis].values[value]));
    }
    sets.push_back(fmt::format("{}", fmt::join(words, " and ")));
  }
  return fmt::format("exactly those with {}", fmt::join(sets, ", or with "));
}

void SweepLog::finish() {
  const std::size_t count = passing_.size() + failing_.size();
  context_.metric("points", static_cast<double>(count), "points");
  std::string message;
  harness::Json evidence = harness::Json::object();
  if (!failing_.empty()) {
    message = fmt::format("{} of {} points fail: {}", failing_.size(), count, pattern());
    constexpr std::size_t kShown = 32;
    for (std::size_t i = 0; i < std::min(kShown, failing_.size()); ++i) {
      evidence["failing"].push_back(design_.name(failing_[i]));
    }
  }
  context_.expect(fmt::format("all {} points are as they must be", count), failing_.empty() && count > 0,
                  count == 0 ? "no point was run" : message, codes::kSweepPattern, evidence);
}

}  // namespace suites::s_sweep_cases
