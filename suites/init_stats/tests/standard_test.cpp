// The standard level of init_stats: silent on the product for many seeds and configurations, and each planted defect is
// found by the case that is for it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace init_stats_standard_test {

using namespace suites;
using tests::Codes;
using tests::Planted;
using Check = void (*)(harness::Context&, const ModelOptions&, nsa::LanguageModelImpl&);

struct Setting {
  nsa::Phi phi = nsa::Phi::avg;
  nsa::GateActivation gate = nsa::GateActivation::softmax;
  nsa::Precision precision = nsa::Precision::fp32;
  std::int64_t layers = 2;
  std::uint64_t seed = 1;
  nsa::EffectiveFlags flags = {};
};

tests::RecordingContext run(Check check, const Setting& setting = {}, const Planted& planted = {}) {
  static const harness::Settings settings = tests::default_settings();
  const Subject subject(tests::plant(planted));
  tests::RecordingContext context(settings, "test/seed" + std::to_string(setting.seed));
  ModelOptions options{.config = subject.config(context).model,
                       .flags = setting.flags,
                       .precision = setting.precision,
                       .device = at::kCPU,
                       .seed = setting.seed};
  options.config.phi = setting.phi;
  options.config.gate = setting.gate;
  options.config.n_layers = setting.layers;
  Instance instance = subject.model(options);
  check(context, options, *instance.model);
  return context;
}

at::Tensor parameter(nsa::LanguageModelImpl& model, const std::string& name) { return model.named_parameters()[name]; }

std::function<void(nsa::LanguageModelImpl&)> scaled(const std::string& name, double factor) {
  return [=](nsa::LanguageModelImpl& model) { parameter(model, name).mul_(factor); };
}

// -- silence

TEST(InitStandard, SilentForManySeedsAndSettings) {
  std::vector<Setting> settings;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) settings.push_back({.seed = seed});
  settings.push_back({.phi = nsa::Phi::mlp, .seed = 7});
  settings.push_back({.gate = nsa::GateActivation::sigmoid, .seed = 8});
  settings.push_back({.precision = nsa::Precision::bf16, .seed = 9});
  settings.push_back({.layers = 1, .seed = 10});
  settings.push_back({.layers = 8, .seed = 11});
  for (const Setting& setting : settings) {
    for (const Check check : {init_checks::shared_streams, init_checks::activations, init_checks::gradient_scale,
                              init_checks::gate_entropy, init_checks::initial_loss}) {
      const auto context = run(check, setting);
      EXPECT_TRUE(context.findings.empty()) << setting.seed << ": " << context.findings[0].message;
      EXPECT_GT(context.checks, 0);
    }
  }
}

TEST(InitStandard, ActivationsAreSilentUnderFlags) {
  Setting setting;
  for (const auto branch : {nsa::ForcedBranch::cmp, nsa::ForcedBranch::sel, nsa::ForcedBranch::win}) {
    setting.flags.forced_branch = branch;
    for (const Check check : {init_checks::activations, init_checks::gradient_scale}) {
      const auto context = run(check, setting);
      EXPECT_TRUE(context.findings.empty()) << static_cast<int>(branch) << ": " << context.findings[0].message;
    }
  }
  setting.flags.forced_branch = nsa::ForcedBranch::none;
  for (const double scale : {4.0, 0.25}) {
    setting.flags.rope_scale = scale;
    EXPECT_TRUE(run(init_checks::activations, setting).findings.empty()) << scale;
  }
}

TEST(InitStandard, TheSuiteRunsEachAtStandardLevel) {
  const auto seams = std::make_shared<Seams>();
  const harness::Settings settings = tests::default_settings();
  std::set<std::string> names;
  for (const auto& c : init_stats(Subject(seams)).cases(settings))
    if (c.level == harness::Level::standard) names.insert(c.name);
  EXPECT_EQ(names, (std::set<std::string>{"activations", "gate_entropy", "gradient_scale", "initial_loss", "processes",
                                          "shared_streams"}));
}

// -- activations: the first wrong stage is named, and what follows from it is not

TEST(InitStandard, AnExplosionByAScaledWeightIsFoundWhereItBegins) {
  const auto context = run(init_checks::activations, {}, {.model = scaled("layers.1.attention.o.weight", 4)});
  ASSERT_EQ(context.grave_codes(), tests::just(codes::kActivationScale));
  const auto& stages = context.findings[0].evidence["stages"];
  ASSERT_EQ(stages.size(), 1U) << stages.dump(1);
  EXPECT_EQ(stages[0]["stage"], "layers.1.attention");
  EXPECT_EQ(stages[0]["layer"], 1);
}

TEST(InitStandard, EveryKindOfWeightThatIsFourTimesTooLargeShows) {
  for (const std::string name :
       {"embedding.weight", "layers.0.attention.q.weight", "layers.1.attention.k_cmp.weight",
        "layers.0.attention.v_cmp.weight", "layers.1.attention.v_sel.weight", "layers.0.attention.v_win.weight",
        "layers.0.mlp.fc1.weight", "layers.1.mlp.fc2.weight", "head.weight", "layers.0.norm_mlp.weight"}) {
    EXPECT_EQ(run(init_checks::activations, {}, {.model = scaled(name, 4)}).grave_codes(),
              tests::just(codes::kActivationScale))
        << name;
  }
}

TEST(InitStandard, AVanishingBranchIsFound) {
  const Planted planted{.ops = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_selected, [inner = ops.attend_selected](const nsa::AttendSelectedArgs& args) {
      nsa::Attended out = inner(args);
      out.o = out.o * 0.2;
      return out;
    });
    return ops;
  }};
  const auto context = run(init_checks::activations, {}, planted);
  ASSERT_EQ(context.grave_codes(), tests::just(codes::kActivationScale));
  EXPECT_EQ(context.findings[0].evidence["stages"][0]["stage"], "layers.0.attention.sel.o");
}

