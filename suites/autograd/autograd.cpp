// autograd: every op's backward pass is the derivative of its forward pass, nothing saved for it is overwritten, and
// every parameter learns.
#include <algorithm>

#include "suites/autograd/cases.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/program.hpp"

namespace suites {

namespace autograd_cases {

Step make_step(const harness::Context& context, const Subject& subject) {
  Step step{subject.config(context), {}, {}};
  nsa::ModelConfig& model = step.config.model;
  model.n_layers = std::min<std::int64_t>(model.n_layers, 2);
  step.instance = subject.model({.config = model,
                                 .flags = subject.flags(),
                                 .precision = context.cuda() ? nsa::Precision::bf16 : nsa::Precision::fp32,
                                 .device = device_of(context),
                                 .seed = context.seed("model")});
  step.tokens = probes::text_tokens(context, step.config, {1, 2 * model.nsa.w + model.nsa.l_sel + 3});
  return step;
}

}  // namespace autograd_cases

namespace {

using autograd_cases::OpRun;
using harness::Case;
using harness::Context;

Case plain(const std::string& name, const Subject& subject, void (*body)(Context&, const Subject&)) {
  Case c;
  c.name = name;
  c.run = [subject, body](Context& context) { body(context, subject); };
  return c;
}

Case gradcheck(const Subject& subject, const OpRun& run) {
  Case c;
  c.name = "gradcheck";
  c.params.set("backend", run.way);
  c.params.set("op", std::string(nsa::to_string(run.op)) + (run.phi == nsa::Phi::mlp ? "_mlp" : ""));
  c.run = [subject, run](Context& context) { autograd_cases::op_gradients(context, subject, run); };
  return c;
}

std::vector<Case> plan(const Subject& subject) {
  std::vector<Case> cases;
  for (const oracle::Way& way : oracle::ways()) {
    if (!way.gradients || way.needs_cuda) continue;  // FlashAttention-2 has no fp64: parity compares its gradients
    for (const nsa::Op op : way.ops) {
      if (op == nsa::Op::select) continue;  // not differentiated
      cases.push_back(gradcheck(subject, {way.name, op, nsa::Phi::avg}));
      if (op == nsa::Op::compress) cases.push_back(gradcheck(subject, {way.name, op, nsa::Phi::mlp}));
    }
  }
  cases.push_back(plain("graph", subject, autograd_cases::graph));
  cases.push_back(plain("parameter_gradients", subject, autograd_cases::parameter_gradients));
  cases.push_back(plain("anomaly_mode", subject, autograd_cases::anomaly_mode));
  return cases;
}

}  // namespace

harness::Suite autograd(const Subject& subject) {
  return {"autograd",
          "every backward pass is the derivative of its forward pass, and every parameter gets a gradient",
          {"forward"},
          [subject](const harness::Settings&) { return plan(subject); }};
}

}  // namespace suites
