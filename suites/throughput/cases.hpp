// The cases of the suite `throughput`, and what they share.
#pragma once

#include "harness/context.hpp"
#include "suites/subject.hpp"
#include "suites/throughput/gates.hpp"
#include "suites/throughput/timing.hpp"

namespace suites::throughput_cases {

// smoke
void training_step(const Subject& subject, harness::Context& context);
void inference(const Subject& subject, harness::Context& context);
void kv_expansion(const Subject& subject, harness::Context& context);
void decoding_bytes(const Subject& subject, harness::Context& context);
void packing(const Subject& subject, harness::Context& context);
void work_law(const Subject& subject, harness::Context& context);
// standard
void packing_cost(const Subject& subject, harness::Context& context);
void backends(const Subject& subject, harness::Context& context);
void rate(const Subject& subject, harness::Context& context);
void rate_by_clock(const Subject& subject, harness::Context& context, const Clock& clock);  // the same, for tests
void stage_shares(const Subject& subject, harness::Context& context);
void attention_alone(const Subject& subject, harness::Context& context);
void host_and_device(const Subject& subject, harness::Context& context);
void step_bytes(const Subject& subject, harness::Context& context);
void memory_law(const Subject& subject, harness::Context& context);
void layers(const Subject& subject, harness::Context& context);
void shapes(const Subject& subject, harness::Context& context);
void shapes_by_clock(const Subject& subject, harness::Context& context, const Clock& clock);  // the same, for tests
void data_loading(const Subject& subject, harness::Context& context);

// Of an implementation that is not ours, alone where one is judged.
struct ImplementationRun {
  nsa::Op op = nsa::Op::attend;
  bool attention = false;  // attend, with a choice of its own (oracle::OpShape::attention)
};
void implementation_time(const Subject& subject, harness::Context& context, const ImplementationRun& run);
void implementation_memory(const Subject& subject, harness::Context& context, const ImplementationRun& run);

// A model of `config` on the case's device, and text to feed it. Copies share the model.
struct Bench {
  nsa::Config config;
  at::Device device = at::kCPU;
  Instance instance;
};
[[nodiscard]] Bench make_bench(const Subject& subject, harness::Context& context, const nsa::Config& config,
                               const nsa::EffectiveFlags& flags);

// Metric NAME (median) and fact NAME (the whole summary); warns when the sample scatters too much to be judged.
Summary tell_rate(harness::Context& context, const std::string& name, const std::vector<double>& tokens_per_s);

// The PCI bus id of a CUDA device, as NVML knows it; "" for the CPU.
[[nodiscard]] std::string bus_id(at::Device device);

}  // namespace suites::throughput_cases