// Keys of the compressed branch summed instead of averaged.
TEST(InitStandard, AMeanThatIsASumIsFound) {
  const Planted planted{.ops = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::compress, [inner = ops.compress](const nsa::CompressArgs& args) {
      const nsa::Compressed out = inner(args);
      const auto l = static_cast<double>(args.geometry.l);
      return nsa::Compressed{out.k * l, out.v * l};
    });
    return ops;
  }};
  const auto context = run(init_checks::activations, {}, planted);
  ASSERT_EQ(context.grave_codes(), tests::just(codes::kActivationScale));
  EXPECT_EQ(context.findings[0].evidence["stages"][0]["stage"], "layers.0.attention.cmp.k");
}

TEST(InitStandard, ANanIsCalledNonFinite) {
  const Planted planted{.model = [](auto& model) { parameter(model, "layers.1.mlp.fc1.weight")[0][0] = std::nan(""); }};
  EXPECT_EQ(run(init_checks::activations, {}, planted).grave_codes(), tests::just(codes::kNonFiniteForward));
}

// -- gradients

TEST(InitStandard, AGradientThatExplodesInOneLayerIsFound) {
  const auto context = run(init_checks::gradient_scale, {.layers = 4}, {.model = scaled("layers.2.mlp.fc2.weight", 8)});
  ASSERT_EQ(context.grave_codes(), tests::just(codes::kGradientScale));
  EXPECT_EQ(context.findings[0].evidence["off"][0]["what"], "layers.1");  // below layer 2
}

TEST(InitStandard, AGradientThatIsScaledOnItsWayIsFound) {
  const Planted planted{.ops = [](nsa::Ops ops, const nsa::Call&) {
    ops.replace(&nsa::Ops::attend_window, [inner = ops.attend_window](const nsa::AttendWindowArgs& args) {
      nsa::Attended out = inner(args);
      out.o = out.o.detach() + (out.o - out.o.detach()) * 100;  // the value is right, the gradient is not
      return out;
    });
    return ops;
  }};
  EXPECT_EQ(run(init_checks::gradient_scale, {}, planted).grave_codes(), tests::just(codes::kGradientScale));
}

TEST(InitStandard, OneLayerWhoseWeightsLearnFasterIsFound) {
  const Planted planted{.model = [](auto& model) {
    parameter(model, "layers.1.attention.v_sel.weight").register_hook([](const at::Tensor& g) { return g * 10; });
  }};
  const auto context = run(init_checks::gradient_scale, {}, planted);
  ASSERT_EQ(context.grave_codes(), tests::just(codes::kGradientScale));
  EXPECT_NE(context.findings[0].message.find("v_sel"), std::string::npos) << context.findings[0].message;
}

TEST(InitStandard, AGradientThatDoesNotComeIsAGraphBreak) {
  const Planted planted{.model = [](auto& model) { model.embedding->weight.requires_grad_(false); }};
  EXPECT_EQ(run(init_checks::gradient_scale, {}, planted).grave_codes(), tests::just(codes::kGraphBreak));
}

// -- gates, loss, streams

TEST(InitStandard, AGateThatIsDecidedInTheLastLayerOnlyIsFound) {
  const Planted planted{.model = [](auto& model) { parameter(model, "layers.1.attention.gate.fc2.bias")[0] = 8.0; }};
  const auto context = run(init_checks::gate_entropy, {}, planted);
  EXPECT_TRUE(context.grave_codes().contains(std::string(codes::kGateEntropy)));
  EXPECT_EQ(context.findings[0].evidence["layers"], harness::Json::array({"layers.1.attention.gates"}));
}

TEST(InitStandard, AGateThatIsDeadInOneGroupIsFound) {
  // A first layer that is blind to its input: every token gets the same gates.
  const Planted planted{.model = [](auto& model) { parameter(model, "layers.0.attention.gate.fc1.weight").zero_(); }};
  EXPECT_EQ(run(init_checks::gate_entropy, {}, planted).grave_codes(), tests::just(codes::kGateUniform));
}

TEST(InitStandard, ForcedGatesAreNotJudged) {
  Setting setting;
  setting.flags.uniform_gate = true;
  EXPECT_THROW((void)run(init_checks::gate_entropy, setting), harness::Skipped);
  EXPECT_THROW((void)run(init_checks::gates, setting), harness::Skipped);
}

TEST(InitStandard, AConfidentHeadIsFound) {
  const auto context = run(init_checks::initial_loss, {}, {.model = scaled("head.weight", 3)});
  EXPECT_EQ(context.grave_codes(), tests::just(codes::kInitialLoss));
}

TEST(InitStandard, AStreamThatIsUsedAgainAtAnotherScaleIsFound) {
  const Planted planted{.model = [](auto& model) {
    const at::Tensor source = parameter(model, "layers.0.mlp.fc1.weight").flatten();
    const at::Tensor target = parameter(model, "layers.1.mlp.fc2.weight").flatten();
    target.slice(0, 100, 2100).copy_(source.slice(0, 0, 2000) * 0.5);
  }};
  const auto context = run(init_checks::shared_streams, {}, planted);
  ASSERT_EQ(context.grave_codes(), tests::just(codes::kStreamReused));
  EXPECT_EQ(context.findings[0].evidence["pairs"][0]["first"], "layers.0.mlp.fc1.weight");
  EXPECT_EQ(context.findings[0].evidence["pairs"][0]["second"], "layers.1.mlp.fc2.weight");
  EXPECT_EQ(run(init_checks::streams, {}, planted).grave_codes(), Codes{});  // rows of other bits: only signs tell
}

}  // namespace init_stats_standard_test
