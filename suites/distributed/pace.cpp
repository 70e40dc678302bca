// The case pace: figures, and who is slow.
#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/distributed/cases.hpp"
#include "suites/probes/statistics.hpp"

namespace suites::distributed_cases {

using namespace distributed_ranks;

namespace {

constexpr double kMostExcess = 0.5;  // of a rank's own work over the others'

// Of the steps after the first, which sets things up.
std::vector<double> seconds_of(const RankRecord& record) {
  std::vector<double> seconds;
  for (std::size_t s = 1; s < record.steps.size(); ++s) seconds.push_back(record.steps[s].seconds);
  return seconds;
}

// What a rank sends and receives of an all-reduce in a ring, by the seconds that it takes: the bandwidth of the bus.
void bandwidth(Context& context, const RankRecord& record, int ranks) {
  const Json times = record.figures.value("all_reduce_s", Json::object());
  for (const auto& [elements, seconds] : times.items()) {
    const double bytes = 4 * std::stod(elements) * 2 * (ranks - 1) / ranks;
    context.metric(fmt::format("all_reduce_{}_elements", elements), bytes / seconds.get<double>() / 1e9, "GB/s");
  }
}

}  // namespace

void pace(const Subject& subject, Context& context, int ranks) {
  constexpr std::int64_t kRowsOfARank = 4, kSteps = 12;
  TrialFolder folder(context, fmt::format("pace-{}", ranks));
  const auto order_for = [&](int size, const char* name) {
    const Trial trial{.ranks = size,
                      .most_ranks = ranks,
                      .precision = nsa::Precision::fp32,
                      .steps = kSteps,
                      .rows = kRowsOfARank * size,
                      .whole_batches = kSteps};
    Order order = make_order(subject, context, trial, folder.path() / name);
    return order;
  };
  context.phase("one rank");
  const Alone alone = run_alone(subject, order_for(1, "one"));
  context.phase(fmt::format("{} ranks", ranks));
  Order order = order_for(ranks, "all");
  order.reduce_elements = {1 << 10, 1 << 16, 1 << 20};
  const auto records = run_told(context, order, ranks, folder);
  if (!records) return;
  bandwidth(context, records->front(), ranks);
  const std::vector<double> one = seconds_of(alone.record), all = seconds_of(records->front());
  const probes::Interval efficiency = probes::bootstrap_ratio(one, all);
  context.metric("weak_scaling_efficiency", probes::median(one) / probes::median(all), "1");
  context.metric("weak_scaling_efficiency_low", efficiency.low, "1");
  context.metric("weak_scaling_efficiency_high", efficiency.high, "1");
  double reducing = 0, overlapped = 0, tokens = 0, seconds = 0;
  for (const StepSeen& step : records->front().steps) {
    reducing += step.reduction_s;
    overlapped += step.overlapped_s;
    tokens += static_cast<double>(step.tokens);
    seconds += step.seconds;
  }
  if (reducing > 0) context.metric("overlap", overlapped / reducing, "of the reductions' time");
  context.metric("tokens_per_second", tokens / seconds, "1/s");
  const Straggler slow = straggler(*records);
  context.metric("straggler_excess", slow.excess(), "of the others' step");
  context.fact("slowest_rank", {{"rank", slow.rank}, {"step_s", slow.seconds}, {"others_s", slow.others}});
  if (order.device == "cpu") return;  // ranks that share cores wait for each other, whoever is slow
  context.expect_at_most(fmt::format("rank {} (the slowest) keeps up", slow.rank), slow.excess(), kMostExcess,
                         "of the others' step", codes::kStraggler,
                         {{"ranks", Json::array({slow.rank})}, {"step_s", slow.seconds}, {"others_s", slow.others}});
}

}  // namespace suites::distributed_cases
