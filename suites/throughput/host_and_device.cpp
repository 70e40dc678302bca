// Case host_and_device: how many operations and host synchronisations a training step costs, whether their number grows
// with every row (a loop on the host), and, on a GPU, how long it worked and how long it waited for the host.
#include <fmt/format.h>

#include "suites/codes.hpp"
#include "suites/probes/gpu_trace.hpp"
#include "suites/probes/launches.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/probes/utilisation.hpp"
#include "suites/throughput/training_run.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

// Whole-tensor code adds a few operations for every chunk of at least 256 rows; a loop adds at least one for each row
// or, when it walks in small groups of rows, for each group.
constexpr double kOpsPerRow = 0.5;
constexpr double kSyncsPerRow = 0.02;
// Of a whole step: reading loss and norm, the batch's way to the device, the end; and two a layer and batch, which the
// offsets of FlashAttention-2's varlen entry need.
constexpr double kSyncsPerStep = 8, kSyncsPerLayer = 2;

Json to_json(const probes::OpCount& count, double tokens) {
  Json json = {{"ops", count.ops},
               {"host_syncs", count.host_syncs},
               {"ops_per_token", reports::number(static_cast<double>(count.ops) / tokens)},
               {"host_syncs_by_op", count.syncs_by_op},
               {"most_frequent", count.most_frequent()}};
  return json;
}

// A replay has no operations to be counted: they are those of the step that is captured.
nsa::Config uncaptured(nsa::Config config) {
  config.train.cuda_graph = nsa::CudaGraph::off;
  return config;
}

// Operations of one step (after a warm-up, which sets up moments and workspaces).
probes::OpCount count_step(Training& training) {
  (void)training.step();
  return probes::count_ops(training.device(), [&] { (void)training.step(); });
}

// The law of the counts: two lengths, one row in the batch, two layers.
void judge_growth(const Subject& subject, Context& context, nsa::Config config) {
  config.model.n_layers = std::min<std::int64_t>(config.model.n_layers, 2);
  config.train.batch_size = 1;
  config.train.accumulate_grad_batches = 1;
  config = uncaptured(config);
  Bench bench = make_bench(subject, context, config, subject.flags());
  const std::int64_t shorter = std::max<std::int64_t>(256, 4 * config.model.nsa.l_sel);
  const auto count_at = [&](std::int64_t S) {
    context.phase(fmt::format("operations of a step at S = {}", S));
    bench.config.train.seq_len = S;
    Training training(bench, context);
    return count_step(training);
  };
  const probes::OpCount a = count_at(shorter), b = count_at(2 * shorter);
  const auto added = static_cast<double>(shorter * config.model.n_layers);
  const probes::Growth growth = probes::growth_per_row(a, b, added);
  const Json evidence = {{"lengths", {shorter, 2 * shorter}},
                         {"ops", {a.ops, b.ops}},
                         {"host_syncs", {a.host_syncs, b.host_syncs}},
                         {"host_syncs_by_op", b.syncs_by_op},
                         {"grew_most", growth.grown}};
  context.fact("growth", evidence);
  context.expect_at_most("operations_per_added_row_and_layer", growth.ops_per_row, kOpsPerRow, "1", codes::kHostLoop,
                         evidence);
  context.expect_at_most("host_syncs_per_added_row_and_layer", growth.syncs_per_row, kSyncsPerRow, "1",
                         codes::kHostSyncs, evidence);
}

// Shares of a step's time, percent.
struct Shares {
  double busy = 0;        // the device computes
  double host_bound = 0;  // the device idles, and the host does not wait for it
  std::string of;
};

// Steps that nobody traced: the tracer writes a record for each kernel of a graph before it launches it, and goes on
// doing so after its last trace (1.4 ms for the 1,800 kernels of a step of 12 layers that takes 0.05 ms otherwise).
struct Untraced {
  double seconds = 0;     // of a replay, median; 0 where steps are no replays
  double host_bound = 0;  // percent of it that the host did not spend waiting for the figures, median
};
Untraced replays(Training& training) {
  constexpr int kSteps = 20;
  std::vector<double> seconds, host;
  for (int i = 0; i < kSteps && training.step().replayed; ++i) {
    seconds.push_back(training.last().seconds);
    host.push_back(100 * (1 - training.last().wait_seconds / training.last().seconds));
  }
  if (seconds.empty()) return {};
  return {probes::median(seconds), probes::median(host)};
}

