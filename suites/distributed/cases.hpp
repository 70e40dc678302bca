// The cases of the suite (README.md has the table).
#pragma once

#include "suites/distributed/trial.hpp"

namespace suites::distributed_cases {

using distributed_ranks::Trial;
using harness::Context;

// One process against N ranks: loss, every gradient, norm, chosen blocks, the update, every further step; ranks' bits
// after each; the data; how often gradients are reduced.
void parity(const Subject& subject, Context& context, const Trial& trial);

// What `from` ranks save goes on with `to` ranks as if nothing had been.
void resume(const Subject& subject, Context& context, int from, int to);

// A fault of a rank (its name in the catalogue) is told by the product: by the right kind of error, with the right
// rank, in time, and without a process that stays behind.
struct Failure {
  std::string_view fault, code;
};
[[nodiscard]] const std::vector<Failure>& failures();
void failure(const Subject& subject, Context& context, const Failure& failure, int ranks);

// Figures: bandwidth of an all-reduce, weak scaling, overlap, the slowest rank.
void pace(const Subject& subject, Context& context, int ranks);

}  // namespace suites::distributed_cases
