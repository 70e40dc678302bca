#include "suites/flag_matrix/execution.hpp"

#include <ATen/ATen.h>

namespace suites::flag_execution {

namespace {

using Section = probes::OpTrace::Section;

// Puts every function of the table into a section of its own, and keeps what the attentions are given.
nsa::Ops watched(nsa::Ops inner, const std::shared_ptr<Execution>& seen) {
  nsa::Ops ops;
  ops.compress = [f = inner.compress](const nsa::CompressArgs& args) {
    const Section section("compress");
    return f(args);
  };
  ops.attend_compressed = [f = inner.attend_compressed, seen](const nsa::AttendCompressedArgs& args) {
    seen->inputs.compressed = args;
    const Section section("attend_compressed");
    return f(args);
  };
  ops.select = [f = inner.select](const nsa::SelectArgs& args) {
    const Section section("select");
    return f(args);
  };
  ops.attend_selected = [f = inner.attend_selected, seen](const nsa::AttendSelectedArgs& args) {
    seen->inputs.selected = args;
    const Section section("attend_selected");
    return f(args);
  };
  ops.attend_window = [f = inner.attend_window, seen](const nsa::AttendWindowArgs& args) {
    seen->inputs.window = args;
    const Section section("attend_window");
    return f(args);
  };
  ops.combine = [f = inner.combine, seen](const nsa::CombineArgs& args) {
    seen->gates = args.gates.detach();
    const Section section("combine");
    return f(args);
  };
  return ops;
}

bool moves(const at::Tensor& gradient) {
  return gradient.defined() && gradient.count_nonzero().item<std::int64_t>() > 0;
}

void look_at_gradients(nsa::LanguageModelImpl& model, Execution& seen) {
  for (const auto& parameter : model.named_parameters()) {
    if (!moves(parameter.value().grad())) continue;
    const bool gate = parameter.key().find(".gate.") != std::string::npos;
    (gate ? seen.gates_have_gradient : seen.others_have_gradient) = true;
  }
}

}  // namespace

nsa::Call call_of(const Plan& plan, bool training) {
  return make_call(plan.model, 1, plan.S, plan.precision, plan.device, training);
}

Execution execute(const Subject& subject, const Plan& plan, const nsa::EffectiveFlags& flags, bool training) {
  const at::AutoGradMode mode(training);
  Instance instance = subject.model(
      {.config = plan.model, .flags = flags, .precision = plan.precision, .device = plan.device, .seed = plan.seed});
  const auto seen = std::make_shared<Execution>();
  nsa::Runtime& runtime = *instance.model->runtime;
  runtime.ops = [inner = runtime.ops, seen](const nsa::Call& call) { return watched(inner(call), seen); };

  auto generator = at::make_generator<at::CPUGeneratorImpl>(plan.seed + 1);
  const at::Tensor tokens = at::randint(0, plan.model.vocab, {1, plan.S + 1}, generator, at::kLong).to(plan.device);
  at::Tensor loss;
  {
    const probes::OpTrace trace;
    loss = instance.model->loss(tokens);
    seen->ops = trace.by_section();
  }
  seen->ops.erase("");  // the model around the attention
  if (training) {
    loss.backward();
    look_at_gradients(*instance.model, *seen);
  }
  return *seen;
}

}  // namespace suites::flag_execution