// Where steps are replays, the kernels' time is the trace's and everything else that of the untraced ones.
Shares shares_of(const Untraced& replay, const probes::GpuTrace& trace) {
  if (replay.seconds == 0) return {trace.busy_percent(), trace.host_bound_percent(), "the traced step"};
  return {100 * trace.busy_s / replay.seconds, replay.host_bound, "replays before the tracer's start"};
}

void judge_trace(Context& context, const probes::GpuTrace& trace, const Shares& shares, const nsa::Config& config,
                 double tokens) {
  Json evidence = trace.to_json();
  context.fact("trace", evidence);
  evidence["shares"] = {{"of", shares.of},
                        {"gpu_busy_percent", reports::number(shares.busy)},
                        {"host_bound_percent", reports::number(shares.host_bound)}};
  context.fact("shares", evidence["shares"]);
  context.metric("kernels_per_token", static_cast<double>(trace.kernels) / tokens, "1");
  context.metric("launches_per_token", static_cast<double>(trace.launches) / tokens, "1");
  context.metric("host_waits_per_token", static_cast<double>(trace.host_waits) / tokens, "1");
  context.metric("launches_per_step", static_cast<double>(trace.launches), "1");
  context.metric("host_waits_per_step", static_cast<double>(trace.host_waits), "1");
  context.metric("gpu_busy", shares.busy, "%");
  context.metric("host_bound", shares.host_bound, "%");
  const auto batches = static_cast<double>(config.train.accumulate_grad_batches);
  context.expect_at_most("host_syncs_of_a_step", static_cast<double>(trace.host_waits),
                         kSyncsPerStep + batches * (2 + kSyncsPerLayer * static_cast<double>(config.model.n_layers)),
                         "1", codes::kHostSyncs, evidence);
  context.expect_at_least("gpu_busy", shares.busy, context.settings().real("throughput.gpu_percent"), "%",
                          codes::kGpuIdle, evidence);
  context.expect_at_most("host_bound_share", shares.host_bound, context.settings().real("throughput.cpu_percent"), "%",
                         codes::kHostShare, evidence);
}

}  // namespace

void host_and_device(const Subject& subject, Context& context) {
  const nsa::Config config = subject.config(context);
  try {
    judge_growth(subject, context, config);

    {
      context.phase("operations of a step");
      Training training(make_bench(subject, context, uncaptured(config), subject.flags()), context);
      const probes::OpCount count = count_step(training);
      context.metric("ops_per_token", static_cast<double>(count.ops) / training.tokens(), "1");
      context.metric("host_syncs_per_token", static_cast<double>(count.host_syncs) / training.tokens(), "1");
      context.metric("ops_per_step", static_cast<double>(count.ops), "1");
      context.fact("operations", to_json(count, training.tokens()));
    }
    context.phase("model");
    Training training(make_bench(subject, context, config, subject.flags()), context);
    context.phase("steps under the driver's account");
    probes::UtilisationSampler sampler(bus_id(training.device()));
    (void)training.seconds({.warm_up = 1, .repeats = 20, .budget_s = 2});
    const probes::Utilisation use = sampler.stop();
    context.fact("utilisation", use.to_json());
    context.fact("step", training.way());
    context.metric("cpu_of_machine", use.cpu_percent_of_machine(), "%");
    if (const auto gpu = use.gpu_percent_median()) context.metric("gpu_by_driver", *gpu, "%");

    if (!context.cuda()) return;  // nobody waits for anybody; the counts above are what a CPU can tell
    context.phase("steps before the tracer");
    const Untraced replay = replays(training);
    context.phase("traced step");
    (void)probes::trace_gpu(training.device(), [&] { (void)training.step(); });  // the tracer's own start
    const probes::GpuTrace trace = probes::trace_gpu(training.device(), [&] { (void)training.step(); });
    if (trace.why_not.empty()) return judge_trace(context, trace, shares_of(replay, trace), config, training.tokens());
    context.finding(codes::kTraceUnavailable, "the GPU cannot be traced: " + trace.why_not,
                    {{"reason", trace.why_not}});
    if (const auto gpu = use.gpu_percent_median())
      context.expect_at_least("gpu_busy_by_driver", *gpu, context.settings().real("throughput.gpu_percent"), "%",
                              codes::kGpuIdle, use.to_json());
  } catch (const NoProgress& stopped) {
    stopped.tell(context, "host_and_device");
  }
}

}  // namespace suites::throughput_cases
