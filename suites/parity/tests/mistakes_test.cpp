// A pass with a mistake made on purpose is told by that mistake, and a fault of no known kind by none.
#include "suites/parity/mistakes.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "suites/parity/against_oracle.hpp"
#include "suites/parity/cases.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::parity_cases {
namespace {

using oracle::Constants;
using oracle::Curve;
using testing::HasSubstr;

// The small model of three layers in fp32, and a text. What stands for the product is the oracle's own code in fp32.
class Mistakes : public testing::Test {
 protected:
  Mistakes()
      : settings_(tests::default_settings(parity)),
        context_(settings_),
        subject_(std::make_shared<Seams>()),
        config_(three_layers(context_, subject_, "small")),
        sides_(both_sides(context_, subject_, config_, nsa::Precision::fp32, subject_.flags())),
        tokens_(prompt(context_, config_, {2, 84})),
        exact_(sides_.exact()),
        wanted_(oracle::loss(exact_, tokens_)) {
    for (std::int64_t i = 0; i < 3; ++i)
      blocks_.push_back(wanted_.stage("layers." + std::to_string(i) + ".attention.blocks"));
  }

  [[nodiscard]] oracle::Pass pass(const oracle::PlainModel& model) const {
    return oracle::loss(model, tokens_, {}, blocks_);
  }
  [[nodiscard]] PassBy again() const {
    return [this](const oracle::PlainModel& model, const oracle::Documents&) { return pass(model); };
  }

  std::string told_of_stage(const std::function<void(oracle::PlainModel&)>& change) {
    oracle::PlainModel product = sides_.naive();
    change(product);
    const oracle::Pass shown = pass(product), naive = pass(sides_.naive());
    std::map<std::string, double> largest;
    const std::string stage = first_parting(shown.stages, wanted_, naive, at::kFloat, largest).stage;
    EXPECT_NE(stage, "");
    return mistake_in({stage, shown.stage(stage), wanted_, naive, at::kFloat}, exact_, {}, again());
  }
  std::string told_of_constants(const Constants& constants) {
    return told_of_stage([&](oracle::PlainModel& m) { m.constants = constants; });
  }

