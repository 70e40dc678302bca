#include "suites/implementation/node.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <numbers>
#include <utility>
#include <vector>

namespace suites::implementation {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kFarEnd = "far end";

void refuse_changed(const std::string& what, const std::vector<std::string>& inputs) {
  if (!inputs.empty())
    throw ImplementationError("changed_inputs",
                              fmt::format("{} wrote to {}, which it was given to read", what, fmt::join(inputs, ", ")));
}

// The graph in the other process. The context of a node holds only IValues, and a capsule is the one
// that takes anything.
struct FarEnd : torch::CustomClassHolder {
  FarEnd(std::shared_ptr<Client> to, Graph kept) : client(std::move(to)), graph(std::move(kept)) {}
  ~FarEnd() override {
    if (!spent) client->release(graph);
  }
  std::shared_ptr<Client> client;
  Graph graph;
  std::vector<std::string> inputs, outputs;  // names, in the order of the node's; outputs of those with a graph
  bool spent = false;                        // the graph went with a backward pass
};

// The cotangents that there are, by the outputs' names.
Named given(const FarEnd& far_end, const variable_list& gradients) {
  Named cotangents;
  for (std::size_t i = 0; i < far_end.outputs.size(); ++i)
    if (gradients[i].defined()) cotangents.emplace_back(far_end.outputs[i], gradients[i]);
  return cotangents;
}

struct Call : torch::autograd::Function<Call> {
  // `outputs` were computed before.
  static variable_list forward(AutogradContext* context, at::TensorList inputs, const variable_list& outputs,
                               const c10::intrusive_ptr<FarEnd>& far_end) {
    // For nothing but autograd's own errors: of inputs written to since, and of a second pass through a graph that is
    // gone. The values are in the other process.
    context->save_for_backward(inputs.vec());
    context->saved_data[kFarEnd] = c10::IValue::make_capsule(far_end);
    context->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& far_end = static_cast<FarEnd&>(*context->saved_data.at(kFarEnd).toCapsule());
    const std::string& function = far_end.graph.function;
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "derivative for implementation::", function,
                                "_backward is not implemented (a second derivative, by create_graph; the other process "
                                "gives none)");
    const auto inputs = context->get_saved_variables();
    variable_list result(inputs.size() + 2);  // outputs, far_end
    const Named cotangents = given(far_end, gradients);
    if (cotangents.empty()) return result;
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    const Backward backward = far_end.client->backward(far_end.graph, cotangents, keep);
    far_end.spent = !keep;
    refuse_changed(fmt::format("the backward pass of {}", function), backward.changed_inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      for (const auto& [name, gradient] : backward.gradients)
        if (name == far_end.inputs[i] && gradient.defined()) result[i] = gradient.to(inputs[i].device());
    return result;
  }
};

std::vector<std::string> requiring_gradients(const Named& inputs) {
  std::vector<std::string> names;
  if (!at::GradMode::is_enabled()) return names;
  for (const auto& [name, tensor] : inputs)
    if (tensor.requires_grad()) names.push_back(name);
  return names;
}

at::Tensor to_base_e(const at::Tensor& lse, LseBase base) {
  if (!lse.defined() || base == LseBase::none) return {};
  return base == LseBase::two ? lse * std::numbers::ln2 : lse;
}

Named on_device(Named outputs, at::Device device, LseBase base) {
  for (auto& [name, tensor] : outputs) {
    if (name == "lse") tensor = to_base_e(tensor, base);
    if (tensor.defined()) tensor = tensor.to(device);
  }
  return outputs;
}

// In the place of the outputs themselves, those that can have a graph get one.
void join(Named& outputs, const Request& request, const c10::intrusive_ptr<FarEnd>& far_end) {
  variable_list inputs, plain;
  for (const auto& [name, tensor] : request.inputs) {
    far_end->inputs.push_back(name);
    inputs.push_back(tensor);
  }
  for (const auto& [name, tensor] : outputs) {
    if (!tensor.defined() || name == "lse" || name == "blocks") continue;
    far_end->outputs.push_back(name);
    plain.push_back(tensor);
  }
  const variable_list joined = Call::apply(at::TensorList(inputs), plain, far_end);
  for (auto& [name, tensor] : outputs)
    for (std::size_t i = 0; i < joined.size(); ++i)
      if (far_end->outputs[i] == name) tensor = joined[i];
}

}  // namespace

Named call(const std::shared_ptr<Client>& client, Request request) {
  request.gradients = requiring_gradients(request.inputs);
  const at::Device device = request.inputs.front().second.device();
  Forward forward = client->forward(request);
  c10::intrusive_ptr<FarEnd> far_end;
  if (forward.graph) far_end = c10::make_intrusive<FarEnd>(client, *forward.graph);
  refuse_changed(request.function, forward.changed_inputs);
  Named outputs = on_device(std::move(forward.outputs), device, client->describe().lse);
  if (far_end) join(outputs, request, far_end);
  return outputs;
}

}  // namespace suites::implementation
