// The suite `throughput`: is training fast enough to be worth starting, and if not, why? Times are decided by
// intervals, memory by counting.
#include <fmt/format.h>

#include "suites/codes.hpp"
#include "suites/program.hpp"
#include "suites/throughput/cases.hpp"

namespace suites {

using harness::Case;
using harness::Context;

std::vector<harness::SettingSpec> throughput_settings() {
  using enum harness::SettingType;
  return {
      {.key = "throughput.floor_tok_s",
       .type = real,
       .default_value = "300",
       .meaning = "tokens/s of a training step: below is a finding, below half blocks (configs/gates)",
       .allowed = "0 and more",
       .minimum = 0},
      {.key = "throughput.repeats",
       .type = integer,
       .default_value = "7",
       .meaning = "timed repeats of each measurement",
       .allowed = "5 to 1000",
       .minimum = 5,
       .maximum = 1000},
      {.key = "throughput.gpu_percent",
       .type = real,
       .default_value = "80",
       .meaning = "the GPU should be busy for at least this share of a training step",
       .allowed = "0 to 100",
       .minimum = 0,
       .maximum = 100},
      {.key = "throughput.cpu_percent",
       .type = real,
       .default_value = "10",
       .meaning = "the host should be busy for at most this share of a training step (of all its cores)",
       .allowed = "0 to 100",
       .minimum = 0,
       .maximum = 100},
      {.key = "throughput.packing_overhead_percent",
       .type = real,
       .default_value = "10",
       .meaning = "safe packing may cost a forward pass at most this much more than the reused workspace",
       .allowed = "0 and more",
       .minimum = 0},
  };
}

harness::Suite throughput(const Subject& subject) {
  const auto with_subject = [subject](void (*run)(const Subject&, Context&)) {
    return [subject, run](Context& context) { run(subject, context); };
  };
  harness::Suite suite;
  suite.name = "throughput";
  suite.purpose =
      "A training step keeps above its floor of tokens per second, K and V are never copied per query head, "
      "and nothing but the work costs time.";
  suite.requires_suites = {"forward"};
  suite.cases = [=](const harness::Settings&) -> std::vector<Case> {
    using namespace throughput_cases;
    return {
        {.name = "training_step", .params = {}, .run = with_subject(training_step)},
        {.name = "inference", .params = {}, .run = with_subject(inference)},
        {.name = "kv_expansion", .params = {}, .run = with_subject(kv_expansion)},
        {.name = "packing", .params = {}, .run = with_subject(packing)},
        {.name = "layer_scaling", .params = {}, .run = with_subject(layer_scaling)},
        {.name = "backends", .params = {}, .needs_cuda = true, .run = with_subject(backends)},
    };
  };
  return suite;
}

namespace throughput_cases {

Bench make_bench(const Subject& subject, Context& context, const nsa::Config& config,
                 const nsa::EffectiveFlags& flags) {
  const at::Device device = device_of(context);
  return {config, device,
          subject.model({.config = config.model,
                         .flags = flags,
                         .precision = config.train.precision,
                         .device = device,
                         .seed = context.seed("weights")})};
}

Summary tell_rate(Context& context, const std::string& name, const std::vector<double>& tokens_per_s) {
  const Summary rate = summarise(tokens_per_s);
  context.metric(name, rate.median, "tok/s");
  context.fact(name, to_json(rate));
  if (!(rate.scatter <= kMaximalScatter)) {
    context.finding(
        codes::kTimingUnusable,
        fmt::format("{}: median {:.0f} tok/s, but the middle half of {} repeats spreads over {:.0f} % of it", name,
                    rate.median, rate.n, 100 * rate.scatter),
        to_json(rate));
  }
  return rate;
}

}  // namespace throughput_cases

}  // namespace suites
