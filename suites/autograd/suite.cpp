// autograd: every op's backward pass is the derivative of its forward pass, nothing saved for it is overwritten, and
// every parameter learns.
#include <algorithm>

#include "harness/suite.hpp"
#include "suites/autograd/cases.hpp"
#include "suites/probes/finite_check.hpp"
#include "suites/probes/tokens.hpp"
#include "suites/subject.hpp"

namespace suites {

namespace autograd_cases {

Step make_step(const harness::Context& context, const Subject& subject, const StepOptions& options) {
  Step step{subject.config(context), {}, {}};
  nsa::ModelConfig& model = step.config.model;
  model.n_layers = options.layers > 0 ? options.layers : std::min<std::int64_t>(model.n_layers, 3);
  const auto usual = run_precision(context);
  const auto flags = options.way.empty() ? subject.flags() : model_way(options.way).flags;
  step.instance = subject.model({.config = model,
                                 .flags = flags,
                                 .precision = options.precision.value_or(usual),
                                 .device = device_of(context),
                                 .seed = context.seed("model")});
  step.model().runtime->recompute = !options.way.empty() && model_way(options.way).recompute;
  const std::int64_t S = options.S > 0 ? options.S : 2 * model.nsa.w + model.nsa.l_sel + 3;
  step.tokens = probes::text_tokens(context, step.config, {options.B, S});
  return step;
}

bool expect_sound(harness::Context& context, const Step& step) {
  context.phase("finite step");
  const bool sound = probes::expect_finite_step(context, "the step is finite", step.model(), step.tokens,
                                                probes::Pass::forward_and_backward);
  step.model().zero_grad();
  return sound;
}

}  // namespace autograd_cases

namespace {

using autograd_cases::ModelWay;
using autograd_cases::OpRun;
using autograd_cases::StepOptions;
using harness::Case;
using harness::Context;
using harness::Level;
using StepBody = void (*)(Context&, const Subject&, const StepOptions&);
using OpBody = void (*)(Context&, const Subject&, const OpRun&);

class Planner {
 public:
  explicit Planner(const Subject& subject) : subject_(subject) {}

  Case& add(const std::string& name, StepBody body, const StepOptions& options = {}) {
    Case c;
    c.name = name;
    if (!options.way.empty()) {
      c.params.set("way", options.way);
      c.needs_cuda = autograd_cases::model_way(options.way).needs_cuda;
    }
    if (options.layers > 0) c.params.set("layers", std::to_string(options.layers));
    c.run = [subject = subject_, body, options](Context& context) { body(context, subject, options); };
    return cases_.emplace_back(std::move(c));
  }

  Case& add(const std::string& name, OpBody body, const OpRun& run) {
    Case c;
    c.name = name;
    c.params.set("backend", run.way);
    const std::string op = run.attention ? "attention" : std::string(nsa::to_string(run.op));
    c.params.set("op", op + (run.phi == nsa::Phi::mlp ? "_mlp" : ""));
    c.needs_cuda = way_named(run.way).needs_cuda;
    c.run = [subject = subject_, body, run](Context& context) { body(context, subject, run); };
    return cases_.emplace_back(std::move(c));
  }

  Case& add_recomputation(bool packed) {
    Case c;
    c.name = "recomputation";
    c.params.set("batch", packed ? "packed" : "dense");
    c.run = [subject = subject_, packed](Context& context) { autograd_cases::recomputation(context, subject, packed); };
    return cases_.emplace_back(std::move(c));
  }

  std::vector<Case> take() { return std::move(cases_); }

