#include "nsa/model/recompute.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "nsa/ops.hpp"

namespace nsa {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the node keeps besides x. The context holds only IValues, and a capsule is the one that takes anything.
struct Part : torch::CustomClassHolder {
  std::shared_ptr<const torch::nn::Module> owner;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

constexpr const char* kPart = "part";

void refuse_what_cannot_work() {
  if (at::GradMode::is_enabled())  // what create_graph does to a backward pass
    throw Unsupported(
        "recompute: a second derivative (create_graph) was asked of a model that recomputes its activations; "
        "switch recomputation off (train.gradient_checkpointing: false)");
  if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid())
    throw Unsupported(
        "recompute: gradients of chosen tensors (grad(), or backward() with inputs) were asked of a model that "
        "recomputes its activations; supported: backward() into .grad. Or switch recomputation off");
}

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  // `trigger` requires a gradient, so that there is a backward pass even where x needs none and only parameters learn.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*trigger*/,
                            const c10::intrusive_ptr<Part>& part) {
    context->save_for_backward({x});
    context->saved_data[kPart] = c10::IValue::make_capsule(part);
    return run(x, *part).second.detach();  // the graph goes with the undetached tensor
  }

  static variable_list backward(AutogradContext* context, variable_list gradient) {
    refuse_what_cannot_work();
    const auto part = c10::static_intrusive_pointer_cast<Part>(context->saved_data.at(kPart).toCapsule());
    const auto [x, y] = run(context->get_saved_variables().at(0), *part);
    torch::autograd::backward({y}, {gradient.at(0)});
    return {x.grad(), {}, {}};
  }

 private:
  // The input as a leaf of its own, and the output with its graph.
  static std::pair<at::Tensor, at::Tensor> run(const at::Tensor& x, const Part& part) {
    const at::AutoGradMode grad(true);
    const auto leaf = x.detach().requires_grad_(x.requires_grad());
    return {leaf, part.forward(leaf)};
  }
};

}  // namespace

at::Tensor recompute(const torch::nn::Module& part, const at::Tensor& x,
                     std::function<at::Tensor(const at::Tensor&)> forward) {
  const auto parameters = part.parameters();
  const bool learns =
      x.requires_grad() || std::any_of(parameters.begin(), parameters.end(), [](auto& p) { return p.requires_grad(); });
  if (!at::GradMode::is_enabled() || !learns) return forward(x);
  auto kept = c10::make_intrusive<Part>();
  kept->owner = part.shared_from_this();
  kept->forward = std::move(forward);
  return Recompute::apply(x, at::empty({0}, x.options()).requires_grad_(), kept);
}

}  // namespace nsa
