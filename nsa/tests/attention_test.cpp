#include "nsa/model/attention.hpp"

#include <set>

#include "nsa/model/rope.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa {
namespace {

using fixtures::distance;
using fixtures::message_of;
using fixtures::random;
using fixtures::tiny;

struct Layer {
  explicit Layer(const Environment& environment = {}, const ModelConfig& model = tiny())
      : config(model), runtime(std::make_shared<Runtime>()) {
    runtime->flags = resolve(environment);
    runtime->ops = Dispatcher(runtime->flags).provider();
    torch::manual_seed(1);
    attention = NsaAttention(config, 3, runtime);
    attention->to(torch::kDouble);
  }
  at::Tensor operator()(const at::Tensor& x) {
    return attention(
        x, rope_rotations(x.size(1), config.d_k, config.rope_base, runtime->flags.rope_scale, {}, x.options()),
        std::nullopt);
  }
  ModelConfig config;
  std::shared_ptr<Runtime> runtime;
  NsaAttention attention{nullptr};
};

// A layer that is made by hand is told what it lacks as a model is.
TEST(Attention, WhatCannotWorkIsRefusedByName) {
  auto odd = tiny();
  odd.n_heads = 7;
  const auto runtime = std::make_shared<Runtime>();
  for (const auto& make :
       std::vector<std::function<void()>>{[&] { NsaAttention(odd, 0, runtime); }, [&] { Block(odd, 0, runtime); }}) {
    EXPECT_THROW(make(), ConfigInvalid);
    EXPECT_NE(message_of(make).find("model.n_heads"), std::string::npos) << message_of(make);
  }
  const auto x = random({1, 20, 32}, 1).to(at::kFloat);
  const auto rotations = rope_rotations(20, 8, 10000.0, 1.0, {}, x.options());
  NsaAttention attention(tiny(), 0, runtime);
  Block block(tiny(), 0, runtime);
  for (const auto& pass : std::vector<std::function<void()>>{[&] { attention(x, rotations, std::nullopt); },
                                                             [&] { block(x, rotations, std::nullopt); }}) {
    EXPECT_THROW(pass(), ContractError);
    EXPECT_NE(message_of(pass).find("Runtime::ops is empty"), std::string::npos) << message_of(pass);
  }
}

TEST(Attention, ObservesItsStagesByName) {
  Layer layer;
  std::map<std::string, at::Tensor> seen;
  layer.runtime->observe = [&](std::string_view name, const at::Tensor& value) { seen[std::string(name)] = value; };
  const auto o = layer(random({2, 40, 32}, 1));
  std::set<std::string> names;
  for (const auto& [name, value] : seen) names.insert(name);
  std::set<std::string> wanted;
  for (const char* stage : {"gates", "q", "cmp.k", "cmp.v", "cmp.o", "blocks", "sel.o", "win.o", "o"})
    wanted.insert(std::string("layers.3.attention.") + stage);
  EXPECT_EQ(names, wanted);
  EXPECT_TRUE(seen["layers.3.attention.o"].requires_grad());

  // The stages are those of the oracle on this layer's own projections.
  const auto& at_stage = [&](const char* stage) { return seen["layers.3.attention." + std::string(stage)]; };
  const auto rotations = rope_rotations(40, 8, 10000.0, 1.0, {}, o.options());
  const auto x = random({2, 40, 32}, 1);
  const auto keys = [&](torch::nn::Linear& l) { return rotate(l(x).unflatten(-1, {2, 8}), rotations); };
  const auto values = [&](torch::nn::Linear& l) { return l(x).unflatten(-1, {2, 8}); };
  auto& a = *layer.attention;
  const auto s = reference::stages({rotate(a.q(x).unflatten(-1, {4, 8}), rotations), keys(a.k_cmp), values(a.v_cmp),
                                    keys(a.k_sel), values(a.v_sel), keys(a.k_win), values(a.v_win),
                                    a.gate(a.q(x).unflatten(-1, {4, 8}), EffectiveFlags{}), layer.config.nsa});
  EXPECT_LE(distance(at_stage("cmp.k"), s.compressed.k), 1e-12);
  EXPECT_LE(distance(at_stage("cmp.o"), s.cmp.o), 1e-12);
  EXPECT_TRUE(at::equal(at_stage("blocks"), s.blocks));
  EXPECT_LE(distance(at_stage("sel.o"), s.sel.o), 1e-12);
  EXPECT_LE(distance(at_stage("win.o"), s.win.o), 1e-12);
  EXPECT_LE(distance(at_stage("o"), s.o), 1e-12);
  EXPECT_LE(distance(o, a.o(s.o.flatten(2))), 1e-12);
}

TEST(Attention, EveryParameterGetsAGradientOnEveryRoute) {
  for (const Environment& environment : {Environment{}, {{"NSA_FORCE_SEL_MASK", "1"}}, {{"NSA_FORCE_PARITY", "1"}}}) {
    auto config = tiny();
    config.phi = Phi::mlp;
    Layer layer(environment, config);
    const auto o = layer(random({1, 40, 32}, 2));
    (o * random(o.sizes(), 3)).sum().backward();
    for (const auto& parameter : layer.attention->named_parameters()) {
      const auto& gradient = parameter.value().grad();
      ASSERT_TRUE(gradient.defined()) << parameter.key();
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << parameter.key();
      EXPECT_GT(gradient.abs().max().item<double>(), 0.0) << parameter.key();
    }
  }
}

TEST(Attention, ShortTextsHaveZeroNotMissingGradients) {
  Layer layer;
  const auto o = layer(random({1, 2, 32}, 2));  // shorter than a compression block
  o.sum().backward();
  EXPECT_EQ(layer.attention->k_cmp->weight.grad().abs().max().item<double>(), 0.0);
  EXPECT_EQ(layer.attention->v_cmp->weight.grad().abs().max().item<double>(), 0.0);
  EXPECT_GT(layer.attention->v_win->weight.grad().abs().max().item<double>(), 0.0);
}

TEST(Attention, RedrawingAnyWeightMovesTheOutput) {
  Layer layer;
  const auto x = random({1, 40, 32}, 4);
  const torch::NoGradGuard no_grad;
  const auto before = layer(x);
  for (const auto& parameter : layer.attention->named_parameters()) {
    const auto kept = parameter.value().clone();
    parameter.value().copy_(random(kept.sizes(), 5) * 0.3);
    EXPECT_GT((layer(x) - before).abs().max().item<double>(), 1e-6) << parameter.key();
    parameter.value().copy_(kept);
  }
  EXPECT_TRUE(at::equal(layer(x), before));
}

TEST(Attention, AForcedBranchIsThatBranchAndOnlyThat) {
  const auto x = random({1, 40, 32}, 6);
  const torch::NoGradGuard no_grad;
  for (const char* branch : {"cmp", "sel", "win"}) {
    Layer free, forced(Environment{{"NSA_FORCE_BRANCH", branch}});
    std::map<std::string, at::Tensor> seen;
    free.runtime->observe = [&](std::string_view name, const at::Tensor& value) { seen[std::string(name)] = value; };
    static_cast<void>(free(x));
    const auto wanted = free.attention->o(seen["layers.3.attention." + std::string(branch) + ".o"].flatten(2));
    std::set<std::string> computed;
    forced.runtime->observe = [&](std::string_view name, const at::Tensor&) { computed.insert(std::string(name)); };
    EXPECT_LE(distance(forced(x), wanted), 1e-12) << branch;
    for (const char* other : {"cmp", "sel", "win"})
      EXPECT_EQ(computed.contains("layers.3.attention." + std::string(other) + ".o"), std::string(other) == branch)
          << branch << " " << other;
  }
}

TEST(Attention, FlagsReachTheGate) {
  const auto x = random({1, 40, 32}, 7);
  Layer uniform(Environment{{"NSA_FORCE_UNIFORM_GATE", "1"}}), stopped(Environment{{"NSA_STOPGRAD_GATES", "1"}});
  uniform(x).sum().backward();
  stopped(x).sum().backward();
  EXPECT_FALSE(uniform.attention->gate->fc1->weight.grad().defined());
  EXPECT_FALSE(stopped.attention->gate->fc1->weight.grad().defined());
  Layer scaled(Environment{{"NSA_ROPE_SCALE", "0.5"}}), plain;
  EXPECT_GT((scaled(x) - plain(x)).abs().max().item<double>(), 1e-6);
}

TEST(Attention, TheCallSaysWhetherGradientsAreNeeded) {
  Layer layer;
  std::vector<bool> training;
  layer.runtime->ops = [&](const Call& call) {
    training.push_back(call.training);
    return backend_ops(Backend::sdpa);
  };
  const auto x = random({1, 5, 32}, 8);
  static_cast<void>(layer(x));
  {
    const torch::NoGradGuard no_grad;
    static_cast<void>(layer(x));
  }
  for (auto& parameter : layer.attention->parameters()) parameter.set_requires_grad(false);
  static_cast<void>(layer(x));
  static_cast<void>(layer(x.clone().set_requires_grad(true)));
  EXPECT_EQ(training, (std::vector<bool>{true, false, false, true}));
}

}  // namespace
}  // namespace nsa
