#include "suites/flag_matrix/execution.hpp"
#include "nsa/call.hpp"

#include <ATen/ATen.h>

#include <optional>
#include <stdexcept>

namespace suites::flag_execution {

namespace {

using Section = probes::OpTrace::Section;

void look_at_gates(const at::Tensor& gates, Execution& seen) {
  seen.gates = gates.detach();
  seen.gates_carry_graph = gates.requires_grad();
}

// Puts every function of the table into a section of its own, and keeps what the attentions are given. Attention in one
// stays that: it has one section, and its parts have none.
nsa::Ops watched(const nsa::Ops& inner, const std::shared_ptr<Execution>& seen) {
  nsa::Ops ops = inner;
  ops.replace(&nsa::Ops::compress, [f = inner.compress](const nsa::CompressArgs& args) {
    const Section section("compress");
    return f(args);
  });
  if (inner.way == nsa::AttendWay::in_one) {
    ops.replace(&nsa::Ops::attend, [f = inner.attend, seen](const nsa::AttendArgs& args) {
      look_at_gates(args.gates, *seen);
      seen->inputs.window.q = seen->inputs.compressed.q = seen->inputs.selected.q = args.q;
      const Section section("attend");
      return f(args);
    });
    return ops;
  }
  ops.replace(&nsa::Ops::attend_compressed, [f = inner.attend_compressed, seen](const nsa::AttendCompressedArgs& args) {
    seen->inputs.compressed = args;
    const Section section("attend_compressed");
    return f(args);
  });
  ops.replace(&nsa::Ops::select, [f = inner.select](const nsa::SelectArgs& args) {
    const Section section("select");
    return f(args);
  });
  ops.replace(&nsa::Ops::attend_selected, [f = inner.attend_selected, seen](const nsa::AttendSelectedArgs& args) {
    seen->inputs.selected = args;
    const Section section("attend_selected");
    return f(args);
  });
  ops.replace(&nsa::Ops::attend_window, [f = inner.attend_window, seen](const nsa::AttendWindowArgs& args) {
    seen->inputs.window = args;
    const Section section("attend_window");
    return f(args);
  });
  ops.replace(&nsa::Ops::combine, [f = inner.combine, seen](const nsa::CombineArgs& args) {
    look_at_gates(args.gates, *seen);
    const Section section("combine");
    return f(args);
  });
  return ops;
}

// What ran between a layer's attention and its MLP's end is a section of its own.
constexpr const char* kMlp = "mlp";

std::int64_t times(const std::map<std::string, probes::OpCounts>& ops, const std::string& section, const char* op) {
  const auto known = ops.find(section);
  if (known == ops.end()) return 0;
  const auto ran = known->second.find(op);
  return ran == known->second.end() ? 0 : ran->second;
}

bool moves(const at::Tensor& gradient) {
  return gradient.defined() && gradient.count_nonzero().item<std::int64_t>() > 0;
}

void look_at_gradients(nsa::LanguageModelImpl& model, Execution& seen) {
  for (const auto& parameter : model.named_parameters()) {
    const bool gate = parameter.key().find(".gate.") != std::string::npos;
    if (!gate && moves(parameter.value().grad())) seen.others_have_gradient = true;
  }
}

void draw_gates(nsa::LanguageModelImpl& model, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  bool found = false;
  for (auto& parameter : model.named_parameters()) {
    if (parameter.key().find(".gate.fc2.") == std::string::npos) continue;
    at::Tensor& value = parameter.value();
    value.copy_(at::randn(value.sizes(), generator, at::kFloat));
    found = true;
  }
  if (!found) throw std::logic_error("flag_matrix: the model has no parameter named *.gate.fc2.*");
}

std::map<std::string, nsa::Choice> routes_of(const nsa::Dispatcher& dispatcher) {
  std::map<std::string, nsa::Choice> routes;
  for (const nsa::Taken& taken : dispatcher.routes_taken())
    routes[std::string(nsa::to_string(taken.op))] = taken.choice;
  return routes;
}

}  // namespace

at::Tensor documents_of(std::int64_t S) {
  const auto end = static_cast<int>(S), first = static_cast<int>((S - 1) / 3);
  return at::tensor({0, first, first, first + 1, end}, at::kInt);
}

std::int64_t packed_length(std::int64_t length) { return length + length / 2 + 1; }

nsa::Call call_of(const Plan& plan, bool training) {
  return nsa::call_of(plan.model, plan.B, plan.S, plan.precision, plan.device, training, plan.packed);
}

Instance make_model(const Subject& subject, const Plan& plan, const nsa::EffectiveFlags& flags) {
  Instance instance = subject.model(
      {.config = plan.model, .flags = flags, .precision = plan.precision, .device = plan.device, .seed = plan.seed});
  draw_gates(*instance.model, plan.seed + 2);
  return instance;
}

Execution pass(Instance& instance, const Plan& plan, bool training) {
  const at::AutoGradMode mode(training);
  const auto seen = std::make_shared<Execution>();
  nsa::Runtime& runtime = *instance.model->runtime;
  const auto ops_before = runtime.ops;
  runtime.ops = [ops_before, seen](const nsa::Call& call) { return watched(ops_before(call), seen); };
  std::optional<Section> mlp;
  runtime.observe = [seen, &mlp](std::string_view name, const at::Tensor& value) {
    if (name.ends_with(".gates")) look_at_gates(value, *seen);
    if (name.ends_with(".attention")) mlp.emplace(kMlp);
    if (name.ends_with(".mlp")) mlp.reset();
  };

  auto generator = at::make_generator<at::CPUGeneratorImpl>(plan.seed + 1);
  const at::Tensor tokens = at::randint(0, plan.model.vocab, {plan.B, plan.S}, generator, at::kLong).to(plan.device);
  {
    const probes::OpTrace trace;
    seen->output =
        plan.packed ? instance.model->forward(tokens, documents_of(plan.S)) : instance.model->forward(tokens);
    seen->ops = trace.by_section();
  }
  runtime.ops = ops_before;
  runtime.observe = nullptr;
  for (const char* round : {"", kMlp}) seen->norms_by_aten += times(seen->ops, round, "aten::rms_norm");
  seen->mlp_by_aten = times(seen->ops, kMlp, "aten::matmul") > 0;
  seen->silu_by_aten = times(seen->ops, kMlp, "aten::silu") > 0;
  for (const char* round : {"", kMlp}) seen->ops.erase(round);  // the model round the attention
  seen->parts = instance.dispatcher->parts()->taken();
  seen->routes = routes_of(*instance.dispatcher);
  if (training) {
    try {
      seen->output.to(at::kFloat).square().mean().backward();
      look_at_gradients(*instance.model, *seen);
    } catch (const c10::Error& error) {
      seen->overwritten = probes::inplace_write(error);
      if (!seen->overwritten) throw;
    }
  }
  seen->output = seen->output.detach();
  return *seen;
}

Execution execute(const Subject& subject, const Plan& plan, const nsa::EffectiveFlags& flags, bool training) {
  Instance instance = make_model(subject, plan, flags);
  return pass(instance, plan, training);
}

}  // namespace suites::flag_execution
