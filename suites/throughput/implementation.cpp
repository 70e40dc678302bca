// An implementation that is not ours: how long its functions take in its own process, beside ours on the same inputs,
// and whether that process grows from call to call. Nothing here is a gate: no floor is known for somebody else's code.
#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.hpp"
#include "nsa/dispatch.hpp"
#include "suites/codes.hpp"
#include "suites/implementation/client.hpp"
#include "suites/oracle/backends.hpp"
#include "suites/probes/statistics.hpp"
#include "suites/throughput/cases.hpp"

namespace suites::throughput_cases {

namespace {

using harness::Context;
using implementation::Client;
using oracle::OpCase;

constexpr int kCalls = 15, kWarmUp = 3;
constexpr std::int64_t kTokensOnCpu = 512, kTokensOnGpu = 4096;

// The op on inputs of a size that is worth timing, in the first dtype that is claimed.
struct Work {
  OpCase c;
  at::ScalarType dtype;
  nsa::Ops theirs, ours;
  nsa::Choice our_route;
};

Work work_of(const Subject& subject, Context& context, const ImplementationRun& run) {
  const Way& way = way_named(kImplementation);
  const nsa::Op op = run.op;
  const nsa::ModelConfig& model = subject.config(context).model;
  oracle::OpShape shape;
  shape.geometry = model.nsa;
  shape.Hq = model.n_heads;
  shape.G = model.n_kv_groups;
  shape.Dk = model.d_k;
  shape.Dv = model.d_v;
  shape = shape_for(subject, way, shape);
  shape.attention = run.attention;
  shape.B = 1;
  shape.S = context.cuda() ? kTokensOnGpu : kTokensOnCpu;
  const auto& dtypes = subject.implementation()->describe().dtypes;
  const bool narrow = std::find(dtypes.begin(), dtypes.end(), "bf16") != dtypes.end() &&
                      (context.cuda() || std::find(dtypes.begin(), dtypes.end(), "fp32") == dtypes.end());
  const at::ScalarType dtype = narrow ? at::kBFloat16 : at::kFloat;
  Work work{make_op_case(op, shape, dtype, device_of(context), context.seed("inputs")), dtype, {}, {}, {}};
  const at::NoGradGuard no_grad;
  work.theirs = ops_of(subject, way, shape, op, dtype, device_of(context));
  const nsa::Call call = oracle::call_of(shape, dtype, device_of(context), /*training=*/false);
  work.ours = nsa::Dispatcher(subject.flags()).ops(call);
  work.our_route = nsa::route(subject.flags(), call)[op];
  return work;
}

double wall_seconds(const Work& work, const nsa::Ops& ops) {
  const auto synchronise = [&] {
    if (work.c.inputs[0].is_cuda()) cudaDeviceSynchronize();
  };
  synchronise();
  const auto begin = std::chrono::steady_clock::now();
  (void)work.c.call(ops, work.c.inputs);
  synchronise();
  return base::seconds_since(begin);
}

}  // namespace

void implementation_time(const Subject& subject, Context& context, const ImplementationRun& run) {
  const Work work = work_of(subject, context, run);
  Client& client = *subject.implementation();
  const at::NoGradGuard no_grad;
  std::vector<double> inside, outside, own;
  for (int i = 0; i < kWarmUp + kCalls; ++i) {
    context.progress();
    const double before = client.seconds();
    const double theirs = wall_seconds(work, work.theirs), ours = wall_seconds(work, work.ours);
    if (i < kWarmUp) continue;
    inside.push_back(client.seconds() - before);
    outside.push_back(theirs);
    own.push_back(ours);
  }
  const double python = probes::median(inside), wall = probes::median(outside), sdpa = probes::median(own);
  context.metric("tokens", static_cast<double>(work.c.shape.S), "tokens");
  context.metric("forward pass in its process", 1e3 * python, "ms");
  context.metric("forward pass with the way there and back", 1e3 * wall, "ms");
  context.metric("share of the way there and back", 100 * (1 - python / wall), "%");
  context.metric("forward pass by our own functions", 1e3 * sdpa, "ms");
  context.metric("its time over ours", python / sdpa, "1");
  context.fact("our route", nsa::to_string(work.our_route));
  context.fact("transport", client.transport());
}

void implementation_memory(const Subject& subject, Context& context, const ImplementationRun& run) {
  constexpr int kBlocks = 3, kCallsOfBlock = 16;
  const Work work = work_of(subject, context, run);
  Client& client = *subject.implementation();
  double bytes = 0;
  for (const at::Tensor& input : work.c.inputs) bytes += static_cast<double>(input.nbytes());
  const bool gradients =
      oracle::gives_gradients(subject, way_named(kImplementation)) && work.c.differentiable_outputs > 0;
  const auto call = [&] {
    context.progress();
    (void)evaluate(work.c, work.theirs, {work.dtype, gradients, 1});
  };
  for (int i = 0; i < kCallsOfBlock; ++i) call();  // what it allocates once
  std::vector<double> grown;
  for (int block = 0; block < kBlocks; ++block) {
    const implementation::Memory before = client.memory();
    for (int i = 0; i < kCallsOfBlock; ++i) call();
    const implementation::Memory after = client.memory();
    const std::int64_t gpu = after.cuda_allocated.value_or(0) - before.cuda_allocated.value_or(0);
    grown.push_back(static_cast<double>(after.resident - before.resident + gpu) / kCallsOfBlock);
    context.expect_equal("graphs that it keeps", after.graphs, before.graphs, codes::kImplementationGrows,
                         {{"op", work.c.name()}});
  }
  // An allocator grows now and then; what is kept from every call grows in every block.
  const double least = *std::min_element(grown.begin(), grown.end());
  context.metric("bytes of a call's inputs", bytes, "B");
  context.expect_at_most("growth of its process a call / bytes of the inputs", least / bytes, 0.25, "1",
                         codes::kImplementationGrows,
                         {{"op", work.c.name()}, {"bytes_a_call", grown}, {"input_bytes", bytes}});
}

}  // namespace suites::throughput_cases
