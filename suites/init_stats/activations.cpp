// The size of every activation at step 0, stage by stage, against what the initial laws give for it.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/scale_law.hpp"
#include "suites/init_stats/tokens.hpp"
#include "suites/probes/stages.hpp"

namespace suites::init_checks {

namespace {

using namespace init_laws;

// What a softmax over scores of variance 1/9 (queries and keys of mean square 1/3) does to the mean square of its
// output, compared with weighing all alike: up to e^(1/9) = 1.12 in the mean over many heads; the rest is for few.
constexpr double kSoftmaxUp = 1.5, kSoftmaxDown = 0.75;

// The stages of one forward pass over one row of tokens, by name, without the batch dimension.
using Stages = std::map<std::string, at::Tensor>;

ScaleLaw exactly(double expected) {
  ScaleLaw law;
  law.expected = expected;
  law.down = 0.98;
  law.up = 1.02;
  return law;
}

ScaleLaw attending(ScaleLaw law) {
  law.down = kSoftmaxDown;
  law.up = kSoftmaxUp;
  return law;
}

// Keeps each stage's law, in the order of the forward pass.
struct Judged {
  std::string stage;
  double measured = 0;
  ScaleLaw law;
};

// One layer's laws, from the residual stream that goes into it.
class LayerJudge {
 public:
  LayerJudge(const ModelOptions& options, const Stages& stages, std::string name, const at::Tensor& x)
      : m_(options.config), flags_(options.flags), stages_(stages), name_(std::move(name)), x_(x), n_(normed(x)) {}

  std::vector<Judged> judge() {
    add(".attention.q", [&] { return linear_law(n_, m_.n_heads * m_.d_k, from_dim()); });
    if (m_.phi == nsa::Phi::avg) {
      add(".attention.cmp.k", [&] { return pooled_keys(); });
      add(".attention.cmp.v", [&] { return linear_law(block_means(n_, m_.nsa), values(), from_dim()); });
    } else {
      add(".attention.cmp.k", [&] { return learned_pool(m_.d_k); });
      add(".attention.cmp.v", [&] { return learned_pool(m_.d_v); });
    }
    add(".attention.cmp.o", [&] { return compressed(); });
    add(".attention.sel.o", [&] { return selected(); });
    add(".attention.win.o", [&] { return attending(linear_law(at::matmul(window(), n_), values(), from_dim())); });
    add(".attention.o", [&] { return combined(); });
    add(".attention", [&] {
      const at::Tensor o = at(".attention.o").flatten(1).to(at::kDouble);
      return linear_law(o, m_.dim, 1.0 / static_cast<double>(3 * o.size(1)));
    });
    add(".mlp", [&] { return mlp(); });
    add("", [&] { return exactly(mean_square(x_ + wide(".attention") + wide(".mlp"))); });
    return std::move(judged_);
  }

 private:
  const nsa::ModelConfig& m_;
  const nsa::EffectiveFlags& flags_;
  const Stages& stages_;
  std::string name_;
  at::Tensor x_, n_;  // [S,dim] fp64
  std::vector<Judged> judged_;

  [[nodiscard]] const at::Tensor& at(const std::string& stage) const { return stages_.at(name_ + stage); }
  [[nodiscard]] at::Tensor wide(const std::string& stage) const { return at(stage).to(at::kDouble); }
  [[nodiscard]] bool has(const std::string& stage) const { return stages_.contains(name_ + stage); }
  // Variance of the weights of a Linear that reads the residual stream, and channels of one branch's values.
  [[nodiscard]] double from_dim() const { return 1.0 / static_cast<double>(3 * m_.dim); }
  [[nodiscard]] std::int64_t values() const { return m_.n_kv_groups * m_.d_v; }

  template <typename Law>
  void add(const std::string& stage, const Law& law) {
    if (has(stage))
      judged_.push_back({name_ + stage, mean_square(at(stage)), law()});  // else: forced to another branch
  }

  [[nodiscard]] at::Tensor positions(std::int64_t count) const {
    return at::arange(count, at::TensorOptions(at::kLong).device(x_.device()));
  }
  [[nodiscard]] at::Tensor window() const {
    const at::Tensor t = positions(x_.size(0)).unsqueeze(1), j = positions(x_.size(0)).unsqueeze(0);
    return uniform_attention(j.le(t).logical_and(j.gt(t - m_.nsa.w)));
  }

  [[nodiscard]] ScaleLaw pooled_keys() const {
    ScaleLaw law = linear_law(block_means(n_, m_.nsa), m_.n_kv_groups * m_.d_k, from_dim());
    law.expected = from_dim() * turned_pool_mean_square(n_, m_, flags_.rope_scale);
    law.freedom /= 2;  // RoPE ties the channels of a pair to one another
    law.tail /= 2;
    return law;
  }

  // phi = mlp: the hidden layer sees values of mean square 1/3 under weights of variance 1/(3*l*D). How many directions
  // its output has is not known from outside, so one is assumed.
  [[nodiscard]] static ScaleLaw learned_pool(std::int64_t width) {
    ScaleLaw law;
    law.expected = silu_mean_square(1.0 / 9) / 3;
    law.freedom = law.tail = static_cast<double>(width);
    law.down = 0.5;
    law.up = 2;
    return law;
  }

  // Nothing is drawn between the compressed values and their attention: the mean over the visible blocks.
  [[nodiscard]] ScaleLaw compressed() const {
    const at::Tensor v = wide(".attention.cmp.v").flatten(1);  // [N_c, G*Dv]
    const at::Tensor last = positions(v.size(0)) * m_.nsa.d + (m_.nsa.l - 1);
    ScaleLaw law;
    law.expected =
        mean_square(at::matmul(uniform_attention(positions(x_.size(0)).unsqueeze(1).ge(last.unsqueeze(0))), v));
    return attending(law);
  }

