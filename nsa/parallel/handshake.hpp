// What all ranks must have in common before they train together, and whether they have: facts as texts, gathered and
// compared. The comparison is pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nsa/parallel/gradient_sums.hpp"
#include "nsa/parallel/group.hpp"

namespace nsa::parallel {

using Facts = std::vector<std::pair<std::string, std::string>>;  // name, value; names differ

struct Difference {
  std::string fact;
  std::vector<int>
      ranks;  // the odd ones: not of the most frequent value; of two values that are as frequent, not rank 0's
  std::string theirs, usual;  // "(absent)" for a fact that they do not have
};
// `all`: the facts of every rank, by rank. In the order of the facts.
[[nodiscard]] std::vector<Difference> differences(const std::vector<Facts>& all);
[[nodiscard]] std::string describe(const Difference& difference);

// Gathers the facts of all ranks. Throws Disagreement with every difference; `subject` is the first fact.
void agree(Group& group, const std::string& about, const Facts& mine);

// Whether all ranks say yes: the same answer on all of them.
[[nodiscard]] bool all_of(Group& group, const std::string& about, bool mine);

// The clocks of all machines, right after the ranks have met: throws Disagreement ("clock") when one is more than
// `most_s` from the median. `now_s`: seconds of this rank's wall clock since the epoch.
inline constexpr double kMostClockSkew_s = 5;
void agree_on_time(Group& group, double most_s, double (*now_s)());
[[nodiscard]] double wall_clock_s();

// Exact and cheap: the sum of all elements' bits as integers, on the tensor's device; equal bits have equal sums.
[[nodiscard]] std::vector<std::int64_t> bit_sums(const NamedTensors& tensors);
// Throws Disagreement naming the ranks and the first tensor that differs from the usual.
void agree_on_bits(Group& group, const std::string& about, const NamedTensors& tensors);

}  // namespace nsa::parallel
