// Undecided gates and an undecided head: at step 0 every branch has nearly equal weight, every byte equal probability.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/tokens.hpp"

namespace suites::init_checks {

namespace {

// Note [Gates at step 0]
// The gate's hidden layer is SiLU of values with a mean square of at most (1 + 1/3)/3, hence below 0.12; fc2 has
// variance 0.01 * 2/(hidden + 3), so its outputs have a variance below hidden * 0.12 * 0.02 / (hidden + 3) < 0.0024. A
// softmax over three of them loses (2/3) * 0.0024 / 2 = 0.0008 nat of ln 3; ten times that, and the chance of single
// draws, is allowed. The same for a sigmoid (the paper's gate): variance/8 = 0.0003 of ln 2.
constexpr double kLostEntropy = 0.02;
constexpr double kSmallestSpread = 2.5e-4;  // over tokens, of one group; a mean over all groups is judged by `gates`

// In nats, by token and group: of the three shares, or of each gate by itself and averaged.
at::Tensor entropy(const at::Tensor& gates, nsa::GateActivation activation) {
  if (activation == nsa::GateActivation::softmax) return at::special_entr(gates).sum(-1);
  return (at::special_entr(gates) + at::special_entr(1 - gates)).mean(-1);
}

struct Layer {
  double entropy = 0, spread = 0;  // means over tokens; the smallest of the groups
  std::vector<double> mean;        // share of each branch
};

Layer look_at(const at::Tensor& gates, nsa::GateActivation activation) {  // [tokens,G,3] fp64
  Layer layer;
  layer.entropy = entropy(gates, activation).mean(0).min().item<double>();
  layer.spread = gates.std(0).mean(-1).min().item<double>();
  const at::Tensor mean = gates.mean(0).mean(0);
  for (std::int64_t b = 0; b < 3; ++b) layer.mean.push_back(mean[b].item<double>());
  return layer;
}

std::map<std::string, at::Tensor> observed_gates(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  std::map<std::string, at::Tensor> seen;
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    if (name.ends_with(".attention.gates")) seen[std::string(name)] = value.detach().to(at::kDouble).flatten(0, 1);
  };
  (void)model.forward(tokens);
  model.runtime->observe = nullptr;
  return seen;
}

}  // namespace

void skip_replaced_gates(Context& context, const ModelOptions& options) {
  if (options.flags.forced_branch != nsa::ForcedBranch::none || options.flags.uniform_gate)
    context.skip("unsupported", "NSA_FORCE_BRANCH or NSA_FORCE_UNIFORM_GATE replaces the gates by constants");
}

void gate_entropy(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  skip_replaced_gates(context, options);
  const at::NoGradGuard no_grad;
  const double full = options.config.gate == nsa::GateActivation::softmax ? std::log(3.0) : std::log(2.0);
  context.phase("forward");
  Json table = Json::object(), decided = Json::array(), dead = Json::array();
  std::string worst;
  for (const auto& [name, gates] : observed_gates(model, random_tokens(context, options))) {
    if (!gates.isfinite().all().item<bool>()) {
      context.finding(codes::kNonFiniteForward, fmt::format("{} is not finite", name), {{"stage", name}});
      return;
    }
    const Layer layer = look_at(gates, options.config.gate);
    table[name] = {{"entropy", layer.entropy}, {"spread_over_tokens", layer.spread}, {"mean", layer.mean}};
    if (!harness::within(layer.entropy, full - kLostEntropy, full * (1 + 1e-6))) {
      if (decided.empty()) worst = fmt::format("{}: {:.4g} nat of {:.4g}", name, layer.entropy, full);
      decided.push_back(name);
    }
    if (!harness::at_least(layer.spread, kSmallestSpread)) dead.push_back(name);
  }
  context.fact("gate entropy", table);
  context.expect_equal("layers with gates", table.size(), options.config.n_layers, codes::kGateEntropy);
  context.expect(
      "gates are undecided", decided.empty(),
      fmt::format("the gates of {} of {} layers have too little entropy; {}", decided.size(), table.size(), worst),
      codes::kGateEntropy, {{"layers", decided}, {"allowed_loss", kLostEntropy}, {"gates", table}});
  context.expect("the gates of every group vary over tokens", dead.empty(),
                 fmt::format("in {} of {} layers a group's gates vary by less than {} from token to token", dead.size(),
                             table.size(), kSmallestSpread),
                 codes::kGateUniform, {{"layers", dead}, {"bound", kSmallestSpread}, {"gates", table}});
}

// Note [Loss at step 0]
// Logits are normal with variance 1/3, so the loss is ln V + 1/6 in the mean: half the variance by their spread,
// nothing by the target, which is drawn independently. Over N tokens the target's logit leaves sqrt(1/(3N)); the mean
// of exp(logit) over V bytes leaves sqrt((e^(1/3)-1)/V) even when all tokens agree: 0.013 and 0.039 for N = 2048, V =
// 256. Six deviations of both together.
void initial_loss(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kTokens = 2048;
  double sum = 0;
  std::int64_t predictions = 0;
  for (int trial = 0; predictions < kTokens; ++trial) {
    context.phase("forward");
    const at::Tensor tokens = random_tokens(context, options, /*extra=*/1, trial);
    const std::int64_t S = tokens.size(1) - 1;
    sum += model.loss(tokens).item<double>() * static_cast<double>(S);
    predictions += S;
  }
  if (!std::isfinite(sum)) {
    context.finding(codes::kNonFiniteLoss, fmt::format("the loss at step 0 is {}", sum));
    return;
  }
  const double V = static_cast<double>(options.config.vocab), N = static_cast<double>(predictions);
  const double expected = std::log(V) + 1.0 / 6;
  const double allowed = 6 * std::sqrt(1 / (3 * N) + (std::exp(1.0 / 3) - 1) / V);
  context.expect_within("loss at step 0", sum / N, expected - allowed, expected + allowed, "nat", codes::kInitialLoss,
                        {{"expected", expected}, {"predictions", predictions}});
}

}  // namespace suites::init_checks
