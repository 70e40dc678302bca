// Gradients over several batches: accumulated ones are those of one large batch, and .grad is added to.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/text.hpp"
#include "suites/autograd/cases.hpp"
#include "suites/autograd/gradients_of.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;

constexpr std::int64_t kParts = 4;
// Sums of the same terms in another order, in fp64, relative to the largest element of a gradient.
constexpr double kReordered = 1e-10;

struct Accumulated {
  Gradients gradients;
  double loss = 0;  // mean
};

// One backward pass a batch, each over 1/n of its loss, into the same .grad.
Accumulated accumulate(const Step& step, const at::Tensor& tokens, std::int64_t batches) {
  Accumulated result;
  step.model().zero_grad();
  for (const at::Tensor& batch : tokens.chunk(batches, 0)) {
    const at::Tensor loss = step.model().loss(batch) / static_cast<double>(batches);
    loss.backward();
    result.loss += loss.item<double>();
  }
  result.gradients = copy_gradients(step.model());
  return result;
}

// The same, each batch by itself, added by hand in the same order.
Gradients add_by_hand(const Step& step, const at::Tensor& tokens, std::int64_t batches) {
  Gradients sum;
  for (const at::Tensor& batch : tokens.chunk(batches, 0)) {
    step.model().zero_grad();
    (step.model().loss(batch) / static_cast<double>(batches)).backward();
    const Gradients one = copy_gradients(step.model());
    if (sum.empty()) {
      sum = one;
      continue;
    }
    for (std::size_t i = 0; i < sum.size(); ++i)
      if (sum[i].second.defined()) sum[i].second = sum[i].second + one[i].second;
  }
  return sum;
}

// False when the step itself is not sound.
bool one_large_batch(Context& context, const Subject& subject, const StepOptions& options) {
  StepOptions exact = options;  // fp64: no choice of blocks hangs on rounding
  exact.B = kParts;
  exact.precision = nsa::Precision::fp64;
  const Step step = make_step(context, subject, exact);
  if (!expect_sound(context, step)) return false;
  const Accumulated one = accumulate(step, step.tokens, 1);
  context.progress();
  const Accumulated four = accumulate(step, step.tokens, kParts);
  const Distance off = distance(four.gradients, one.gradients);
  context.expect_at_most("relative difference of gradients, accumulated and at once", off.largest, kReordered, "1",
                         codes::kAccumulationDiffers, off.evidence());
  context.expect_within("mean loss of the batches / loss of one batch", four.loss / one.loss, 1 - kReordered,
                        1 + kReordered, "1", codes::kAccumulationDiffers,
                        {{"accumulated", reports::number(four.loss)}, {"one_batch", reports::number(one.loss)}});
  return true;
}

}  // namespace

void accumulation(Context& context, const Subject& subject, const StepOptions& options) {
  const at::AutoGradMode grad(true);
  try {
    context.phase("fp64");
    if (!one_large_batch(context, subject, options)) return;
    context.phase("precision of the run");
    StepOptions rows = options;
    rows.B = kParts;
    const Step step = make_step(context, subject, rows);
    const Gradients accumulated = accumulate(step, step.tokens, kParts).gradients;
    context.progress();
    const Distance off = distance(accumulated, add_by_hand(step, step.tokens, kParts));
    context.expect_at_most("relative difference of .grad from the sum of the batches' gradients", off.largest,
                           repeat_tolerance(step.model().head->weight), "1", codes::kAccumulationDiffers,
                           off.evidence());
    require_route(step.instance, model_way(options.way));  // in fp64 the gathered blocks may be beyond their budget
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
  }
}

void second_backward(Context& context, const Subject& subject, const StepOptions& options) {
  const Step step = make_step(context, subject, options);
  if (!expect_sound(context, step)) return;
  const at::AutoGradMode grad(true);
  std::string refusal;
  Gradients once, twice;
  try {
    const at::Tensor loss = step.model().loss(step.tokens);
    context.phase("first backward pass");
    loss.backward({}, /*retain_graph=*/true);
    once = copy_gradients(step.model());
    context.phase("second backward pass");
    loss.backward();
    twice = copy_gradients(step.model());
    context.phase("third backward pass");
    try {
      loss.backward();
    } catch (const c10::Error& error) {
      refusal = error.what_without_backtrace();
    }
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
    return;
  }
  for (auto& [name, gradient] : once)
    if (gradient.defined()) gradient = gradient + gradient;
  const Distance off = distance(twice, once);
  context.expect_at_most("relative difference of .grad after two passes from twice the first", off.largest,
                         repeat_tolerance(step.model().head->weight), "1", codes::kSecondBackward, off.evidence());
  context.expect("a pass through a freed graph is refused by name", refusal.find("a second time") != std::string::npos,
                 "a third backward pass after the graph was freed was accepted, or refused with: \"" +
                     base::first_line(refusal) + "\"",
                 codes::kSecondBackward);
  require_route(step.instance, model_way(options.way));
}

}  // namespace suites::autograd_cases
