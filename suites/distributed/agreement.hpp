// What N ranks that train one model must agree on, judged from their records (record.hpp) alone: pure functions, each
// of which names the rank. Figures are compared so that NaN fails.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "suites/distributed/record.hpp"

namespace suites::distributed_ranks {

using Records = std::vector<RankRecord>;  // of all ranks of one run, in order

struct Disagreement {
  std::string_view code;
  std::string message;
  Json evidence = Json::object();
};
using Disagreements = std::vector<Disagreement>;

// The places whose value is not the most frequent one; where several are as frequent, rank 0's counts as right.
[[nodiscard]] std::vector<int> odd_ones(const std::vector<std::string>& values);
// "rank 2", "ranks 1 and 3", "ranks 1, 2 and 3".
[[nodiscard]] std::string ranks_in_words(const std::vector<int>& ranks);

// Ranks have made the same steps, and after each their parameters are the same bits; the first difference is told.
[[nodiscard]] Disagreements parameters_agree(const Records& records);
// All ranks tell the same loss, norm, rate and tokens of each step, bit for bit.
[[nodiscard]] Disagreements figures_agree(const Records& records);
// The rows of all ranks together are those of one process, each once, step by step. `wanted`: the one process's record.
[[nodiscard]] Disagreements rows_complete(const Records& records, const RankRecord& wanted);
// A rank that has rows has a gradient for every parameter that others have one for.
[[nodiscard]] Disagreements no_parameter_skipped(const Records& records);
// A step that stopped for a value that is not finite, which some ranks alone have or none has; and that the stop names
// one of those.
[[nodiscard]] Disagreements finite_everywhere(const Records& records);
// Their clocks, read at the same moment, are no further apart than `seconds`.
[[nodiscard]] Disagreements clocks_agree(const Records& records, double seconds);
// In each step that was made every element of the model's gradients is reduced once. `elements`: of the model.
[[nodiscard]] Disagreements reduced_once(const Records& records, std::int64_t elements);

// Losses of a run on N ranks against those of one, step by step: the first that is further from it than `relative` of
// it. `code`: kRankLoss for a first step, kRankRun for a run. Tells it too where the number of steps differs.
[[nodiscard]] Disagreements losses_agree(const RankRecord& record, const RankRecord& wanted, double relative,
                                         std::string_view code);

// The rank whose own work (StepSeen::own_seconds) takes longest, and by how much more than the median of the others',
// as medians over the steps after the first.
struct Straggler {
  int rank = 0;
  double seconds = 0, others = 0;  // a step's own work, its and the others'
  [[nodiscard]] double excess() const { return seconds / others - 1; }
};
[[nodiscard]] Straggler straggler(const Records& records);

}  // namespace suites::distributed_ranks
