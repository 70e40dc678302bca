// The suite `throughput`: is training fast enough to be worth starting, and if not, why? Times are decided by
// intervals, memory by counting.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "harness/suite.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/subject.hpp"
#include "suites/throughput/baseline.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/throughput/settings.hpp"

namespace suites {

using harness::Case;
using harness::Context;

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

std::vector<Case> plan_implementation(const Subject& subject) {
  using Body = void (*)(const Subject&, Context&, const throughput_cases::ImplementationRun&);
  std::vector<Case> cases;
  for (const auto& [name, body] :
       {std::pair<const char*, Body>("implementation_time", throughput_cases::implementation_time),
        {"implementation_memory", throughput_cases::implementation_memory}}) {
    const auto add = [&, name = name, body = body](const std::string& op,
                                                   const throughput_cases::ImplementationRun& run) {
      Case c;
      c.name = name;
      c.timeout = std::chrono::seconds(600);
      c.params.set("op", op);
      c.run = [subject, body, run](Context& context) { body(subject, context, run); };
      cases.push_back(std::move(c));
    };
    for (const nsa::Op op : nsa::kAllOps) add(std::string(nsa::to_string(op)), {op});
    add("attention", {nsa::Op::attend, /*attention=*/true});
  }
  return cases;
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
  suite.runs_after = "distributed";
  suite.judges_implementation = true;
  suite.settings = throughput_settings();
  suite.sizes = {{"throughput.lengths"}};
  suite.cases = [=](const harness::Settings& settings) -> std::vector<Case> {
    using namespace throughput_cases;
    check_baseline(settings);
    if (judges_implementation(settings)) return plan_implementation(subject);
    std::vector<std::string> of_rate, of_shapes = {"throughput.ladder_floor_tok_s", "throughput.lengths"};
    if (!settings.text("throughput.baseline").empty()) {
      of_rate.emplace_back("throughput.baseline");
      of_shapes.emplace_back("throughput.baseline");
    }
    Case table = standard("backends", backends);
    table.needs_cuda = true;
    return {
        {.name = "training_step", .run = with_subject(training_step)},
        {.name = "inference", .run = with_subject(inference)},
        {.name = "kv_expansion", .run = with_subject(kv_expansion)},
        {.name = "decoding_bytes", .run = with_subject(decoding_bytes)},
        {.name = "work_law", .run = with_subject(work_law)},
        {.name = "packing", .run = with_subject(packing)},
        table,
        standard("rate", rate, of_rate),
        standard("stage_shares", stage_shares),
        standard("attention_alone", attention_alone),
        standard("step_bytes", step_bytes),
        standard("memory_law", memory_law),
        standard("packing_cost", packing_cost, {"throughput.packing_overhead_percent"}),
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
