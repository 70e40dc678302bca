// The cases of the whole model against the oracle: silent on the product, and what they say of a fault.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "suites/codes.hpp"
#include "suites/parity/against_oracle.hpp"
#include "suites/parity/cases.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites {
namespace {

using parity_cases::WholeStep;
using OnStage = std::function<void(std::string_view name, const at::Tensor& value)>;

const harness::Settings& settings() {
  static const harness::Settings all = tests::default_settings(parity);
  return all;
}

// A subject whose model lets `change` touch each of its stages as it is computed.
Subject changed(const OnStage& change) {
  auto seams = std::make_shared<Seams>();
  seams->model.push_back([change](nsa::LanguageModelImpl& model) { model.runtime->observe = change; });
  return Subject(seams);
}
OnStage scaled(const std::string& stage, double factor) {
  return [stage, factor](std::string_view name, const at::Tensor& value) {
    if (name == stage) value.data().mul_(factor);  // past autograd
  };
}

tests::RecordingContext of_step(const Subject& subject, const WholeStep& step) {
  tests::RecordingContext context(settings());
  parity_cases::whole_step(context, subject, step);
  return context;
}

TEST(OracleCases, AStepOfTheProductIsTheOraclesAtEveryLengthInEveryPrecision) {
  const Subject subject(std::make_shared<Seams>());
  for (const std::string model : {"subject", "small"})
    for (const auto precision : {nsa::Precision::fp64, nsa::Precision::fp32, nsa::Precision::bf16})
      for (const std::string S : {"1", "l-1", "l", "l+1", "2w+lsel+3", "documents"}) {
        const auto context = of_step(subject, {model, precision, S});
        EXPECT_TRUE(context.findings.empty()) << context.findings.front().message;
        EXPECT_GE(context.checks, 4);
      }
}

TEST(OracleCases, NamesLayerAndStageInWhichAPassParts) {
  for (const std::string stage : {"layers.2.attention.gates", "layers.1.attention.q", "layers.2.attention",
                                  "layers.2.mlp", "layers.0", "norm", "logits"}) {
    const auto context = of_step(changed(scaled(stage, 1.001)), {"subject", nsa::Precision::fp32});
    ASSERT_EQ(context.findings.size(), 1U) << stage;
    EXPECT_EQ(context.findings[0].code, codes::kOutputBudget);
    EXPECT_EQ(context.findings[0].evidence["stage"], stage);
  }
}

TEST(OracleCases, NamesTheFirstParameterWhoseGradientIsOff) {
  const auto context = of_step(changed([](std::string_view name, const at::Tensor& value) {
                                 if (name == "layers.1.mlp" && value.requires_grad())
                                   value.register_hook([](const at::Tensor& gradient) { return gradient * 1.001; });
                               }),
                               {"subject", nsa::Precision::fp32});
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kGradientBudget);
  EXPECT_TRUE(std::string(context.findings[0].evidence["parameter"]).starts_with("layers.1.mlp"));
}

TEST(OracleCases, TheReferenceIsJudgedByItself) {
  const Subject subject(std::make_shared<Seams>());
  for (const std::string S : {"2w+lsel+3", "documents"}) {
    const auto context = of_step(subject, {"subject", nsa::Precision::fp64, S, /*by_reference=*/true});
    EXPECT_TRUE(context.findings.empty()) << context.findings.front().message;
    EXPECT_GE(context.checks, 4);
    const auto dispatchers = subject.take_dispatchers();
    ASSERT_EQ(dispatchers.size(), 1U);
    for (const nsa::Taken& taken : dispatchers[0]->routes_taken())
      EXPECT_EQ(taken.choice.backend, nsa::Backend::reference) << nsa::to_string(taken.op);
  }
}

TEST(OracleCases, NanPassesNowhere) {
  const auto context = of_step(changed(scaled("layers.1.mlp", NAN)), {"subject", nsa::Precision::bf16});
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].evidence["stage"], "layers.1.mlp");
}

