// The oracle has to be right by itself: what is checked here needs no model of the product.
#include "suites/oracle/plain_model.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "suites/oracle/rms.hpp"

namespace suites::oracle {
namespace {

PlainModel model_of(nsa::Phi phi = nsa::Phi::mlp) {
  PlainModel m;
  m.config.dim = 24;
  m.config.n_layers = 3;
  m.config.n_heads = 4;
  m.config.n_kv_groups = 2;
  m.config.d_k = 8;
  m.config.d_v = 6;
  m.config.vocab = 32;
  m.config.nsa = {.l = 4, .d = 2, .l_sel = 8, .n_sel = 3, .w = 10};
  m.config.phi = phi;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  for (const auto& [name, shape] : parameter_shapes(m.config))
    m.parameters[name] = at::randn(shape, generator, at::TensorOptions(at::kDouble)) * 0.4;
  return m;
}

at::Tensor text(std::int64_t B, std::int64_t S) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(9);
  return at::randint(32, {B, S}, generator, at::TensorOptions(at::kLong));
}

std::vector<at::Tensor> choices(const PlainModel& m, const Pass& pass) {
  std::vector<at::Tensor> all;
  for (std::int64_t i = 0; i < m.config.n_layers; ++i)
    all.push_back(pass.stage("layers." + std::to_string(i) + ".attention.blocks"));
  return all;
}

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

TEST(PlainModel, DecodesTokenByTokenWhatItComputesAtOnce) {
  for (const auto phi : {nsa::Phi::avg, nsa::Phi::mlp}) {
    const PlainModel m = model_of(phi);
    const at::Tensor tokens = text(2, 37);
    const Pass whole = forward(m, tokens);
    PlainDecoder decoder(m);
    for (std::int64_t t = 0; t < tokens.size(1); ++t) {
      const Pass step = decoder.step(tokens.narrow(1, t, 1));
      for (const auto& [name, value] : step.stages)
        ASSERT_LT(largest(value - whole.stage(name).narrow(1, t, 1)), 1e-12) << name << " of token " << t;
    }
  }
}

TEST(PlainModel, ADocumentInABatchIsTheDocumentAlone) {
  const PlainModel m = model_of();
  const at::Tensor tokens = text(1, 31);
  const Pass together = forward(m, tokens, {5, 0, 1, 25});
  EXPECT_LT(largest(together.logits.narrow(1, 6, 25) - forward(m, tokens.narrow(1, 6, 25)).logits), 1e-12);
  const Pass predicted = loss(m, tokens, {5, 0, 1, 25});
  EXPECT_EQ(predicted.surprise.numel(), 4 + 0 + 24);
}

TEST(PlainModel, ItsGradientIsTheDerivativeByEveryParameterWithTheChoiceHeld) {
  const PlainModel m = in_precision(model_of(), at::kDouble);
  const at::Tensor tokens = text(1, 30);
  const Pass pass = loss(m, tokens);
  const std::vector<at::Tensor> held = choices(m, pass);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  for (const auto& [name, value] : m.parameters) {
    const at::Tensor slope = torch::autograd::grad({pass.loss}, {value}, {}, /*retain_graph=*/true)[0];
    const at::Tensor direction = at::randn(value.sizes(), generator, at::TensorOptions(at::kDouble));
    const auto along = [&](double step) {
      PlainModel moved = m;
      moved.parameters[name] = value.detach() + step * direction;
      return loss(moved, tokens, {}, held).loss.item<double>();
    };
    const double numeric = (along(1e-5) - along(-1e-5)) / 2e-5, analytic = (slope * direction).sum().item<double>();
    EXPECT_NEAR(numeric, analytic, 1e-6 * std::max(1e-2, std::abs(analytic))) << name;
  }
}

TEST(PlainModel, ATokenSeesNoLaterOneAndThePaperWeighsOverlaps) {
  const PlainModel m = model_of();
  at::Tensor tokens = text(1, 33);
  const Pass before = forward(m, tokens);
  tokens[0][20] = (tokens[0][20] + 1) % 32;
  EXPECT_EQ(largest((forward(m, tokens).logits - before.logits).narrow(1, 0, 20)), 0);
  // One head, all scores equal: p is 1/N_c, and block j's importance counts its overlaps, 1 2 2 2 1.
  nsa::ModelConfig paper;
  paper.n_heads = paper.n_kv_groups = 1;
  const at::Tensor scores =
      block_scores(at::zeros({1, 256, 1, 4}, at::kDouble), at::zeros({1, 15, 1, 4}, at::kDouble), paper);
  const at::Tensor last = scores[0][255][0] * 15;
  EXPECT_LT(largest(last - at::tensor({7.0, 8.0, 8.0, 7.0}, at::kDouble)), 1e-12);
}

TEST(PlainModel, EveryConstantOfTheDescriptionMatters) {
  const PlainModel m = model_of();
  const at::Tensor tokens = text(1, 33);
  const at::Tensor logits = forward(m, tokens).logits;
  std::vector<Constants> others(9);
  others[0].norm_eps = 1e-5;
  others[1].rope_pairs = Pairs::halves;
  others[2].rope_turn = -1;
  others[3].attention_scale = 0.98;
  others[4].residual_scale = 0.98;
  others[5].embedding_scale = 0.98;
  others[6].mlp = Curve::gelu;
  others[7].gate = Curve::gelu;
  others[8].gate_after_rope = true;
  for (std::size_t i = 0; i < others.size(); ++i) {
    PlainModel other = m;
    other.constants = others[i];
    EXPECT_GT(largest(forward(other, tokens).logits - logits), 1e-7) << i;
  }
}

TEST(Rms, AFivefoldErrorIsOverTheBoundAndAnOrdinaryOneIsNot) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const auto normal = [&] { return at::randn({64, 32}, generator, at::TensorOptions(at::kDouble)); };
  const at::Tensor wanted = normal(), naive = wanted + 1e-7 * normal(), off = normal();
  const RmsLaw law = rms_law(at::kFloat);
  EXPECT_TRUE(judge_rms({wanted + 1.5e-7 * off, wanted, naive}, law, 1).good());
  EXPECT_FALSE(judge_rms({wanted + 6e-7 * off, wanted, naive}, law, 1).good());
}

