// Case shapes: the training step at the lengths, batches and accumulations that the seeds ran, and the law of
// its time over the length. Slow is told apart from hung: a shape that moves is SLOW at worst; one that does
// not is the watchdog's.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/clock.hpp"
#include "reports/chart.hpp"
#include "suites/codes.hpp"
#include "suites/throughput/baseline.hpp"
#include "suites/throughput/training_run.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using harness::Json;

// The ladder with one sequence in a batch, which the law is fitted to, and the variants round it.
struct Shape {
  std::int64_t S, B, accumulation;

  [[nodiscard]] bool of_ladder() const { return B == 1 && accumulation == 1; }
  [[nodiscard]] std::string name() const { return fmt::format("S={} B={} accumulation={}", S, B, accumulation); }
};
// What the seeds' engineers ran besides.
constexpr std::array kVariants = {Shape{128, 8, 1}, Shape{512, 2, 1}, Shape{2048, 2, 1}, Shape{2048, 1, 2},
                                  Shape{2048, 1, 4}};
std::vector<Shape> shapes_of(const harness::Settings& settings) {
  std::vector<Shape> all;
  for (const std::int64_t S : settings.integers("throughput.lengths")) all.push_back({S, 1, 1});
  const auto descends = [](const Shape& a, const Shape& b) { return a.S >= b.S; };
  if (all.size() < 2 || std::adjacent_find(all.begin(), all.end(), descends) != all.end())
    throw harness::UsageError("throughput.lengths: at least two lengths are needed, ascending");
  const std::int64_t longest = all.back().S;
  for (const Shape& shape : kVariants) {
    if (shape.S <= longest) all.push_back(shape);
  }
  return all;
}

// The time may grow with the square of the length (masks, scores over compressed blocks), and a little more by caches.
constexpr double kAllowedExponent = 2.3;

// Steps of one model at a shape; the model is shared, moments are made anew.
class Ladder {
 public:
  Ladder(const Subject& subject, Context& context, Clock clock)
      : context_(context),
        bench_(make_bench(subject, context, subject.config(context), subject.flags())),
        clock_(std::move(clock)) {}

  probes::Timed measure(const Shape& shape) {
    context_.phase(shape.name());
    bench_.config.train.seq_len = shape.S;
    bench_.config.train.batch_size = shape.B;
    bench_.config.train.accumulate_grad_batches = shape.accumulation;
    Training training(bench_, context_, clock_);
    const int repeats = static_cast<int>(context_.settings().integer("throughput.repeats"));
    const TimingPlan plan{.warm_up = 2, .repeats = repeats, .least = 5, .budget_s = 1.5, .patience_s = 10};
    probes::Timed timed;
    timed.seconds = training.seconds(plan);
    // Two halves of one series, by turns: what this shape's times differ by themselves.
    std::vector<double> even, odd;
    for (std::size_t i = 0; i < timed.seconds.size(); ++i) (i % 2 == 0 ? even : odd).push_back(timed.seconds[i]);
    timed.noise = odd.empty() ? 0 : probes::noise_floor(even, odd);
    return timed;
  }
  [[nodiscard]] const nsa::Config& config() const { return bench_.config; }

 private:
  Context& context_;
  Bench bench_;
  Clock clock_;
};

double tokens_of(const Shape& shape) { return static_cast<double>(shape.S * shape.B * shape.accumulation); }

// The exponent between the two longest lengths of the ladder, and its interval.
struct LocalExponent {
  double value = 0;
  probes::Interval interval;
};
LocalExponent local_exponent(const std::vector<double>& shorter, const std::vector<double>& longer, double factor) {
  const probes::Interval ratio = probes::bootstrap_ratio(longer, shorter);
  const double scale = std::log(factor);
  return {std::log(probes::median(longer) / probes::median(shorter)) / scale,
          {std::log(ratio.low) / scale, std::log(ratio.high) / scale}};
}

