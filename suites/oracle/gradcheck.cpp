#include "suites/oracle/gradcheck.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "harness/compare.hpp"
#include "suites/oracle/compare.hpp"

namespace suites::oracle {

namespace {

using Values = std::vector<at::Tensor>;

at::Tensor random_like(const at::Tensor& t, at::Generator& generator) {
  return at::randn(t.sizes(), generator, at::TensorOptions(at::kDouble)).to(t.device());
}

// A scalar function of the inputs: sum over the outputs of <cotangent, output>.
class Probe {
 public:
  Probe(const Function& function, Values inputs, at::Generator generator)
      : function_(function), inputs_(std::move(inputs)) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& output : function_(inputs_)) cotangents_.push_back(random_like(output, generator));
  }

  [[nodiscard]] Values gradients() const {
    const at::AutoGradMode grad(true);
    Values leaves;
    for (const at::Tensor& t : inputs_) leaves.push_back(t.detach().clone().requires_grad_());
    const at::Tensor value = contract(function_(leaves));
    if (!value.requires_grad()) return Values(leaves.size());
    return torch::autograd::grad({value}, leaves, {}, std::nullopt, false, /*allow_unused=*/true);
  }

  // (f(x + step * v) - f(x - step * v)) / (2 step), v in input `i` only.
  [[nodiscard]] double slope(std::size_t i, const at::Tensor& v, double step) const {
    const at::NoGradGuard no_grad;
    Values moved = inputs_;
    moved[i] = inputs_[i] + v * step;
    const double above = contract(function_(moved)).item<double>();
    moved[i] = inputs_[i] - v * step;
    const double below = contract(function_(moved)).item<double>();
    return (above - below) / (2 * step);
  }

 private:
  const Function& function_;
  Values inputs_, cotangents_;

  [[nodiscard]] at::Tensor contract(const Values& outputs) const {
    at::Tensor sum = at::zeros({}, inputs_.front().options());
    for (std::size_t i = 0; i < outputs.size(); ++i) sum = sum + (outputs[i] * cotangents_[i]).sum();
    return sum;
  }
};

double ratio(double numeric, double analytic, const GradcheckOptions& options) {
  return std::abs(numeric - analytic) /
         (options.absolute + options.relative * (std::abs(numeric) + std::abs(analytic)));
}

// The element of input `i` whose derivative is farthest off, among the first `search_limit` strided over the input.
void name_worst_element(const Probe& probe, const at::Tensor& input, const at::Tensor& gradient,
                        const GradcheckOptions& options, GradcheckReport& report) {
  const std::int64_t stride = std::max<std::int64_t>(1, input.numel() / options.search_limit);
  const at::Tensor flat_gradient = gradient.contiguous().flatten();
  double worst = -1;
  for (std::int64_t at = 0; at < input.numel(); at += stride) {
    at::Tensor v = at::zeros(input.sizes(), input.options());
    v.flatten()[at] = 1.0;
    const double numeric = probe.slope(report.input, v, options.step);
    const double analytic = flat_gradient[at].item<double>();
    const double off = ratio(numeric, analytic, options);
    if (!harness::at_most(off, worst)) {
      worst = off;
      report.index = unravel(at, input.sizes());
      report.numeric = numeric;
      report.analytic = analytic;
      if (std::isnan(off)) return;
    }
  }
}

}  // namespace

GradcheckReport gradcheck(const Function& function, const Values& inputs, const GradcheckOptions& options,
                          const std::function<void()>& progress) {
  for (const at::Tensor& t : inputs) {
    if (t.scalar_type() != at::kDouble) throw std::invalid_argument("gradcheck: inputs must be fp64");
  }
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const Probe probe(function, inputs, generator);
  const Values gradients = probe.gradients();

  GradcheckReport report;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool detached = !gradients[i].defined();
    const at::Tensor gradient = detached ? at::zeros_like(inputs[i]) : gradients[i];
    bool input_good = true;
    for (int direction = 0; direction < options.directions; ++direction) {
      if (progress) progress();
      const at::Tensor v = random_like(inputs[i], generator);
      const double off = ratio(probe.slope(i, v, options.step), (gradient * v).sum().item<double>(), options);
      report.worst_ratio = std::isnan(off) ? off : std::max(report.worst_ratio, off);
      input_good = input_good && harness::at_most(off, 1);
    }
    if (input_good || !report.good) continue;
    report.good = false;
    report.input = i;
    report.detached = detached;
    name_worst_element(probe, inputs[i], gradient, options, report);
  }
  return report;
}

}  // namespace suites::oracle