 private:
  Subject subject_;
  std::vector<Case> cases_;
};

// Every differentiable op of every way that serves gradients.
template <typename Each>
void each_differentiable_op(const Each& each) {
  for (const Way& way : ways()) {
    if (!way.gradients) continue;
    for (const nsa::Op op : way.ops) {
      if (op == nsa::Op::select) continue;  // not differentiated
      each(way, OpRun{way.name, op, nsa::Phi::avg});
      // Learned compression is sdpa's by every way: once is enough.
      if (op == nsa::Op::compress && !way.needs_cuda) each(way, OpRun{way.name, op, nsa::Phi::mlp});
    }
  }
}

bool attends(nsa::Op op) {
  return op == nsa::Op::attend_compressed || op == nsa::Op::attend_selected || op == nsa::Op::attend_window ||
         op == nsa::Op::attend;
}

void plan_smoke(Planner& planner, bool cuda) {
  each_differentiable_op([&](const Way& way, const OpRun& run) {
    if (way.needs_cuda) return;  // FlashAttention-2 has no fp64: parity compares its gradients
    Case& c = planner.add("gradcheck", autograd_cases::op_gradients, run);
    // What the reference computes in fp64 does not hang on the device.
    if (cuda && way.name == "reference") c.level = Level::standard;
  });
  planner.add("graph", autograd_cases::graph);
  planner.add("parameter_gradients", autograd_cases::parameter_gradients);
  planner.add("anomaly_mode", autograd_cases::anomaly_mode);
  Case& frozen = planner.add("frozen", autograd_cases::frozen);
  if (cuda) frozen.level = Level::standard;
}

void plan_standard(Planner& planner) {
  const auto standard = [](Case& c) { c.level = Level::standard; };
  for (const ModelWay& way : autograd_cases::model_ways()) {
    const StepOptions options{.way = way.name};
    standard(planner.add("sensitivity", autograd_cases::sensitivity, options));
    standard(planner.add("parameter_gradients", autograd_cases::parameter_gradients, options));
    // Anomaly mode takes a stack trace at every node: one layer shows what a way makes.
    standard(planner.add("anomaly_mode", autograd_cases::anomaly_mode, {.way = way.name, .layers = 1}));
    standard(planner.add("arrivals", autograd_cases::arrivals, options));
    standard(planner.add("second_backward", autograd_cases::second_backward, options));
    standard(planner.add("frozen", autograd_cases::frozen, options));
    if (way.recompute) continue;  // one forward pass is what it is
    standard(planner.add("future", autograd_cases::future, options));
    standard(planner.add("graph", autograd_cases::graph, options));
  }
  for (const ModelWay& way : autograd_cases::silencing_ways()) {
    standard(planner.add("sensitivity", autograd_cases::sensitivity, {.way = way.name}));
    standard(planner.add("parameter_gradients", autograd_cases::parameter_gradients, {.way = way.name}));
  }
  for (const std::int64_t layers : {1, 4, 12}) {
    standard(planner.add("parameter_gradients", autograd_cases::parameter_gradients, {.way = "", .layers = layers}));
  }
  for (const char* way : {"sdpa", "recompute"}) {
    standard(planner.add("accumulation", autograd_cases::accumulation, {.way = way}));
  }
  for (const bool packed : {false, true}) standard(planner.add_recomputation(packed));
  each_differentiable_op([&](const Way&, const OpRun& run) {
    standard(planner.add("double_backward", autograd_cases::double_backward, run));
  });
  for (const Way& way : ways())
    for (const nsa::Op op : way.ops)
      if (attends(op)) standard(planner.add("keys", autograd_cases::keys, {way.name, op, nsa::Phi::avg}));
}

// An implementation that is not ours: what it does not claim is skipped by its cases.
void plan_implementation(Planner& planner) {
  for (const nsa::Op op : nsa::kAllOps) {
    const OpRun run{kImplementation, op, nsa::Phi::avg};
    if (op != nsa::Op::select) planner.add("gradcheck", autograd_cases::op_gradients, run);
    if (attends(op)) planner.add("keys", autograd_cases::keys, run);
  }
  planner.add("gradcheck", autograd_cases::op_gradients,
              OpRun{.way = kImplementation, .op = nsa::Op::attend, .attention = true});
}

}  // namespace

harness::Suite autograd(const Subject& subject) {
  harness::Suite suite;
  suite.name = "autograd";
  suite.purpose = "every backward pass is the derivative of its forward pass, and every parameter gets a gradient";
  suite.requires_suites = {"forward"};
  suite.runs_after = "s_sweep";
  suite.judges_implementation = true;
  suite.cases = [subject](const harness::Settings& settings) {
    Planner planner(subject);
    if (judges_implementation(settings)) {
      plan_implementation(planner);
      return planner.take();
    }
    plan_smoke(planner, settings.text("run.device") == "cuda");
    plan_standard(planner);
    return planner.take();
  };
  return suite;
}

}  // namespace suites