void judge_time_law(Context& context, const std::vector<std::pair<Shape, probes::Timed>>& measured) {
  std::vector<double> lengths, seconds;
  std::vector<const std::vector<double>*> samples;
  for (const auto& [shape, timed] : measured) {
    if (!shape.of_ladder()) continue;
    lengths.push_back(static_cast<double>(shape.S));
    seconds.push_back(probes::median(timed.seconds));
    samples.push_back(&timed.seconds);
  }
  const std::size_t last = lengths.size() - 1;
  const LocalExponent top = local_exponent(*samples[last - 1], *samples[last], lengths[last] / lengths[last - 1]);
  const probes::PowerLaw law = probes::fit_power(lengths, seconds);
  const Json evidence = {{"lengths", lengths},
                         {"seconds", seconds},
                         {"exponent_of_all", reports::number(law.exponent)},
                         {"r2", reports::number(law.r2)},
                         {"exponent_at_the_top", reports::number(top.value)},
                         {"interval", {reports::number(top.interval.low), reports::number(top.interval.high)}}};
  context.fact("time_law", evidence);
  context.fact("step_time", reports::to_json({"Time of a training step by length",
                                              {"S", "tokens", true},
                                              {"median step", "s", true},
                                              {{"B = 1", lengths, seconds}}}));
  context.metric("time_exponent", law.exponent, "1");
  context.metric("time_exponent_at_the_top", top.value, "1");
  context.expect_at_most("time_exponent_at_the_top_at_least", top.interval.low, kAllowedExponent, "1", codes::kTimeLaw,
                         evidence);
}

}  // namespace

void shapes(const Subject& subject, Context& context) { shapes_by_clock(subject, context, base::steady_seconds); }

void shapes_by_clock(const Subject& subject, Context& context, const Clock& clock) {
  context.phase("model");
  Ladder ladder(subject, context, clock);
  nsa::Config config = ladder.config();
  config.train.seq_len = config.train.batch_size = config.train.accumulate_grad_batches = 1;  // each has its own
  const double floor = context.settings().real("throughput.ladder_floor_tok_s");
  Comparable comparable{identity(context, config), {}};
  std::vector<std::pair<Shape, probes::Timed>> measured;
  Json table = Json::array();
  const std::vector<Shape> all = shapes_of(context.settings());
  for (const Shape& shape : all) {
    try {
      measured.emplace_back(shape, ladder.measure(shape));
    } catch (const NoProgress& stopped) {
      return stopped.tell(context, shape.name());
    }
    const probes::Timed& timed = measured.back().second;
    comparable.timed[shape.name()] = timed;
    const Summary rate = summarise(rates(timed.seconds, tokens_of(shape)));
    const Gate gate = judge(rate, floor);
    const bool slow = gate == Gate::below || gate == Gate::far_below;
    table.push_back({{"shape", shape.name()},
                     {"S", shape.S},
                     {"B", shape.B},
                     {"accumulation", shape.accumulation},
                     {"step_ms", reports::number(1e3 * probes::median(timed.seconds))},
                     {"tok_s", to_json(rate)},
                     {"word", slow ? "SLOW" : "ok"}});
    context.metric(fmt::format("tok_s_S{}_B{}_acc{}", shape.S, shape.B, shape.accumulation), rate.median, "tok/s");
    context.expect(fmt::format("floor {}", shape.name()), !slow,
                   fmt::format("SLOW: {} moves, but a step takes {:.2f} s: {:.0f} tok/s (interval up to {:.0f}), the "
                               "floor is {:.0f}",
                               shape.name(), probes::median(timed.seconds), rate.median, rate.interval.high, floor),
                   codes::kShapeSlow, table.back());
  }
  context.fact("shapes", table);
  judge_time_law(context, measured);
  context.fact("comparable", comparable.to_json());
  compare_with_baseline(context, "shapes", comparable, [&](const std::string& name) {
    const auto shape = std::find_if(all.begin(), all.end(), [&](const Shape& s) { return s.name() == name; });
    return ladder.measure(*shape);
  });
}

}  // namespace suites::throughput_cases
