#include "suites/training/pace.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>

#include "base/clock.hpp"
#include "reports/chart.hpp"
#include "suites/codes.hpp"
#include "suites/probes/statistics.hpp"

namespace suites::training_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr double kStallFactor = 20, kStallSeconds = 1;  // a stall is longer than both say

// What a trend adds from the first to the last judged sample, as a share of their median.
struct Growth {
  probes::Trend trend;
  double median = 0, share = 0, least = 0, most = 0;
};

Growth growth(std::span<const double> samples) {
  Growth g;
  g.trend = probes::theil_sen(samples);
  g.median = probes::median(samples);
  const double span = static_cast<double>(samples.size()) - 1;
  g.share = g.trend.slope * span / g.median;
  g.least = g.trend.interval.low * span / g.median;
  g.most = g.trend.interval.high * span / g.median;
  return g;
}

Json to_json(const Growth& g) {
  return {{"median", reports::number(g.median)},
          {"slope_per_step", reports::number(g.trend.slope)},
          {"slope_interval_99", {reports::number(g.trend.interval.low), reports::number(g.trend.interval.high)}},
          {"growth_over_run", reports::number(g.share)}};
}

std::vector<double> settled(const std::vector<double>& samples) {
  return {samples.begin() + static_cast<std::ptrdiff_t>(std::min(kSettling, samples.size())), samples.end()};
}

void judge_stalls(const Run& run, double median, Context& context) {
  const double limit = std::max(kStallFactor * median, kStallSeconds);
  Json stalls = Json::array();
  for (std::size_t i = kSettling; i < run.steps.size(); ++i) {
    const auto& step = run.steps[i];
    if (step.seconds <= limit) continue;
    stalls.push_back({{"step", step.step},
                      {"seconds", reports::number(step.seconds)},
                      {"waiting_for_data_seconds", reports::number(step.fetch_seconds)},
                      {"yardstick_seconds", reports::number(run.yardstick_s[i])}});
  }
  context.fact("stalls", stalls);
  if (stalls.empty()) return;
  context.finding(codes::kStepStalls,
                  fmt::format("SLOW, not hung: {} of {} steps took more than {:.2g} s (median {:.3g} s), the first was "
                              "step {}, and the run went on",
                              stalls.size(), run.steps.size(), limit, median, stalls[0]["step"].get<std::int64_t>()),
                  {{"stalls", stalls}, {"median_seconds", reports::number(median)}});
}

// `samples` in bytes. A trend below `resolution` bytes a step is not judged.
void judge_bytes(const std::string& name, std::vector<double> samples, double resolution, std::string_view code,
                 Json evidence, Context& context) {
  const Growth g = growth(settled(samples));
  evidence["growth"] = to_json(g);
  evidence["first_bytes"] = reports::number(samples.front());
  evidence["last_bytes"] = reports::number(samples.back());
  context.fact(name, evidence);
  context.metric(name + "_growth", g.trend.slope, "byte/step");
  // Judged by the low end of the interval: the growth that is certain.
  context.expect_at_most(name + " grows by (certainly)", g.trend.interval.low, resolution, "byte/step", code, evidence);
}

void tell_times(const std::vector<double>& seconds, Context& context) {
  reports::Series series{"step", {}, {}};
  for (const double s : seconds) {
    series.x.push_back(static_cast<double>(series.x.size()));
    series.y.push_back(1e3 * s);
  }
  context.fact(
      "step_times",
      reports::to_json({.title = "Time of each step", .x = {"step", ""}, .y = {"time", "ms"}, .series = {series}}));
}

}  // namespace

Yardstick::Yardstick(at::Device device) {
  const at::NoGradGuard no_grad;
  const bool cuda = device.is_cuda();
  const std::int64_t n = cuda ? 2048 : 192;
  products_ = cuda ? 10 : 1;
  matrix_ = at::ones({n, n}, at::TensorOptions(device).dtype(cuda ? at::kBFloat16 : at::kFloat));
}

double Yardstick::seconds() const {
  const at::NoGradGuard no_grad;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < products_; ++i) (void)at::mm(matrix_, matrix_);
  if (matrix_.is_cuda()) torch::cuda::synchronize(matrix_.device().index());
  return base::seconds_since(start);
}

void judge_pace(const Run& run, Context& context) {
  if (run.steps.size() < kLeastForTrend) return;
  std::vector<double> seconds;
  for (const auto& step : run.steps) seconds.push_back(step.seconds);
  const Growth steps = growth(settled(seconds)), machine = growth(settled(run.yardstick_s));
  const Json evidence = {{"step", to_json(steps)}, {"machine", to_json(machine)}, {"unit", "s"}};
  context.fact("pace", evidence);
  tell_times(seconds, context);
  context.metric("step_median", 1e3 * steps.median, "ms");
  context.metric("step_growth_over_run", 100 * steps.share, "%");
  judge_stalls(run, steps.median, context);

  const double bound = context.settings().real("training.growth_percent") / 100;
  if (steps.least > bound && machine.most > 0.5 * steps.least) {
    context.finding(codes::kTimingUnusable,
                    fmt::format("steps became slower by {:.0f} % over {} steps, but so did a fixed piece of work, by "
                                "{:.0f} %: the machine did, not the training",
                                100 * steps.share, seconds.size(), 100 * machine.share),
                    evidence);
    return;
  }
  context.expect_at_most("step time grows over the run by (certainly)", 100 * steps.least, 100 * bound, "%",
                         codes::kStepTimeGrows, evidence);
}

void judge_memory(const Run& run, Context& context) {
  if (run.memory.size() < kLeastForTrend) return;
  std::vector<double> host, device;
  for (const MemoryInUse& m : run.memory) {
    host.push_back(static_cast<double>(m.host_bytes));
    device.push_back(static_cast<double>(m.device_bytes));
  }
  judge_bytes("host_bytes", host, run.host_resolution, codes::kHostMemoryGrows, {{"source", run.host_memory_source}},
              context);
  if (run.memory.back().device_reserved_bytes == 0) return;  // no GPU
  judge_bytes("device_bytes", device, 512, codes::kDeviceMemoryGrows,
              {{"reserved_first_bytes", run.memory[kSettling].device_reserved_bytes},
               {"reserved_last_bytes", run.memory.back().device_reserved_bytes}},
              context);
}

}  // namespace suites::training_cases
