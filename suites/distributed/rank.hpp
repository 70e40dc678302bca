// One rank of a run: a process that the program starts of itself. It builds the subject's model, trains it together
// with the other ranks as nsa-train does, and writes down what it saw (record.hpp) and, of the first step, tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nsa/parallel/world.hpp"
#include "suites/distributed/order.hpp"
#include "suites/faults/planted.hpp"
#include "suites/subject.hpp"

namespace suites::distributed_ranks {

inline constexpr std::string_view kRankVerb = "__rank";

// main() asks this first: the exit code when the arguments ask for a rank (`__rank ORDER`, the world in the
// environment), nothing when they ask for something else. `subject` has the seams that `faults` fill.
[[nodiscard]] std::optional<int> rank_verb(int argc, char** argv, const Subject& subject,
                                           const std::vector<Planted>& faults);

[[nodiscard]] nsa::Config config_of(const Order& order);

// The same in this process: 0 when the run came to its end, 1 when it ended with what the record says.
int run_rank(const Subject& subject, const Order& order, const nsa::parallel::World& world);

}  // namespace suites::distributed_ranks