  harness::Settings settings_;
  tests::RecordingContext context_;
  Subject subject_;
  nsa::Config config_;
  Sides sides_;
  at::Tensor tokens_;
  oracle::PlainModel exact_;
  std::vector<at::Tensor> blocks_;
  oracle::Pass wanted_;
};

TEST_F(Mistakes, AMistakeOfAStageIsToldByItself) {
  EXPECT_THAT(told_of_constants({.norm_eps = 1e-5}), HasSubstr("RMSNorm adds 1e-05"));
  EXPECT_THAT(told_of_constants({.norm_centres = true}), HasSubstr("takes the mean away"));
  EXPECT_THAT(told_of_constants({.rope_pairs = oracle::Pairs::halves}), HasSubstr("pairs (i, i + D/2)"));
  EXPECT_THAT(told_of_constants({.rope_first = 1}), HasSubstr("positions from 1"));
  EXPECT_THAT(told_of_constants({.rope_turn = -1}), HasSubstr("the other way round"));
  EXPECT_THAT(told_of_constants({.rope_power = 1}), HasSubstr("base^(-i/D)"));
  EXPECT_THAT(told_of_constants({.rope_span = 2}), HasSubstr("2i/(D - 2)"));
  EXPECT_THAT(told_of_constants({.rope_of_queries = false}), HasSubstr("queries are not turned"));
  EXPECT_THAT(told_of_constants({.mlp = Curve::gelu}), HasSubstr("MLP's activation is GELU"));
  EXPECT_THAT(told_of_constants({.gate = Curve::relu}), HasSubstr("gate's activation is ReLU"));
  EXPECT_THAT(told_of_constants({.mlp_input = oracle::Input::before_attention}), HasSubstr("reads the layer's input"));
  EXPECT_THAT(told_of_constants({.attention_residual_is_normed = true}),
              HasSubstr("past attention goes on from the normed stream"));
  EXPECT_THAT(told_of_constants({.residual_scale = 2}), HasSubstr("adds to the stream is doubled"));
  EXPECT_THAT(told_of_constants({.gate_after_rope = true}), HasSubstr("after RoPE"));
  EXPECT_THAT(told_of_constants({.gate_heads = oracle::Heads::one_in_g}), HasSubstr("j + G"));
  EXPECT_THAT(told_of_constants({.gate_order = {1, 0, 2}}), HasSubstr("mixed up"));
  EXPECT_THAT(told_of_constants({.gates_one_in_g = true}), HasSubstr("group i mod G"));
  EXPECT_THAT(told_of_constants({.queries_one_in_g = true, .outputs_one_in_g = true}),
              HasSubstr("keys and values of group i mod G"));
  EXPECT_THAT(told_of_constants({.queries_one_in_g = true}), HasSubstr("divided as [h, G]"));
  EXPECT_THAT(told_of_constants({.outputs_one_in_g = true}), HasSubstr("laid down as [h, G]"));
  EXPECT_THAT(told_of_constants({.gate_heads = oracle::Heads::sum}), HasSubstr("the sum of its heads' queries"));
  EXPECT_THAT(told_of_constants({.features_one_in_h = true}), HasSubstr("feature i to head i mod heads"));
  EXPECT_THAT(told_of_constants({.mlp_residual_is_normed = true}),
              HasSubstr("past the MLP goes on from the normed stream"));
  EXPECT_THAT(told_of_constants({.head_reads_stream = true}), HasSubstr("before the last norm"));
  EXPECT_THAT(told_of_constants({.cmp_early = 1}), HasSubstr("before it is complete"));
  EXPECT_THAT(told_of_constants({.sel_early = -1}), HasSubstr("own token"));
  EXPECT_THAT(told_of_constants({.smoothing = 0.1}), HasSubstr("smooths its labels by 0.1"));
  EXPECT_THAT(told_of_stage([](auto& m) { m.config.nsa.w += 1; }), HasSubstr("holds w + 1 tokens"));
  EXPECT_THAT(told_of_stage([](auto& m) { m.constants.attention_scale = 1 / std::sqrt(m.config.d_k); }),
              HasSubstr("divided by Dk"));
}

TEST_F(Mistakes, AFaultOfNoKnownKindIsToldByNone) {
  EXPECT_EQ(told_of_constants({.attention_scale = 0.99}), "");
  EXPECT_EQ(told_of_stage([](auto& m) {
              at::Tensor& weight = m.parameters.at("layers.0.attention.k_win.weight");
              weight = weight * 1.01;
            }),
            "");
}

// Of each path that is cut the gradients of some parameter tell, and of each parameter that parts the path is told, or
// one that is the only way to it.
TEST_F(Mistakes, APathThatBringsNoGradientIsTold) {
  std::map<std::string, at::Tensor> exact, naive;
  const auto gradients = [&](const oracle::PlainModel& model, std::map<std::string, at::Tensor>& into) {
    std::vector<at::Tensor> leaves;
    for (const auto& [name, value] : model.parameters) leaves.push_back(value);
    const auto found = torch::autograd::grad({pass(model).loss}, leaves, {}, {}, false, /*allow_unused=*/true);
    for (std::size_t i = 0; const auto& [name, value] : model.parameters) {
      into[name] = found[i].defined() ? found[i].to(at::kDouble) : at::zeros_like(value, at::kDouble);
      ++i;
    }
  };
  gradients(exact_, exact);
  gradients(sides_.naive(), naive);
  for (const std::string_view path : oracle::kPaths) {
    oracle::PlainModel product = sides_.naive();
    product.constants.cut = path;
    std::map<std::string, at::Tensor> shown;
    gradients(product, shown);
    std::string parameter;
    double most = 0;
    // Below the last layer of a path other things are wrong too; a residual leads to the layers before it alone.
    for (const std::string layer : {"layers.2.", "layers.1."})
      for (const auto& [name, value] : shown) {
        if (!name.starts_with(layer) || (layer == "layers.1." && parameter.starts_with("layers.2."))) continue;
        const double off = ((value - exact.at(name)).norm() / exact.at(name).norm()).item<double>();
        if (off > most + 1e-3) parameter = name, most = off;
      }
    ASSERT_GT(most, 1e-3) << path;
    const std::string told = mistake_in({parameter, shown.at(parameter), exact.at(parameter), naive.at(parameter),
                                         static_cast<double>(tokens_.numel()), at::kFloat},
                                        exact_, {}, again(), tokens_);
    EXPECT_THAT(told, HasSubstr("is lost")) << path << " by " << parameter;
    if (most < 0.999) {
      EXPECT_THAT(told, HasSubstr(std::string(path))) << parameter;
    }
  }
}

TEST_F(Mistakes, AGradientThatIsScaledIsToldWithItsFactor) {
  const std::string name = "layers.1.mlp.fc2.weight";
  const at::Tensor exact = torch::autograd::grad({pass(exact_).loss}, {exact_.parameters.at(name)})[0].to(at::kDouble);
  const auto told = [&](const at::Tensor& shown) {
    return mistake_in({name, shown, exact, exact + 1e-7 * exact, 168, at::kFloat}, exact_, {}, again(), tokens_);
  };
  EXPECT_THAT(told(2 * exact), HasSubstr("counted twice"));
  EXPECT_THAT(told(-exact), HasSubstr("wrong sign"));
  EXPECT_THAT(told(0.25 * exact), HasSubstr("arrives 0.25 times"));
  const at::Tensor without = exact.clone();
  without[3].zero_();
  EXPECT_THAT(told(without), HasSubstr("1 rows of the gradient"));
  EXPECT_EQ(told(exact + at::randn_like(exact)), "");
}

}  // namespace
}  // namespace suites::parity_cases
