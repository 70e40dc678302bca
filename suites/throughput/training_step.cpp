// Case training_step: tokens per second of the whole training step against its floor, and who is busy meanwhile.
// Case backends: the same figure for every backend.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "nsa/train/trainer.hpp"
#include "suites/codes.hpp"
#include "suites/probes/utilisation.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;
using nsa::train::StepReport;
using nsa::train::Stop;

// The trainer refused to go on: there is no time to speak of.
struct NoProgress {
  StepReport report;
};

class Training {
 public:
  Training(Bench bench, Context& context)
      : bench_(std::move(bench)),
        context_(context),
        crops_(nsa::train::read_bytes(text_file(context.settings(), bench_.config)), train().batch_size,
               train().seq_len, train().seed),
        trainer_(bench_.instance.model, train(), [this] { return crops_.next(); }) {}
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  [[nodiscard]] std::vector<double> seconds(const TimingPlan& plan) {
    return time_repeats("training step", bench_.device, plan, [this] {
      const StepReport report = trainer_.step();
      context_.progress();
      if (report.stop != Stop::none) throw NoProgress{report};
    });
  }
  [[nodiscard]] double tokens() const {
    return static_cast<double>(train().batch_size * train().seq_len * train().accumulate_grad_batches);
  }
  [[nodiscard]] std::map<std::string, std::int64_t> routes() const {
    return bench_.instance.dispatcher->routes_taken();
  }

 private:
  [[nodiscard]] const nsa::TrainConfig& train() const { return bench_.config.train; }

  Bench bench_;
  Context& context_;
  nsa::train::RandomCrops crops_;
  nsa::train::Trainer trainer_;
};

std::string bus_id(const at::Device& device) {
  std::array<char, 32> text{};
  if (!device.is_cuda() ||
      cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device.index()) != cudaSuccess) {
    return "";
  }
  return text.data();
}

// The median decides; where the interval holds the floor (also when measured again) the doubt is told.
void judge_rate(const Summary& rate, Gate gate, Context& context, const Json& evidence) {
  const double floor = context.settings().real("throughput.floor_tok_s");
  if (gate == Gate::unclear) {
    context.finding(
        codes::kTimingUnusable,
        fmt::format("{:.0f} tok/s, 95 % interval {:.0f} to {:.0f} over {} repeats: it holds the floor of {:.0f}",
                    rate.median, rate.interval.low, rate.interval.high, rate.n, floor),
        evidence);
  }
  context.expect_at_least("training step against its floor", rate.median, floor, "tok/s",
                          gate == Gate::far_below ? codes::kFarBelowGate : codes::kBelowGate, evidence);
}

// On a GPU the host should feed it and wait. A waiting host thread may spin, so its CPU time alone proves nothing; it
// is evidence beside a GPU that idles.
void judge_utilisation(const probes::Utilisation& use, Context& context) {
  Json evidence = use.to_json();
  const double gpu_wanted = context.settings().real("throughput.gpu_percent");
  const double cpu_wanted = context.settings().real("throughput.cpu_percent");
  evidence["expected"] = {{"gpu_percent_at_least", gpu_wanted}, {"cpu_percent_of_machine_at_most", cpu_wanted}};
  context.fact("utilisation", evidence);
  context.metric("cpu_of_core", use.cpu_percent_of_core(), "%");
  context.metric("cpu_of_machine", use.cpu_percent_of_machine(), "%");
  const auto gpu = use.gpu_percent_median();
  if (!gpu) return;
  context.metric("gpu", *gpu, "%");
  if (*gpu >= gpu_wanted) return;
  context.finding(
      codes::kHostBound,
      fmt::format("the GPU is busy for {:.0f} % of a training step (expected: at least {:.0f} %), while the "
                  "host uses {:.0f} % of a core, {:.1f} % of {} cores (expected: at most {:.0f} %)",
                  *gpu, gpu_wanted, use.cpu_percent_of_core(), use.cpu_percent_of_machine(), use.cores, cpu_wanted),
      evidence);
}

}  // namespace

void training_step(const Subject& subject, Context& context) {
  context.phase("set-up");
  Training training(make_bench(subject, context, subject.config(context), subject.flags()), context);
  const double floor = context.settings().real("throughput.floor_tok_s");
  const int repeats = static_cast<int>(context.settings().integer("throughput.repeats"));
  try {
    context.phase("warm-up");
    (void)training.seconds({.warm_up = 1, .repeats = 1, .least = 1});
    context.phase("timed steps");
    probes::UtilisationSampler sampler(bus_id(device_of(context)));
    std::vector<double> rate_samples = rates(training.seconds({.warm_up = 1, .repeats = repeats}), training.tokens());
    const probes::Utilisation use = sampler.stop();
    if (judge(summarise(rate_samples), floor) == Gate::unclear) {
      context.phase("timed steps once more");
      rate_samples = rates(training.seconds({.warm_up = 1, .repeats = 3 * repeats, .budget_s = 15}), training.tokens());
    }
    const Summary rate = tell_rate(context, "training_step", rate_samples);
    context.fact("routes", training.routes());
    judge_utilisation(use, context);
    judge_rate(rate, judge(rate, floor), context,
               {{"rate", to_json(rate)}, {"floor", floor}, {"utilisation", use.to_json()}});
  } catch (const NoProgress& stopped) {
    context.finding(codes::kFarBelowGate,
                    fmt::format("no progress: training stopped in step {} with '{}' {}", stopped.report.step,
                                nsa::train::to_string(stopped.report.stop), stopped.report.anomaly),
                    {{"step", stopped.report.step}, {"anomaly", stopped.report.anomaly}});
  }
}

void backends(const Subject& subject, Context& context) {
  struct Row {
    const char* name;
    nsa::EffectiveFlags flags;
    int repeats;
  };
  std::vector<Row> rows = {
      {"flash", {}, 3}, {"flash_masked", {}, 3}, {"sdpa", {}, 3}, {"sdpa_masked", {}, 3}, {"reference", {}, 2}};
  for (Row& row : rows) {
    const std::string_view name = row.name;
    row.flags.fa2_all = row.flags.fa2_win = row.flags.fa2_cmp = name.starts_with("flash");
    row.flags.sel_mask = name.ends_with("masked");
    row.flags.sel_pack = !row.flags.sel_mask;
    row.flags.force_parity = name == "reference";
  }
  const nsa::Config config = subject.config(context);
  Json table = Json::array();
  for (const Row& row : rows) {
    context.phase(row.name);
    Training training(make_bench(subject, context, config, row.flags), context);
    try {
      const TimingPlan plan{.warm_up = 1, .repeats = row.repeats, .least = 2, .budget_s = 1};
      const Summary rate = summarise(rates(training.seconds(plan), training.tokens()));
      context.metric(fmt::format("tok_s_{}", row.name), rate.median, "tok/s");
      table.push_back({{"backend", row.name}, {"tok_s", to_json(rate)}, {"routes", training.routes()}});
    } catch (const NoProgress& stopped) {
      table.push_back({{"backend", row.name}, {"stopped", nsa::train::to_string(stopped.report.stop)}});
      context.finding(codes::kFarBelowGate, fmt::format("{}: no progress, training stopped in step {}: {}", row.name,
                                                        stopped.report.step, stopped.report.anomaly));
    }
  }
  context.fact("backends", table);
}

}  // namespace suites::throughput_cases
