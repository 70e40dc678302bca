// Case rate: tokens per second of the training step with its interval and its noise floor, against the GPU's gate and
// against a baseline; does a step take as long after thirty steps as at first; who is busy meanwhile?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/clock.hpp"
#include "suites/codes.hpp"
#include "suites/probes/utilisation.hpp"
#include "suites/throughput/baseline.hpp"
#include "suites/throughput/gate_file.hpp"
#include "suites/throughput/training_run.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;
using probes::Timed;

constexpr double kAllowedGrowthPercent = 10;  // of a step's time, over one series

struct Series {
  Abba times;
  probes::Utilisation use;

  [[nodiscard]] Timed timed() const {
    Timed all{times.in_order, probes::noise_floor(times.a, times.b), use.sm_mhz_median()};
    return all;
  }
};

// The same build twice: two models, two trainers, one text.
class Twins {
 public:
  Twins(const Subject& subject, Context& context, const nsa::Config& config, const Clock& clock)
      : context_(context),
        a_(make_bench(subject, context, config, subject.flags()), context, clock),
        b_(make_bench(subject, context, config, subject.flags()), context, clock) {}

  Series measure(int repeats, double patience_s) {
    context_.phase("warm-up");
    a_.settle();
    b_.settle();
    double slowest = 0;
    for (int i = 0; i < 2; ++i) {
      slowest = time_once(a_.stopwatch(), [this] { (void)a_.step(); });
      slowest = std::max(slowest, time_once(b_.stopwatch(), [this] { (void)b_.step(); }));
    }
    const int wanted = (repeats + 1) / 2;  // a block holds two of each
    const int blocks = std::clamp(static_cast<int>(patience_s / (4 * slowest)), 2, std::max(2, wanted));
    context_.phase(fmt::format("{} blocks of A B B A", blocks));
    probes::UtilisationSampler sampler(bus_id(a_.device()));
    Series series;
    series.times = time_abba(
        a_.stopwatch(), blocks, [this] { (void)a_.step(); }, [this] { (void)b_.step(); });
    series.use = sampler.stop();
    return series;
  }
  [[nodiscard]] double tokens() const { return a_.tokens(); }
  [[nodiscard]] std::string way() const { return a_.way(); }

 private:
  Context& context_;
  Training a_, b_;
};

// How much longer a step takes at the end of a series than at its beginning, at least: percent of the median.
double growth_percent(const Series& series) {
  const std::vector<double>& steps = series.times.in_order;
  return 100 * probes::theil_sen(steps).interval.low * static_cast<double>(steps.size()) / probes::median(steps);
}

// A slow neighbour on the machine comes and goes; growth stays. So it must be seen twice.
void judge_growth(Context& context, Twins& twins, const Series& first, int repeats) {
  double growth = growth_percent(first);
  Json evidence = {{"steps_s", first.times.in_order}, {"growth_percent_at_least", reports::number(growth)}};
  if (!(growth <= kAllowedGrowthPercent) && std::isfinite(growth)) {
    context.phase("steps once more: do they take longer and longer?");
    const Series second = twins.measure(repeats, 30);
    growth = std::min(growth, growth_percent(second));
    evidence["steps_of_second_series_s"] = second.times.in_order;
  }
  context.metric("step_time_growth", growth, "%");
  context.expect_at_most("step_time_growth", growth, kAllowedGrowthPercent, "%", codes::kStepTimeGrowth, evidence);
}

void judge_floor(Context& context, const Floor& floor, const Summary& rate, Json evidence) {
  const Gate gate = judge(rate, floor.tok_s);
  evidence["rate"] = to_json(rate);
  evidence["floor"] = {{"tok_s", floor.tok_s}, {"origin", floor.origin}};
  context.fact("gate", {{"floor_tok_s", floor.tok_s}, {"origin", floor.origin}, {"verdict", to_string(gate)}});
  if (gate == Gate::unclear) {
    context.finding(codes::kTimingUnusable,
                    fmt::format("{:.0f} tok/s, 95 % interval {:.0f} to {:.0f} over {} steps: it holds the floor of "
                                "{:.0f} ({})",
                                rate.median, rate.interval.low, rate.interval.high, rate.n, floor.tok_s, floor.origin),
                    evidence);
  }
  context.expect_at_least("training step against the gate of its device", rate.median, floor.tok_s, "tok/s",
                          gate == Gate::far_below ? codes::kFarBelowGate : codes::kBelowGate, evidence);
}

}  // namespace

void rate(const Subject& subject, Context& context) { rate_by_clock(subject, context, base::steady_seconds); }

void rate_by_clock(const Subject& subject, Context& context, const Clock& clock) {
  context.phase("set-up");
  const nsa::Config config = subject.config(context);
  const Floor floor =
      choose_floor(context.settings(), gpu_name(context), config.model.name, data_folder() / "configs" / "gates");
  const int repeats = 2 * static_cast<int>(context.settings().integer("throughput.repeats"));
  try {
    Twins twins(subject, context, config, clock);
    Series series = twins.measure(repeats, 20);
    if (judge(summarise(rates(series.times.in_order, twins.tokens())), floor.tok_s) == Gate::unclear)
      series = twins.measure(3 * repeats, 30);
    const Timed timed = series.timed();
    const Summary summary = tell_rate(context, "training_step", rates(timed.seconds, twins.tokens()));
    context.metric("training_step_low", summary.interval.low, "tok/s");
    context.metric("training_step_high", summary.interval.high, "tok/s");
    context.metric("aa_noise_floor", 100 * timed.noise, "%");
    context.fact("noise_floor", {{"a", to_json(summarise(series.times.a))},
                                 {"again", to_json(summarise(series.times.b))},
                                 {"floor_percent", reports::number(100 * timed.noise)}});
    context.fact("utilisation", series.use.to_json());
    context.fact("step", twins.way());

    judge_floor(context, floor, summary, {{"utilisation", series.use.to_json()}});
    judge_growth(context, twins, series, repeats);
    const Comparable comparable{identity(context, config), {{"step", timed}}};
    context.fact("comparable", comparable.to_json());
    compare_with_baseline(context, "rate", comparable,
                          [&](const std::string&) { return twins.measure(repeats, 30).timed(); });
  } catch (const NoProgress& stopped) {
    stopped.tell(context, "rate");
  }
}

}  // namespace suites::throughput_cases
