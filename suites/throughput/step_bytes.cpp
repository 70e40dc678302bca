// Case step_bytes: the bytes that a training step allocates, against the count of what the method names.
#include "suites/throughput/step_count.hpp"

#include "nsa/call.hpp"
#include "suites/codes.hpp"
#include "suites/probes/op_bytes.hpp"
#include "suites/throughput/training_run.hpp"

namespace suites::throughput_cases {

using harness::Context;
using harness::Json;

void step_bytes(const Subject& subject, Context& context) {
  nsa::Config config = subject.config(context);
  config.train.cuda_graph = nsa::CudaGraph::off;  // a replay allocates nothing; its capture does what this step does
  context.phase("model");
  Training training(make_bench(subject, context, config, subject.flags()), context);
  try {
    (void)training.step();
    (void)training.step();
    context.phase("allocations of a step");
    const probes::OpBytes bytes = probes::measure_bytes([&] { (void)training.step(); });
    const nsa::Route route =
        nsa::route(subject.flags(), nsa::call_of(config.model, config.train.batch_size, config.train.seq_len,
                                                 config.train.precision, training.device(), /*training=*/true));
    const StepCount count = count_step(config, route);
    const double ratio = static_cast<double>(bytes.allocated) / count.total();
    const Json evidence = {{"allocated_bytes", bytes.allocated},   {"counted_bytes", reports::number(count.total())},
                           {"counted_parts", count.to_json()},     {"ratio", reports::number(ratio)},
                           {"peak_bytes_of_the_step", bytes.peak}, {"aten_ops", bytes.ops},
                           {"largest", bytes.largest(10)}};
    context.fact("step_bytes", evidence);
    context.metric("allocated_per_step", static_cast<double>(bytes.allocated), "byte");
    context.metric("allocated_per_token", static_cast<double>(bytes.allocated) / training.tokens(), "byte");
    context.metric("allocated_to_counted", ratio, "1");
    // The bound was measured where blocks are gathered; other routes allocate in other proportions and are only told.
    const nsa::Choice& selected = route[nsa::Op::attend_selected];
    if (!nsa::gathers(selected)) {
      context.fact("not_judged",
                   "the bound holds for gathered selection, this route is '" + nsa::to_string(selected) + "'");
      return;
    }
    context.expect_at_most("allocated_to_counted", ratio, kAllowedRatio, "1", codes::kStepBytes, evidence);
  } catch (const NoProgress& stopped) {
    stopped.tell(context, "step_bytes");
  }
}

}  // namespace suites::throughput_cases