// The gradient of a weight after two tokens: a row's errors are those of two products, and may all be large. Those of
// the queries through the gate alone (a text of one token) are the same two in all rows.
TEST(Rms, ARowOfFewIndependentRoundingsMayScatter) {
  const at::Tensor wanted = at::ones({16, 64}, at::kDouble), naive = wanted + 1e-7;
  at::Tensor value = naive.clone();
  value[5] += 2e-6;
  RmsLaw law = rms_law(at::kFloat);
  EXPECT_FALSE(judge_rms({value, wanted, naive}, law, 1).good());
  law.independent = 2;
  EXPECT_TRUE(judge_rms({value, wanted, naive}, law, 1).good());
  value[5] += 2e-6;
  EXPECT_FALSE(judge_rms({value, wanted, naive}, law, 1).good());

  value = wanted + 6e-7;
  EXPECT_TRUE(judge_rms({value, wanted, naive}, law, 1).good());
  EXPECT_FALSE(judge_rms({wanted + 3e-6, wanted, naive}, law, 1).good());
  law.independent = 200;
  EXPECT_FALSE(judge_rms({value, wanted, naive}, law, 1).good());
}

TEST(Rms, NamesTheFirstBadRowAndLetsNoNanPass) {
  const at::Tensor wanted = at::ones({16, 8}, at::kDouble), naive = wanted + 1e-7;
  at::Tensor value = naive.clone();
  value[5] += 1e-5;
  value[9] += 1e-3;
  RmsVerdict verdict = judge_rms({value, wanted, naive}, rms_law(at::kFloat), 1);
  EXPECT_FALSE(verdict.good());
  EXPECT_EQ(verdict.row, 5);
  value = naive.clone();
  value[7][3] = NAN;
  verdict = judge_rms({value, wanted, naive}, rms_law(at::kFloat), 1);
  EXPECT_FALSE(verdict.good());
  EXPECT_EQ(verdict.row, 7);
  EXPECT_FALSE(judge_rms({at::Tensor(), wanted, naive}, rms_law(at::kFloat), 1).good());
  EXPECT_FALSE(judge_rms({wanted.t(), wanted, naive}, rms_law(at::kFloat), 1).good());
}

}  // namespace
}  // namespace suites::oracle
