// Case work_law: what pooling and the window allocate, freed since or not, grows in proportion to the text. A window
// that computes against all keys and hides most of them gives the same numbers and the same peak, in quadratic time.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/oracle/op_case.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/throughput/cases.hpp"

namespace suites::throughput_cases {

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
}

}  // namespace suites::throughput_cases
