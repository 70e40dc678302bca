// Which hosts are slower than the others, by robust statistics with a stated rate of false alarms.
//
// A figure of a host is compared with the same figure of all hosts of its kind: T = (log x - median) / (1.4826 MAD), of
// the logarithms, towards slow only. Assumption: the figures of healthy hosts are log-normal (their logarithms are
// normal), of whatever centre and width; they may depend on each other in any way. Then T has tails no heavier than
// Student's t with 0.35 (n - 1) degrees of freedom (a MAD is worth 0.37 standard deviations; simulations of n = 8 ...
// 128 down to tails of 3e-6 say so, and a test repeats some), and a host is called slow where the t's tail is below
// kFalseAlarmRate divided by the number of all comparisons, hosts times figures (Bonferroni): of a hundred healthy
// fleets one at most has any alarm at all. Figures with heavier tails than log-normal give more. A host must also be
// behind by kLeastShare: a difference that nobody cares about is none.
//
// Most hosts must be healthy: of more than half that are slow, the healthy ones look fast. A few slow ones hide
// nothing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace reports {

inline constexpr double kFalseAlarmRate = 0.01;  // of a whole fleet without a slow host
inline constexpr std::size_t kLeastHosts = 8;    // with this figure; of fewer nothing is said
inline constexpr double kLeastShare = 0.03;      // behind the median

struct FleetFigure {
  struct Value {
    std::size_t host = 0;
    double value = 0;  // finite and above 0; others are not judged
  };
  std::string name, unit;
  std::string kind;  // of the hosts: "NVIDIA H200"; others are not compared
  bool more_is_faster = true;
  std::vector<Value> values;
};

struct SlowHost {
  std::size_t host = 0, figure = 0;  // figure: its place in the list
  double value = 0, median = 0;
  double behind_percent = 0;  // of the speed: 50 is half as fast
  double chance = 0;          // that any healthy fleet of this size shows such a host in any of its figures, at most
};

struct SlowHosts {
  std::size_t comparisons = 0;     // hosts times figures that were judged
  std::size_t figures = 0;         // that were judged
  std::size_t figures_of_few = 0;  // of fewer hosts than kLeastHosts
  std::vector<SlowHost> found;     // the least likely first
};

[[nodiscard]] SlowHosts find_slow_hosts(const std::vector<FleetFigure>& figures);

// P(T > t) of Student's t, t > 0.
[[nodiscard]] double student_tail(double t, double degrees);

}  // namespace reports