  [[nodiscard]] ScaleLaw selected() const {
    const at::Tensor blocks = at(".attention.blocks");  // [S,G,n]
    const at::Tensor t = positions(x_.size(0)), block = at::floor_divide(t, m_.nsa.l_sel);
    std::vector<ScaleLaw> groups;
    for (std::int64_t g = 0; g < m_.n_kv_groups; ++g) {
      const at::Tensor chosen = blocks.select(1, g).unsqueeze(-1).eq(block.view({1, 1, -1})).any(1);  // [S,S]
      const at::Tensor seen = uniform_attention(chosen.logical_and(t.unsqueeze(0).le(t.unsqueeze(1))));
      groups.push_back(linear_law(at::matmul(seen, n_), m_.d_v, from_dim()));
    }
    return attending(together(groups));
  }

  // The branches' values are drawn independently, so their products vanish in the mean.
  [[nodiscard]] ScaleLaw combined() const {
    ScaleLaw law;
    law.expected = 0;
    const std::int64_t h = m_.n_heads / m_.n_kv_groups;
    const at::Tensor gates = wide(".attention.gates").repeat_interleave(h, 1);  // [S,Hq,3]
    const std::array<const char*, 3> outputs = {".attention.cmp.o", ".attention.sel.o", ".attention.win.o"};
    for (std::size_t b = 0; b < outputs.size(); ++b)
      if (has(outputs[b])) {
        law.expected += mean_square(gates.select(2, static_cast<std::int64_t>(b)).unsqueeze(2) * wide(outputs[b]));
      }
    law.down = 0.5;
    law.up = 2;
    return law;
  }

  // SiLU of values that are normal with mean square 1/3, whatever the token. Its outputs point in fewer directions than
  // its inputs, because they share a mean: a quarter of the freedom is counted.
  [[nodiscard]] ScaleLaw mlp() const {
    ScaleLaw law = linear_law(normed(x_ + wide(".attention")), m_.dim, 1);
    law.expected = silu_mean_square(1.0 / 3) / 3;
    law.freedom /= 4;
    law.tail /= 4;
    law.down = 0.9;
    law.up = 1.1;
    return law;
  }
};

Stages stages_of(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  Stages stages;
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    stages[std::string(name)] = value.detach().squeeze(0);
  };
  (void)model.forward(tokens);
  model.runtime->observe = nullptr;
  return stages;
}

std::vector<Judged> judge(Context& context, const ModelOptions& options, const Stages& stages,
                          const at::Tensor& tokens) {
  const nsa::ModelConfig& m = options.config;
  std::vector<Judged> all;
  const auto add = [&](const std::string& stage, const ScaleLaw& law) {
    all.push_back({stage, mean_square(stages.at(stage)), law});
  };
  add("embedding", drawn_rows_law(at::bincount(tokens.flatten(), {}, m.vocab), m.dim));
  std::string input = "embedding";
  for (std::int64_t i = 0; i < m.n_layers; ++i) {
    context.progress();
    const std::string name = fmt::format("layers.{}", i);
    for (Judged& judged : LayerJudge(options, stages, name, stages.at(input).to(at::kDouble)).judge())
      all.push_back(std::move(judged));
    input = name;
  }
  add("norm", exactly(1));
  const at::Tensor last = stages.at("norm").to(at::kDouble);
  add("logits", linear_law(last, m.vocab, 1.0 / static_cast<double>(3 * m.dim)));
  return all;
}

}  // namespace

void activations(Context& context, const ModelOptions& options, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = random_tokens(context, options);
  context.phase("forward");
  const Stages stages = stages_of(model, tokens);
  context.phase("laws");
  const std::vector<Judged> all = judge(context, options, stages, tokens);

  const double alarm = kFalseAlarm / (2 * static_cast<double>(all.size()));
  Json table = Json::object(), off = Json::array();
  std::string first;
  for (const Judged& j : all) {
    const double rms = std::sqrt(j.measured);
    if (!std::isfinite(rms)) {
      context.finding(codes::kNonFiniteForward, fmt::format("{} is not finite", j.stage), {{"stage", j.stage}});
      return;
    }
    const ScaleBounds b = bounds(j.law, alarm, rounding_of(options.precision));
    const Json row = {
        {"rms", rms}, {"expected", std::sqrt(j.law.expected)}, {"low", std::sqrt(b.low)}, {"high", std::sqrt(b.high)}};
    table[j.stage] = row;
    if (harness::within(j.measured, b.low, b.high)) continue;
    if (first.empty()) {
      first = fmt::format("{} has an RMS of {:.4g} where its input and the laws give {:.4g} ({:.4g} to {:.4g})",
                          j.stage, rms, std::sqrt(j.law.expected), std::sqrt(b.low), std::sqrt(b.high));
    }
    off.push_back({{"stage", j.stage}, {"layer", probes::parse_stage(j.stage).layer}, {"figures", row}});
  }
  context.fact("activation RMS", table);
  context.metric("stages judged", static_cast<double>(all.size()), "1");
  context.expect("activations", off.empty(),
                 fmt::format("{} of {} stages are not of the size that the laws give; the first: {}", off.size(),
                             all.size(), first),
                 codes::kActivationScale, {{"stages", off}, {"false_alarm", kFalseAlarm}});
}

}  // namespace suites::init_checks
