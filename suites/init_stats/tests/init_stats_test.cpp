#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/init_stats/law.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace {

using namespace suites;
using tests::Codes;
std::string code(std::string_view c) { return std::string(c); }

// Grave codes of the whole suite with a change of the model planted.
Codes found_with(const tests::ModelChange& change, const std::string& filter = "") {
  const harness::Settings settings = tests::default_settings();
  return tests::grave_codes(tests::run_suite(init_stats(Subject(tests::on_model(change))), settings, filter));
}

at::Tensor parameter(nsa::LanguageModelImpl& model, const std::string& name) { return model.named_parameters()[name]; }

TEST(InitStats, CleanModelIsSilent) { EXPECT_EQ(found_with(nullptr), Codes{}); }

TEST(InitStats, ALoadThatTakesTensorsOverIsFound) {
  const Subject subject(std::make_shared<Seams>());
  const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  Instance instance = subject.model({.config = subject.config(context).model, .flags = {}});
  for (const bool converts : {false, true}) {
    context.findings.clear();
    init_checks::loaded_parameters(
        context, instance.model, 1, [=](const nsa::LanguageModel& model, const std::map<std::string, at::Tensor>& all) {
          for (auto& item : model->named_parameters())
            item.value().set_data(converts ? all.at(item.key()).to(item.value().options()) : all.at(item.key()));
        });
    ASSERT_EQ(context.grave_codes(), Codes{code(codes::kParameterSet)});
    EXPECT_NE(context.findings[0].message.find(converts ? "shares its memory" : "is Double afterwards"),
              std::string::npos)
        << context.findings[0].message;
  }
}

TEST(InitStats, CleanForManySeedsAndWithLearnedCompression) {
  const Subject subject(std::make_shared<Seams>());
  const harness::Settings settings = tests::default_settings();
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    for (const nsa::Precision precision : {nsa::Precision::fp32, nsa::Precision::bf16}) {
      tests::RecordingContext context(settings);
      ModelOptions options{.config = subject.config(context).model,
                           .flags = {},
                           .precision = precision,
                           .device = at::kCPU,
                           .seed = seed};
      options.config.phi = nsa::Phi::mlp;
      Instance instance = subject.model(options);
      init_checks::parameter_set(context, options, *instance.model);
      init_checks::laws(context, options, *instance.model);
      init_checks::streams(context, options, *instance.model);
      init_checks::gates(context, options, *instance.model);
      EXPECT_EQ(context.grave_codes(), Codes{})
          << seed << ": " << (context.findings.empty() ? "" : context.findings[0].message);
      EXPECT_GT(context.metrics["gate_std_smallest"]["value"].get<double>(), 1.5e-3) << seed;
    }
  }
}

TEST(InitStats, CountIsTheAnalyticOne) {
  nsa::ModelConfig model;
  for (const nsa::Phi phi : {nsa::Phi::avg, nsa::Phi::mlp}) {
    model.phi = phi;
    std::int64_t count = 0;
    for (const auto& e : init_laws::expected_parameters(model)) count += c10::multiply_integers(e.shape);
    EXPECT_EQ(count, nsa::parameter_count(model));
  }
}

// Every kind of parameter of the tiny model but the two that are too small to tell (README.md).
TEST(InitStats, ScalingOneParameterByATenthIsCaught) {
  for (const std::string name :
       {"embedding.weight", "head.weight", "norm.weight", "layers.1.norm_mlp.weight", "layers.0.attention.q.weight",
        "layers.1.attention.k_cmp.weight", "layers.0.attention.v_win.weight", "layers.1.attention.o.weight",
        "layers.0.mlp.fc1.weight", "layers.1.mlp.fc2.weight"}) {
    for (const double factor : {1.1, 0.9}) {
      const Codes found = found_with([&](auto& model) { parameter(model, name).mul_(factor); }, "laws");
      EXPECT_EQ(found, Codes{code(codes::kParameterLaw)}) << name << " x " << factor;
    }
  }
}

