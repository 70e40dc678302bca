// Runs of nsa-train with several ranks: what they leave, and the processes that they are.
#pragma once

#include "nsa/train/run/tests/program_runner.hpp"

namespace nsa::train::testing {

using Arguments = std::vector<std::string>;
[[nodiscard]] Arguments with(Arguments first, const Arguments& more);

inline const Arguments kTwelveRows = {"--set", "train.batch_size=12"};

// metrics.csv: step, loss, ..., as numbers; an empty cell is NaN.
[[nodiscard]] std::vector<std::vector<double>> table(const fs::path& run);
// Losses, norms, validation and counts of tokens, within rounding of fp32 sums in another order.
void expect_same_run(const Place& one, const Place& several, std::size_t steps);
void wait_for_rows(const Place& place, std::size_t rows);  // of metrics.csv

// Processes of this run that are left, by its folder on their command line.
[[nodiscard]] std::vector<std::string> left_of(const Place& place);
// The process of a rank of this run; 0 when there is none.
[[nodiscard]] pid_t process_of(const Place& place, int rank);

// Of a run that was stopped: the last line names the last step, in which rank 1 ended too.
void expect_all_stopped_at_one_step(const Place& place, const Outcome& outcome);

}  // namespace nsa::train::testing
