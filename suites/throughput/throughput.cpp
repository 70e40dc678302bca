// The suite `throughput`: is training fast enough to be worth starting, and if not, why? Times are decided by
// intervals, memory by counting.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/program.hpp"
#include "suites/throughput/baseline.hpp"
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
       .meaning = "tokens/s of a training step: below is a finding, below half blocks; at standard level, where it is "
                  "not set, that of the GPU's file in configs/gates",
       .allowed = "0 and more",
       .minimum = 0},
      {.key = "throughput.gate_model",
       .type = text,
       .default_value = "",
       .meaning = "the model that the floor was measured with; for another one configs/gates/default.yaml holds",
       .allowed = "a model's name; empty: any"},
      {.key = "throughput.ladder_floor_tok_s",
       .type = real,
       .default_value = "300",
       .meaning = "tokens/s of a training step at every length, batch and accumulation of the ladder",
       .allowed = "0 and more",
       .minimum = 0},
      {.key = "throughput.lengths",
       .type = integer_list,
       .default_value = "[128, 256, 512, 1024, 2048]",
       .meaning = "the ladder of lengths, one sequence in a batch; the seeds' batches and accumulations that are no "
                  "longer than the last are added",
       .allowed = "at least two, ascending",
       .minimum = 2},
      {.key = "throughput.baseline",
       .type = text,
       .default_value = "",
       .meaning =
           "an earlier report to compare with: SAME, FASTER, SLOWER or CANNOT TELL; it must hold the cases rate and "
           "shapes, which are made at every level then",
       .allowed = "a report.json, or the folder that holds it"},
      {.key = "throughput.least_effect_percent",
       .type = real,
       .default_value = "5",
       .meaning = "changes of a time smaller than this are the same as the baseline",
       .allowed = "0.1 to 100",
       .minimum = 0.1,
       .maximum = 100},
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
       .meaning = "the host should be busy for at most this share of a training step (of all its cores), and the GPU "
                  "may wait for it for at most this share",
       .allowed = "0 to 100",
       .minimum = 0,
       .maximum = 100},
      {.key = "throughput.packing_overhead_percent",
       .type = real,
       .default_value = "10",
       .meaning = "safe packing may cost a forward pass at most this much more than the reused workspace",
       .allowed = "0 and more",
       .minimum = 0},
      {.key = "throughput.data_percent",
       .type = real,
       .default_value = "10",
       .meaning = "training may wait for its data for at most this share of its time",
       .allowed = "0 to 100",
       .minimum = 0,
       .maximum = 100},
      {.key = "throughput.fetch_ms",
       .type = real,
       .default_value = "80",
       .meaning = "95 of 100 batches should come within this time",
       .allowed = "above 0",
       .minimum = 0.001},
  };
}

namespace {

// A comparison that cannot be made should be known before minutes are spent on the rest.
void check_baseline(const harness::Settings& settings) {
  const std::string path = settings.text("throughput.baseline");
  if (path.empty()) return;
  try {
    (void)throughput_cases::read_baseline(path);
  } catch (const std::runtime_error& error) {
    throw harness::UsageError(error.what());
  }
}

}  // namespace

harness::Suite throughput(const Subject& subject) {
  const auto with_subject = [subject](void (*run)(const Subject&, Context&)) {
    return [subject, run](Context& context) {
      try {
        run(subject, context);
      } catch (const c10::Error& error) {
        probes::report_inplace_write(context, error);
      }
    };
  };
  const auto standard = [with_subject](std::string name, void (*run)(const Subject&, Context&),
                                       std::vector<std::string> brought_by = {}) {
    return Case{.name = std::move(name),
                .params = {},
                .level = harness::Level::standard,
                .timeout = std::chrono::seconds(600),
                .run = with_subject(run),
                .brought_by = std::move(brought_by)};
  };
  harness::Suite suite;
  suite.name = "throughput";
  suite.purpose =
      "A training step keeps above its floor of tokens per second, K and V are never copied per query head, "
      "and nothing but the work costs time.";
  suite.requires_suites = {"forward"};
  suite.cases = [=](const harness::Settings& settings) -> std::vector<Case> {
    using namespace throughput_cases;
    check_baseline(settings);
    std::vector<std::string> of_rate, of_shapes = {"throughput.ladder_floor_tok_s", "throughput.lengths"};
    if (!settings.text("throughput.baseline").empty()) {
      of_rate.emplace_back("throughput.baseline");
      of_shapes.emplace_back("throughput.baseline");
    }
    return {
        {.name = "training_step", .params = {}, .run = with_subject(training_step)},
        {.name = "inference", .params = {}, .run = with_subject(inference)},
        {.name = "kv_expansion", .params = {}, .run = with_subject(kv_expansion)},
        {.name = "packing", .params = {}, .run = with_subject(packing)},
        {.name = "layer_scaling", .params = {}, .run = with_subject(layer_scaling)},
        {.name = "backends", .params = {}, .needs_cuda = true, .run = with_subject(backends)},
        standard("rate", rate, of_rate),
        standard("stage_shares", stage_shares),
        standard("attention_alone", attention_alone),
        standard("step_bytes", step_bytes),
        standard("memory_law", memory_law),
        standard("layers", layers),
        standard("shapes", shapes, of_shapes),
        standard("data_loading", data_loading, {"throughput.data_percent", "throughput.fetch_ms"}),
        // Last: the tracer stays in the process that it was started in, and slows every later launch of a graph.
        standard("host_and_device", host_and_device),
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

std::string bus_id(at::Device device) {
  std::array<char, 32> text{};
  if (!device.is_cuda() ||
      cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device.index()) != cudaSuccess) {
    return "";
  }
  return text.data();
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