TEST(InitStats, ZeroGateIsNamedWithItsLayers) {
  const auto seams = std::make_shared<Seams>();
  seams->model.push_back([](nsa::LanguageModelImpl& model) {
    const at::NoGradGuard no_grad;
    for (auto& p : model.named_parameters()) {
      if (p.key().find("gate.fc2") != std::string::npos) p.value().zero_();
    }
  });
  const harness::Settings settings = tests::default_settings();
  Codes found;
  std::string message;
  for (const auto& ran : tests::run_suite(init_stats(Subject(seams)), settings)) {
    found.merge(ran.context.grave_codes());
    if (ran.context.facts.contains("parameters")) {  // what is named for what it is stands in the table all the same
      EXPECT_EQ(ran.context.facts["parameters"]["layers.0.attention.gate.fc2.weight"]["std"], 0.0);
    }
    for (const auto& f : ran.context.findings) {
      if (f.code == codes::kGateZeroInit) message = f.message;
    }
  }
  EXPECT_EQ(found, (Codes{code(codes::kGateZeroInit), code(codes::kGateUniform)}));
  EXPECT_NE(message.find("in 3 of 3 layers (layers.0.attention.gate.fc2.weight, layers.1."), std::string::npos)
      << message;
}

TEST(InitStats, ASharedStreamIsCaught) {
  EXPECT_EQ(
      found_with([](auto& model) {
        parameter(model, "layers.1.attention.k_sel.weight").copy_(parameter(model, "layers.0.attention.k_sel.weight"));
      }),
      Codes{code(codes::kStreamReused)});
  EXPECT_EQ(
      found_with([](auto& model) { parameter(model, "head.weight")[7].copy_(parameter(model, "head.weight")[200]); },
                 "streams"),
      Codes{code(codes::kStreamReused)});
}

TEST(InitStats, OneRowOfZerosIsCaught) {
  for (const std::string name : {"embedding.weight", "layers.1.mlp.fc2.weight"})
    EXPECT_EQ(found_with([&](auto& model) { parameter(model, name)[5].zero_(); }, "laws"),
              Codes{code(codes::kParameterLaw)})
        << name;
}

TEST(InitStats, NonzeroBiasAndNormOffOneAreCaught) {
  EXPECT_EQ(found_with([](auto& model) { parameter(model, "layers.0.attention.gate.fc2.bias")[1] = 1e-6; }, "laws"),
            Codes{code(codes::kParameterLaw)});
  EXPECT_EQ(found_with([](auto& model) { parameter(model, "norm.weight").fill_(0); }, "laws"),
            Codes{code(codes::kParameterLaw)});
}

TEST(InitStats, AnotherDtypeAndAMissingParameterAreCaught) {
  EXPECT_EQ(found_with([](auto& model) { model.head->to(at::kDouble); }, "parameter_set"),
            Codes{code(codes::kParameterPlacement)});
  EXPECT_EQ(found_with([](auto& model) { model.register_parameter("extra", at::ones({2})); }, "parameter_set"),
            Codes{code(codes::kParameterSet)});
}

TEST(InitStats, ConstantAndUnseededValuesAreCaught) {
  EXPECT_EQ(found_with([](auto& model) { model.head->weight.fill_(0.01); }, "seeds"), Codes{code(codes::kSeedBits)});
  const auto calls = std::make_shared<int>(0);
  EXPECT_EQ(found_with([calls](auto& model) { model.head->weight.mul_(1 + 1e-3 * ++*calls); }, "seeds"),
            Codes{code(codes::kSeedBits)});
}

TEST(InitStats, NanGatesAreNotCalledUniform) {
  EXPECT_EQ(found_with([](auto& model) { model.embedding->weight.fill_(std::nan("")); }, "gates"),
            Codes{code(codes::kNonFiniteForward)});
}

}  // namespace
