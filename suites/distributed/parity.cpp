// The case parity.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "nsa/config.hpp"
#include "suites/codes.hpp"
#include "suites/distributed/cases.hpp"

namespace suites::distributed_cases {

using namespace distributed_ranks;

namespace {

constexpr double kClockSeconds = 5;

// The first step's tensors.
void compare_first_step(Context& context, const Order& order, const Records& records, const Alone& alone, double tol,
                        TrialFolder& folder) {
  std::vector<Tensors> seen;
  for (const RankRecord& record : records) seen.push_back(read_tensors(order.tensors_of(record.rank)));
  const nsa::Config config = config_of(order);
  Measured of_gradients, of_update;
  tell(context, "every gradient is that of one process",
       gradients_agree(seen.front(), alone.tensors, records, tol, of_gradients), codes::kRankGradients, folder);
  context.metric("worst_gradient", of_gradients.worst, "of allowed");
  context.metric("worst_gradient_relative", of_gradients.relative, "of its norm");
  tell(context, "the norm is that of the sum", norm_of_the_sum(seen.front(), records, tol), codes::kRankNorm, folder);
  tell(context, "the update follows from the sum",
       update_follows(seen.front(), config.train, records.front().steps.front().lr, tol, of_update), codes::kRankUpdate,
       folder);
  context.metric("worst_update", of_update.worst, "of allowed");
  tell(context, "the chosen blocks are those of one process", blocks_agree(seen, records, alone.tensors, alone.record),
       codes::kRankBlocks, folder);
}

// A step in which a rank's value was not finite is told by that alone: what follows is no comparison.
bool all_finite(Context& context, const Records& records, TrialFolder& folder) {
  const Disagreements found = finite_everywhere(records);
  tell(context, "values are finite on all ranks or on none", found, codes::kRankNotFinite, folder);
  return found.empty();
}

}  // namespace

void parity(const Subject& subject, Context& context, const Trial& trial) {
  TrialFolder folder(context, fmt::format("parity-{}", trial.ranks));
  Order order = make_order(subject, context, trial, folder.path());
  order.keep_first_step = true;
  const nsa::Config config = config_of(order);
  context.phase("one process");
  const Alone alone = run_alone(subject, order);
  context.phase(fmt::format("{} ranks", trial.ranks));
  const auto records = run_told(context, order, trial.ranks, folder, &alone.record);
  if (!records || !all_finite(context, *records, folder)) return;
  context.phase("comparing");
  const double tol = tolerance(config, trial.rows * trial.accumulate);
  context.metric("tolerance", tol, "relative");
  tell(context, "clocks", clocks_agree(*records, kClockSeconds), codes::kRankClock, folder);
  tell(context, "ranks read each row once", rows_complete(*records, alone.record), codes::kRankRows, folder);
  tell(context, "no parameter is skipped", no_parameter_skipped(*records), codes::kRankSkipsParameter, folder);
  tell(context, "gradients are reduced once a step", reduced_once(*records, elements_of(alone.tensors)),
       codes::kRankReductions, folder);
  compare_first_step(context, order, *records, alone, tol, folder);
  tell(context, "ranks tell the same figures", figures_agree(*records), codes::kRankLoss, folder);
  tell(context, "parameters are the same bits after each step", parameters_agree(*records), codes::kRanksDrift, folder);
  RankRecord first = records->front(), first_alone = alone.record;
  first.steps.resize(std::min<std::size_t>(first.steps.size(), 1));
  first_alone.steps.resize(std::min<std::size_t>(first_alone.steps.size(), 1));
  tell(context, "the first loss is that of one process", losses_agree(first, first_alone, tol, codes::kRankLoss),
       codes::kRankLoss, folder);
  double parted = 0;
  for (std::size_t s = 0; s < std::min(records->front().steps.size(), alone.record.steps.size()); ++s)
    parted = std::max(parted, std::abs(records->front().steps[s].loss / alone.record.steps[s].loss - 1));
  context.metric("losses_part", parted, "of the loss");
  if (trial.precision != nsa::Precision::fp64) return;  // in fp32 rounding may turn the sign of an element's update
  const double of_run = tolerance_of_a_run(config, alone.record.steps.front(), elements_of(alone.tensors), tol);
  context.metric("tolerance_of_the_run", of_run, "of the loss");
  tell(context, "all losses are those of one process",
       losses_agree(records->front(), alone.record, of_run, codes::kRankRun), codes::kRankRun, folder);
}

}  // namespace suites::distributed_cases
