// Case training_step: tokens per second of the whole training step against its floor, and who is busy meanwhile.
// Case backends: the same figure for every backend.
#include <fmt/format.h>

#include "base/clock.hpp"
#include "nsa/call.hpp"
#include "suites/codes.hpp"
#include "suites/probes/utilisation.hpp"
#include "suites/throughput/baseline.hpp"
#include "suites/throughput/gate_file.hpp"
#include "suites/throughput/training_run.hpp"
#include "suites/ways.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr double kDriverSeconds = 1;  // the driver's figure of a GPU covers a sixth of a second and more

// A floor that was set, where it holds for this model (gate_file.hpp); without one the default, on every GPU: smoke
// asks whether the system works at all.
double floor_of(const Context& context, const nsa::Config& config) {
  const harness::Settings& settings = context.settings();
  if (settings.values().at("throughput.floor_tok_s").origin == "default")
    return settings.real("throughput.floor_tok_s");
  return choose_floor(settings, gpu_name(context), config.model.name, data_folder() / "configs" / "gates").tok_s;
}

// The median decides; where the interval holds the floor (also when measured again) the doubt is told.
void judge_rate(const Summary& rate, double floor, Context& context, const Json& evidence) {
  const Gate gate = judge(rate, floor);
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
  const nsa::Config config = subject.config(context);
  Training training(make_bench(subject, context, config, subject.flags()), context);
  const double floor = floor_of(context, config);
  const int repeats = static_cast<int>(context.settings().integer("throughput.repeats"));
  try {
    context.phase("warm-up");
    (void)training.seconds({.warm_up = 1, .repeats = 1, .least = 1});
    context.phase("timed steps");
    const double begin = base::steady_seconds();
    probes::UtilisationSampler sampler(bus_id(device_of(context)));
    std::vector<double> rate_samples = rates(training.seconds({.warm_up = 1, .repeats = repeats}), training.tokens());
    while (context.cuda() && base::steady_seconds() < begin + kDriverSeconds) (void)training.step();
    const probes::Utilisation use = sampler.stop();
    if (judge(summarise(rate_samples), floor) == Gate::unclear) {
      context.phase("timed steps once more");
      rate_samples = rates(training.seconds({.warm_up = 1, .repeats = 3 * repeats, .budget_s = 15}), training.tokens());
    }
    const Summary rate = tell_rate(context, "training_step", rate_samples);
    context.fact("step", training.way());
    judge_utilisation(use, context);
    judge_rate(rate, floor, context, {{"rate", to_json(rate)}, {"floor", floor}, {"utilisation", use.to_json()}});
  } catch (const NoProgress& stopped) {
    stopped.tell(context, "training step");
  }
}

void backends(const Subject& subject, Context& context) {
  const nsa::Config config = subject.config(context);
  const nsa::Call call =
      nsa::call_of(config.model, 1, 1, config.train.precision, device_of(context), /*training=*/true);
  Json table = Json::array();
  for (const Way* way : model_ways(Way::OfModel::measured)) {
    if (const std::string refusal = way->refusal(call); !refusal.empty()) {  // it would run as sdpa
      table.push_back({{"backend", way->name}, {"refused", refusal}});
      continue;
    }
    context.phase(way->name);
    Training training(make_bench(subject, context, config, way->flags()), context);
    try {
      const int repeats = way->name == "reference" ? 2 : 3;  // slow on purpose
      const TimingPlan plan{.warm_up = 1, .repeats = repeats, .least = 2, .budget_s = 1, .patience_s = 5};
      const Summary rate = summarise(rates(training.seconds(plan), training.tokens()));
      context.metric(fmt::format("tok_s_{}", way->name), rate.median, "tok/s");
      table.push_back(
          {{"backend", way->name}, {"tok_s", to_json(rate)}, {"step", training.way()}, {"routes", training.routes()}});
    } catch (const NoProgress& stopped) {
      table.push_back({{"backend", way->name}, {"stopped", nsa::train::to_string(stopped.report.stop)}});
      stopped.tell(context, way->name);
    }
  }
  context.fact("backends", table);
}

}  // namespace suites::throughput_cases
