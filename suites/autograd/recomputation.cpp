// Activation recomputation: loss and gradients stay as they are, each layer is computed twice, memory goes down, and
// what cannot work with it is refused.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "nsa/ops.hpp"
#include "suites/autograd/cases.hpp"
#include "suites/autograd/gradients_of.hpp"
#include "suites/codes.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/op_bytes.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;

constexpr std::int64_t kLayers = 4;      // enough that what layers keep outweighs the logits
constexpr double kSmallestSaving = 0.9;  // of the peak; less is no saving. Measured on a GPU: 0.4

struct Pass {
  double loss = 0;
  Gradients gradients;
  std::int64_t layers_computed = 0;
  double peak_bytes = 0;
};

// Tokens with documents of very different length, one of them empty; over all S+1 tokens.
nsa::CuSeqlens documents(std::int64_t tokens) {
  const auto n = static_cast<int>(tokens);
  return at::tensor(std::vector<int>{0, n / 3, n / 3, n / 3 + 2, n - 5, n}, at::kInt);
}

Pass pass_of(const Step& step, const nsa::CuSeqlens& cu_seqlens, bool recompute) {
  nsa::Runtime& runtime = *step.model().runtime;
  Pass pass;
  const nsa::OpsProvider before = runtime.ops;
  runtime.recompute = recompute;
  runtime.ops = [&](const nsa::Call& call) {
    ++pass.layers_computed;  // the provider is asked once a layer and pass
    return before(call);
  };
  step.model().zero_grad();
  const at::AutoGradMode grad(true);
  probes::OpBytesScope bytes;
  const at::Tensor loss = step.model().loss(step.tokens, cu_seqlens);
  loss.backward();
  pass.peak_bytes = static_cast<double>(bytes.stop().peak);
  runtime.ops = before;
  runtime.recompute = false;
  pass.loss = loss.item<double>();
  pass.gradients = copy_gradients(step.model());
  return pass;
}

// The message with which a second derivative is refused; "" when it is not.
std::string refusal(const Step& step, const nsa::CuSeqlens& cu_seqlens) {
  step.model().runtime->recompute = true;
  const at::AutoGradMode grad(true);
  const at::Tensor loss = step.model().loss(step.tokens, cu_seqlens);
  try {
    (void)torch::autograd::grad({loss}, {step.model().embedding->weight}, {}, /*retain_graph=*/true,
                                /*create_graph=*/true);
  } catch (const nsa::Unsupported& error) {
    return error.what();
  }
  return "";
}

void compare(Context& context, const Step& step, const Pass& plain, const Pass& again, const Pass& recomputed) {
  // A GPU adds in an order that varies; how far, two equal passes say. A CPU repeats itself, and nothing is allowed.
  const double excuse = step.tokens.is_cuda() ? 4 : 0;
  const Distance spread = distance(again.gradients, plain.gradients);
  const Distance off = distance(recomputed.gradients, plain.gradients);
  const double allowed = excuse * spread.largest + repeat_tolerance(step.model().head->weight);
  context.metric("spread of equal passes", spread.largest, "1");
  context.expect_at_most("relative difference of gradients by recomputation", off.largest, allowed, "1",
                         codes::kRecomputeDiffers, off.evidence());
  context.expect_at_most("difference of losses by recomputation", std::abs(recomputed.loss - plain.loss),
                         excuse * std::abs(again.loss - plain.loss), "nat", codes::kRecomputeDiffers,
                         {{"loss", reports::number(plain.loss)}, {"recomputed", reports::number(recomputed.loss)}});
}

void judge(Context& context, const Step& step, bool packed) {
  const nsa::CuSeqlens cu_seqlens = packed ? documents(step.tokens.size(1)) : nsa::CuSeqlens();
  context.phase("without recomputation");
  (void)pass_of(step, cu_seqlens, false);  // warms up what the first pass allocates for good
  const Pass plain = pass_of(step, cu_seqlens, false), again = pass_of(step, cu_seqlens, false);
  context.phase("with recomputation");
  const Pass recomputed = pass_of(step, cu_seqlens, true);

  // First the proof that the two differ in what they do.
  context.expect_equal("layers computed without recomputation", plain.layers_computed, kLayers,
                       codes::kRecomputeDiffers);
  context.expect_equal("layers computed with recomputation", recomputed.layers_computed, 2 * kLayers,
                       codes::kRecomputeDiffers);
  compare(context, step, plain, again, recomputed);
  context.metric("peak without recomputation", plain.peak_bytes, "B");
  context.metric("peak with recomputation", recomputed.peak_bytes, "B");
  context.expect_at_most("peak bytes with recomputation / without", recomputed.peak_bytes / plain.peak_bytes,
                         kSmallestSaving, "1", codes::kRecomputeDiffers);

  context.phase("second derivative");
  const std::string said = refusal(step, cu_seqlens);
  context.expect("a second derivative through recomputation is refused by name",
                 said.find("create_graph") != std::string::npos,
                 "create_graph = true was accepted, or refused with: \"" + said + "\"", codes::kDoubleBackward);
  require_route(step.instance, model_way("sdpa"));
}

}  // namespace

void recomputation(Context& context, const Subject& subject, bool packed) {
  const Step step = make_step(context, subject, {.way = "sdpa", .layers = kLayers});
  if (!expect_sound(context, step)) return;
  try {
    judge(context, step, packed);
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error);
  }
}

}  // namespace suites::autograd_cases
