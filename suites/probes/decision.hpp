// Is a build faster or slower than another? The answer can also be that it cannot be told. Pure functions of samples.
//
//   same       the 95 % bootstrap interval of the ratio of medians lies inside the threshold
//   faster     the whole interval lies beyond the threshold, and so in cycles where clocks are known
//   slower     the same on the other side
//   ambiguous  the interval holds the threshold, or time and cycles disagree
//   unusable   too few samples, a sample that scatters, or no baseline of the same kind: nothing was compared
//
// The threshold is the least effect that matters, or the noise floor if that is larger: the difference that the same
// build shows against itself (A/A), timed in the order A B B A, so that a slow drift meets both alike.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/json.hpp"
#include "suites/probes/statistics.hpp"

namespace suites::probes {

enum class Change { same, faster, slower, ambiguous, unusable };
[[nodiscard]] std::string_view to_string(Change change);  // for machines: "same", ...
[[nodiscard]] std::string_view words(Change change);      // for people: SAME, FASTER, SLOWER, CANNOT TELL

// The A/A floor of two samples of one build: 0.02 means that a ratio within 1/1.02 .. 1.02 says nothing.
[[nodiscard]] double noise_floor(std::span<const double> a, std::span<const double> again);

// Repeated times of one piece of work.
struct Timed {
  std::vector<double> seconds;
  double noise = 0;              // A/A floor of the run that measured it
  std::optional<double> sm_mhz;  // median clock meanwhile; absent on a CPU and where the driver does not tell

  [[nodiscard]] reports::Json to_json() const;
  // Throws std::invalid_argument (what is missing or is no number).
  [[nodiscard]] static Timed from_json(const reports::Json& json);
};

struct DecisionLimits {
  double least_effect = 0.05;     // smaller changes do not matter
  std::size_t least_samples = 5;  // each
  double largest_scatter = 0.35;  // interquartile range / median, each
};

struct Decision {
  Change change = Change::unusable;
  double ratio = 0;  // time now / time before; above 1 is slower
  Interval interval;
  double threshold = 0;             // 0.05: within 1/1.05 .. 1.05 is the same
  std::optional<double> in_cycles;  // the ratio of times multiplied by clocks
  double p = 0;                     // Mann and Whitney; evidence, not part of the decision
  std::string reason;               // why nothing can be told

  [[nodiscard]] reports::Json to_json() const;
};
[[nodiscard]] Decision decide(const Timed& before, const Timed& now, const DecisionLimits& limits = {});

}  // namespace suites::probes