tests::RecordingContext of_decoding(const std::function<void(nsa::decode::StepOps&)>& change) {
  auto seams = std::make_shared<Seams>();
  seams->decode.push_back([change](nsa::decode::StepOps ops) {
    change(ops);
    return ops;
  });
  tests::RecordingContext context(settings());
  parity_cases::whole_decoding(context, Subject(seams), {"subject", nsa::Precision::fp32});
  return context;
}

TEST(OracleCases, DecodingIsJudgedTokenByToken) {
  // More than 40 keys are seen by the selected branch alone, from token 40 on.
  const auto context = of_decoding([](nsa::decode::StepOps& ops) {
    ops.attend = [inner = ops.attend](const nsa::decode::StepAttendArgs& args) {
      return inner(args) * (args.k.size(2) > 40 ? 1.01 : 1.0);
    };
  });
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kWaysDiffer);
  EXPECT_EQ(context.findings[0].evidence["stage"], "layers.0.attention.sel.o");
  EXPECT_EQ(context.findings[0].evidence["row"], 40);
}

// All of a step that follows from a wrong choice is right, given the choice.
TEST(OracleCases, AChoiceOfDecodingThatTheScoresDoNotJustifyIsFound) {
  const auto context = of_decoding([](nsa::decode::StepOps& ops) {
    ops.select = [inner = ops.select](const nsa::decode::StepSelectArgs& args) {
      nsa::decode::StepSelectArgs other = args;
      other.q = -args.q;
      return inner(other);
    };
  });
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0].code, codes::kSelectionDiffers);
}

// What the description fixes: the comparison sees another value of each, in fp32 and where there is bf16 only.
TEST(OracleCases, TheComparisonSeesEveryConstant) {
  tests::RecordingContext context(settings());
  const Subject subject(std::make_shared<Seams>());
  const nsa::Config config = parity_cases::three_layers(context, subject, "small");
  auto sides = parity_cases::both_sides(context, subject, config, nsa::Precision::fp32, subject.flags());
  const at::Tensor tokens = parity_cases::prompt(context, config, {1, 83});
  const auto shown = parity_cases::forward_of(sides, tokens);
  const auto blocks = shown.choices(3);
  const auto parts = [&](const oracle::Constants& constants) {
    oracle::PlainModel exact = sides.exact(), naive = sides.naive();
    exact.constants = naive.constants = constants;
    std::map<std::string, double> largest;
    const at::NoGradGuard no_grad;
    return parity_cases::first_parting(shown.stages, oracle::forward(exact, tokens, {}, blocks),
                                       oracle::forward(naive, tokens, {}, blocks), at::kFloat, largest)
        .stage;
  };
  EXPECT_EQ(parts({}), "");
  using oracle::Constants;
  using oracle::Curve;
  EXPECT_EQ(parts(Constants{.norm_eps = 0}), "layers.0.attention.gates");
  EXPECT_EQ(parts(Constants{.norm_eps = 1e-5}), "layers.0.attention.gates");
  EXPECT_EQ(parts(Constants{.rope_pairs = oracle::Pairs::halves}), "layers.0.attention.q");
  EXPECT_EQ(parts(Constants{.rope_first = 1}), "layers.0.attention.q");
  EXPECT_EQ(parts(Constants{.rope_turn = -1}), "layers.0.attention.q");
  EXPECT_EQ(parts(Constants{.attention_scale = 0.999}), "layers.0.attention.cmp.o");
  EXPECT_EQ(parts(Constants{.residual_scale = 0.98}), "layers.0.mlp");
  EXPECT_EQ(parts(Constants{.embedding_scale = 0.999}), "embedding");
  EXPECT_EQ(parts(Constants{.mlp = Curve::gelu}), "layers.0.mlp");
  EXPECT_EQ(parts(Constants{.gate = Curve::relu}), "layers.0.attention.gates");
  EXPECT_EQ(parts(Constants{.phi = Curve::gelu}), "layers.0.attention.cmp.k");
  EXPECT_EQ(parts(Constants{.gate_after_rope = true}), "layers.0.attention.gates");
}

}  // namespace
}  // namespace suites
