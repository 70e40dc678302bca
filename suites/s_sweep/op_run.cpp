#include "suites/s_sweep/op_run.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "nsa/reference/reference.hpp"

namespace suites::s_sweep_cases {

OpResults run_op(const OpInput& input, const nsa::Ops& ops, const RunOptions& options) {
  const oracle::OpCase& c = input.clean;
  const bool gradients = options.backward && c.differentiable_outputs > 0;
  const at::AutoGradMode grad(gradients);
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < options.given.size(); ++i) {
    leaves.push_back(options.given[i].detach().clone().requires_grad_(gradients));
    if (options.observe) options.observe(c.input_names[i], leaves.back());
  }
  const std::vector<at::Tensor> outputs = c.call(ops, leaves);
  OpResults results;
  std::vector<at::Tensor> carriers, cotangents;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    results.outputs.push_back(outputs[i].defined() ? outputs[i].detach() : outputs[i]);
    if (options.observe && outputs[i].defined()) options.observe(c.output_names[i], outputs[i]);
    if (!gradients || i >= c.differentiable_outputs || !outputs[i].requires_grad()) continue;
    carriers.push_back(outputs[i]);
    cotangents.push_back(input.cotangents[i].to(outputs[i].scalar_type()));
  }
  if (!carriers.empty()) {
    if (options.begin_backward) options.begin_backward();
    torch::autograd::backward(carriers, cotangents);
  }
  for (const at::Tensor& leaf : leaves) results.gradients.push_back(leaf.grad());
  return results;
}

OpResults run_reference(const OpInput& input, bool backward) {
  RunOptions options;
  options.backward = backward;
  for (const at::Tensor& x : input.clean.inputs) options.given.push_back(x.to(at::kDouble));
  return run_op(input, nsa::reference::ops(), options);
}

}  // namespace suites::s_sweep_cases
