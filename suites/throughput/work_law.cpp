// Case work_law: what pooling and the window allocate, freed since or not, grows in proportion to the text. A window
// that computes against all keys and hides most of them gives the same numbers and the same peak, in quadratic time.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/oracle/op_case.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/throughput/cases.hpp"
#include "suites/ways.hpp"

namespace suites::throughput_cases {

namespace {

// The bytes by which the route refuses a gathered selection are those that it keeps for the backward pass: of all rows,
// more than are gathered at a time.
void judge_gathered_bytes(const Subject& subject, harness::Context& context) {
  constexpr double kMost = 1.5;  // the places of the chosen tokens, the output
  context.phase("what a gathered selection keeps");
  const oracle::OpShape shape{.B = 2,
                              .S = nsa::kGatherChunkRows * 3 / 4,
                              .Hq = 2,
                              .G = 1,
                              .Dk = 32,
                              .Dv = 32,
                              .geometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 4},
                              .cu_seqlens = {}};
  const oracle::OpCase c =
      oracle::make_op_case(nsa::Op::attend_selected, shape, at::kFloat, at::kCPU, context.seed("inputs"));
  const nsa::Call call = oracle::call_of(shape, at::kFloat, at::kCPU, /*training=*/true);
  const nsa::Ops ops = subject.ops(way_named("sdpa").flags(), call);
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : c.inputs) inputs.push_back(input.clone().requires_grad_());
  const at::AutoGradMode gradients(true);
  std::vector<at::Tensor> kept;
  (void)c.call(ops, inputs);  // what is made once
  const probes::OpBytes bytes = probes::measure_bytes([&] { kept = c.call(ops, inputs); });
  const double told = static_cast<double>(nsa::gathered_selection_bytes(call)),
               ratio = static_cast<double>(bytes.peak) / told;
  context.expect_at_most("gathered selection: bytes that are held to those that the route reckons with", ratio, kMost,
                         "times", codes::kMemoryLaw,
                         {{"op", "attend_selected"},
                          {"ratio", reports::number(ratio)},
                          {"reckoned_bytes", told},
                          {"held_bytes", bytes.peak},
                          {"largest", bytes.largest(5)}});
}

}  // namespace

void work_law(const Subject& subject, harness::Context& context) {
  constexpr double kMost = 2.6;         // for twice the tokens; all keys for each chunk of queries are 3.6
  constexpr std::int64_t kChunk = 256;  // queries that sdpa's window takes at a time, or w where that is more
  const at::NoGradGuard no_grad;
  const nsa::Config config = subject.config(context);
  const nsa::ModelConfig& m = config.model;
  const at::ScalarType dtype = nsa::storage_type(config.train.precision);
  const at::Device device = device_of(context);
  const std::int64_t shorter = 4 * std::max(m.nsa.w, kChunk);
  for (const nsa::Op op : {nsa::Op::compress, nsa::Op::attend_window}) {
    const std::string name(nsa::to_string(op));
    context.phase(name);
    const auto allocated = [&](std::int64_t S) {
      const oracle::OpShape shape{.B = 1,
                                  .S = S,
                                  .Hq = m.n_heads,
                                  .G = m.n_kv_groups,
                                  .Dk = m.d_k,
                                  .Dv = m.d_v,
                                  .geometry = m.nsa,
                                  .phi = m.phi,
                                  .cu_seqlens = {}};
      const oracle::OpCase c = oracle::make_op_case(op, shape, dtype, device, context.seed("inputs"));
      const nsa::Ops ops = subject.ops(subject.flags(), oracle::call_of(shape, dtype, device, /*training=*/false));
      (void)c.call(ops, c.inputs);  // what is made once
      context.progress();
      return probes::measure_bytes([&] { (void)c.call(ops, c.inputs); });
    };
    const probes::OpBytes before = allocated(shorter), after = allocated(2 * shorter);
    const double grown = static_cast<double>(after.allocated) / static_cast<double>(before.allocated);
    context.expect_at_most(name + ": what is allocated for twice the tokens", grown, kMost, "times", codes::kMemoryLaw,
                           {{"op", name},
                            {"grown", reports::number(grown)},
                            {"tokens", harness::Json::array({shorter, 2 * shorter})},
                            {"allocated_bytes", harness::Json::array({before.allocated, after.allocated})},
                            {"largest", after.largest(5)}});
  }
  judge_gathered_bytes(subject, context);
}

}  // namespace suites::throughput_cases
