// The derivative of the backward pass: right, or refused by name. A cut graph is neither: it gives a first derivative
// as before, and a second one that is silently zero.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <regex>

#include "base/text.hpp"
#include "nsa/ops.hpp"
#include "suites/autograd/cases.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/gradcheck.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/one_thread.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;
using oracle::OpCase;
using Tensors = std::vector<at::Tensor>;

Tensors leaves_of(const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& t : inputs) leaves.push_back(t.detach().clone().requires_grad_());
  return leaves;
}

// The gradients of sum <cotangent, output> by every input, as functions of the inputs: what is differentiated here.
Tensors first_gradients(const OpCase& c, const nsa::Ops& ops, const Tensors& cotangents, const Tensors& inputs) {
  const bool differentiable = at::GradMode::is_enabled();
  const at::AutoGradMode grad(true);
  const Tensors leaves = differentiable ? inputs : leaves_of(inputs);
  Tensors outputs = c.call(ops, leaves);
  outputs.resize(c.differentiable_outputs);
  Tensors gradients = torch::autograd::grad(outputs, leaves, cotangents, std::nullopt, /*create_graph=*/differentiable,
                                            /*allow_unused=*/true);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(leaves[i]);
    if (!differentiable) gradients[i] = gradients[i].detach();
  }
  return gradients;
}

Tensors outputs_of(const OpCase& c, const nsa::Ops& ops) {
  const at::NoGradGuard no_grad;
  Tensors outputs = c.call(ops, c.inputs);
  outputs.resize(c.differentiable_outputs);
  return outputs;
}

Tensors cotangents_of(Tensors outputs, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (at::Tensor& output : outputs)
    output = at::randn(output.sizes(), generator, at::TensorOptions(at::kDouble)).to(output.options());
  return outputs;
}

// What a refusal names ("aten::_scaled_dot_product_flash_attention_for_cpu_backward"); "" when it names nothing.
std::string refused_operation(const std::string& message) {
  std::smatch match;
  const std::string line = base::first_line(message);
  if (!std::regex_search(line, match, std::regex(R"(derivative for (\S+) is not implemented)"))) return "";
  return match[1];
}

// The second backward pass, for what it throws.
void differentiate_again(const oracle::Function& first, const Tensors& inputs) {
  const at::AutoGradMode grad(true);
  const Tensors leaves = leaves_of(inputs);
  at::Tensor sum = at::zeros({}, inputs.front().options());
  for (const at::Tensor& gradient : first(leaves)) sum = sum + gradient.sum();
  if (sum.requires_grad()) (void)torch::autograd::grad({sum}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
}

void report(Context& context, const OpCase& c, const std::string& way, const oracle::GradcheckReport& result) {
  context.fact("second derivative", "computed");
  context.metric("difference/allowed", result.worst_ratio, "");
  const std::string input = result.good ? "" : c.input_names[result.input];
  context.expect("the second derivative is right", result.good,
                 fmt::format("{} ({}): the derivative of its gradients by {} at [{}] is {:.6g} numerically and {:.6g} "
                             "in the second backward pass{}",
                             c.name(), way, input, fmt::join(result.index, ", "), result.numeric, result.analytic,
                             result.detached ? ", through which nothing reaches it" : ""),
                 codes::kDoubleBackward,
                 {{"op", c.name()},
                  {"backend", way},
                  {"input", input},
                  {"index", result.index},
                  {"numeric", reports::number(result.numeric)},
                  {"analytic", reports::number(result.analytic)}});
}

// A refusal is an answer when it says what cannot be differentiated twice.
void report_refusal(Context& context, const OpCase& c, const std::string& way, const c10::Error& error) {
  if (probes::inplace_write(error)) {
    probes::report_inplace_write(context, error, {{"op", c.name()}, {"backend", way}});
    return;
  }
  const std::string message = error.what_without_backtrace(), operation = refused_operation(message);
  context.fact("second derivative", operation.empty() ? "failed" : "refused: " + operation);
  context.expect("a second derivative is refused by name", !operation.empty(),
                 fmt::format("{} ({}): the second backward pass fails without naming what has no derivative: {}",
                             c.name(), way, base::first_line(message)),
                 codes::kDoubleBackward, {{"op", c.name()}, {"backend", way}});
}

}  // namespace

void double_backward(Context& context, const Subject& subject, const OpRun& run) {
  const probes::OneThread one_thread;
  const Way& way = way_named(run.way);
  const bool judged = std::find(way.dtypes.begin(), way.dtypes.end(), at::kDouble) != way.dtypes.end();
  const at::ScalarType dtype = judged ? at::kDouble : at::kBFloat16;
  oracle::OpShape shape = shape_for(subject, way, oracle::tiny_shape());
  shape.phi = run.phi;
  const OpCase c = make_op_case(run.op, shape, dtype, device_of(context), context.seed("inputs"));
  const nsa::Ops ops = ops_of(subject, way, shape, run.op, dtype, device_of(context));
  try {
    const Tensors outputs = outputs_of(c, ops);
    const bool finite = std::all_of(outputs.begin(), outputs.end(),
                                    [](const at::Tensor& t) { return t.isfinite().all().item<bool>(); });
    if (!context.expect("the output is finite", finite,
                        fmt::format("{} ({}): the output is not finite", c.name(), run.way), codes::kNonFiniteForward,
                        {{"op", c.name()}, {"backend", run.way}}))
      return;
    const Tensors cotangents = cotangents_of(outputs, context.seed("cotangents"));
    const oracle::Function function = [&](const Tensors& inputs) {
      return first_gradients(c, ops, cotangents, inputs);
    };
    if (judged) {
      context.phase("gradcheck of the gradient");
      oracle::GradcheckOptions options;
      options.seed = context.seed("directions");
      return report(context, c, run.way, oracle::gradcheck(function, c.inputs, options, [&] { context.progress(); }));
    }
    context.phase("second backward pass");
    differentiate_again(function, c.inputs);
    context.expect("a second derivative that nothing can judge is refused", false,
                   fmt::format("{} ({}) gives a second derivative in bf16, where no check can tell whether it is right",
                               c.name(), run.way),
                   codes::kDoubleBackward, {{"op", c.name()}, {"backend", run.way}});
  } catch (const c10::Error& error) {
    report_refusal(context, c, run.way, error);
  }
}

}  // namespace suites::autograd_cases
