#include "suites/forward/checks.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <cmath>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/probes/bit_trace.hpp"
#include "suites/probes/contract_errors.hpp"

namespace suites::forward_checks {

namespace {

// Final RMSNorm gives rows of mean square 1 and the head's weights are uniform in +-1/sqrt(dim), so the logits of an
// untrained model have variance 1/3, which raises the expected cross-entropy above ln V by half of that.
constexpr double kLogitVariance = 1.0 / 3.0;
constexpr double kLossSlack = 0.3;

// For a CPU generator: the same tokens on every device.
at::Tensor draw_tokens(const nsa::ModelConfig& model, std::int64_t B, std::int64_t length, std::uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randint(0, model.vocab, {B, length}, generator, at::kLong);
}

ModelOptions options(const Setup& setup, std::uint64_t seed) {
  return {
      .config = setup.model, .flags = setup.flags, .precision = setup.precision, .device = setup.device, .seed = seed};
}

// Mean cross-entropy from logits [B,S,V] and targets [B,S], in fp64.
double cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
  return -log_p.gather(-1, targets.to(logits.device()).unsqueeze(-1)).mean().item<double>();
}

std::string shape_text(at::IntArrayRef sizes) { return fmt::format("[{}]", fmt::join(sizes, ",")); }

// Runs `run`; false when it broke the contract of cu_seqlens, which is told as a finding with what was passed.
template <typename Run>
bool cu_seqlens_kept(Context& context, const at::Tensor& passed, Run run) {
  try {
    run();
    return true;
  } catch (const nsa::ContractError& error) {
    if (!probes::about_cu_seqlens(error)) throw;
    const std::string message = error.what();
    Json values = Json::array();
    for (std::int64_t i = 0; i < passed.numel(); ++i) values.push_back(passed[i].item<std::int64_t>());
    context.finding(codes::kCuSeqlens, fmt::format("inside a packed forward pass: {}", message),
                    {{"message", message}, {"passed_to_the_model", values}});
    return false;
  }
}

}  // namespace

void judge_logits(Context& context, const Setup& setup, Shape shape, const at::Tensor& logits) {
  const std::vector<std::int64_t> wanted = {shape.B, shape.S, setup.model.vocab};
  const at::ScalarType dtype = nsa::storage_type(setup.precision);
  context.expect("logits.contract",
                 logits.sizes() == at::IntArrayRef(wanted) && logits.scalar_type() == dtype &&
                     logits.device().type() == setup.device.type(),
                 fmt::format("logits are {} {} on {}, wanted {} {} on {}", at::toString(logits.scalar_type()),
                             shape_text(logits.sizes()), logits.device().str(), at::toString(dtype), shape_text(wanted),
                             setup.device.str()),
                 codes::kOutputContract);
  const at::Tensor bad = logits.isfinite().logical_not();
  const std::int64_t count = bad.sum().item<std::int64_t>();
  if (count == 0) {
    context.expect("logits.finite", true, "", codes::kNonFiniteForward);
    return;
  }
  const at::Tensor rows = bad.any(-1).nonzero();  // [rows, 2]
  const std::int64_t b = rows[0][0].item<std::int64_t>(), t = rows[0][1].item<std::int64_t>();
  context.expect("logits.finite", false,
                 fmt::format("{} of {} logits are not finite, in {} of {} rows; the first is batch {}, token {}", count,
                             logits.numel(), rows.size(0), shape.B * shape.S, b, t),
                 codes::kNonFiniteForward,
                 {{"non_finite", count},
                  {"nan", logits.isnan().sum().item<std::int64_t>()},
                  {"rows", rows.size(0)},
                  {"first", {{"batch", b}, {"token", t}}},
                  {"located_by", "suite s_sweep names the first operation, layer and branch"}});
}

void judge_initial_loss(Context& context, const nsa::ModelConfig& model, double loss) {
  const double expected = std::log(static_cast<double>(model.vocab)) + kLogitVariance / 2;
  context.metric("initial_loss", loss, "nat");
  context.expect_within(
      "initial_loss", loss, expected - kLossSlack, expected + kLossSlack, "nat", codes::kInitialLoss,
      {{"loss", reports::number(loss)}, {"expected", expected}, {"from", "ln V + 1/6"}, {"vocab", model.vocab}});
}

void batch(const Subject& subject, Context& context, const Setup& setup, Shape shape) {
  const at::NoGradGuard no_grad;
  context.phase("model");
  Instance instance = subject.model(options(setup, context.seed("weights")));
  const at::Tensor tokens =
      draw_tokens(setup.model, shape.B, shape.S + 1, context.seed("tokens")).to(setup.device);  // [B,S+1]
  const at::Tensor targets = tokens.slice(1, 1);                                                // [B,S]

  context.phase(fmt::format("forward B={} S={}", shape.B, shape.S));
  probes::BitTrace trace(context, *instance.model);
  const at::Tensor logits = instance.model->forward(tokens.slice(1, 0, shape.S));
  trace.end_step(0);
  judge_logits(context, setup, shape, logits);
  const double loss = cross_entropy(logits, targets);
  judge_initial_loss(context, setup.model, loss);

  context.phase("loss");
  const at::Tensor told = instance.model->loss(tokens);
  const double difference = std::abs(told.to(at::kDouble).item<double>() - loss);
  // Both come from the same weights and tokens; what differs is fp32 against fp64 in one reduction, and in bf16 the
  // order in which a kernel adds.
  const double bound = setup.precision == nsa::Precision::bf16 ? 1e-2 : 1e-4;
  Json evidence = {{"identity", "the model's loss = cross-entropy of its logits with the next tokens"},
                   {"model", reports::number(told.to(at::kDouble).item<double>())},
                   {"from_logits", reports::number(loss)}};
  if (c10::isReducedFloatingType(told.scalar_type())) evidence["as_if"] = "it were computed in 16 bits";
  context.expect_at_most("loss.agrees", difference, bound, "nat", codes::kIdentity, evidence);
}

void packed(const Subject& subject, Context& context, const Setup& setup) {
  const at::NoGradGuard no_grad;
  const std::int64_t l_sel = setup.model.nsa.l_sel;
  const std::vector<std::int64_t> lengths = {0, 1, l_sel + 7, 0, 2 * l_sel, 1, 0, 5};
  std::vector<int> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + static_cast<int>(length));
  const at::Tensor cu_seqlens = at::tensor(offsets, at::kInt);
  const Shape shape = {1, offsets.back()};
  context.fact("documents", lengths);

  context.phase("model");
  Instance instance = subject.model(options(setup, context.seed("weights")));
  const at::Tensor tokens = draw_tokens(setup.model, 1, shape.S + 1, context.seed("tokens")).to(setup.device);
  context.phase(fmt::format("packed forward S={}", shape.S));
  at::Tensor logits;
  probes::BitTrace trace(context, *instance.model);
  const bool kept = cu_seqlens_kept(context, cu_seqlens,
                                    [&] { logits = instance.model->forward(tokens.slice(1, 0, shape.S), cu_seqlens); });
  trace.end_step(0);
  if (!kept) return;
  judge_logits(context, setup, shape, logits);
  judge_initial_loss(context, setup.model, cross_entropy(logits, tokens.slice(1, 1)));
}

}  // namespace suites::forward_checks
