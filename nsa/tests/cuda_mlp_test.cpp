// The MLP as one node of autograd, and its residual added by the next norm: everything must be what ATen's functions
// one by one give, to the bit; with the SiLU in our own products, to the rounding of these. On a GPU, or over the
// kernels' emulation.
#include <gmock/gmock.h>

#include "nsa/cuda/mlp.hpp"
#include "nsa/decode/decoder.hpp"
#include "nsa/kernels/plan/device.hpp"
#include "nsa/model/mlp.hpp"
#include "nsa/tests/cuda_fixtures.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::device;
using fixtures::on_device;
using fixtures::Tensors;
using ::testing::HasSubstr;

class CudaMlp : public fixtures::CudaKernels {};

Mlp small_mlp(at::ScalarType type) {
  torch::manual_seed(2);
  Mlp mlp(24);
  mlp->to(device(), type);
  return mlp;
}

// y, and the gradients of x, fc1, fc2; which of them are wanted, as bits.
Tensors through_mlp(Mlp mlp, const at::Tensor& x, bool joined, unsigned wanted = 7) {
  const auto leaf = x.detach().requires_grad_((wanted & 1U) != 0);
  mlp->fc1->weight.requires_grad_((wanted & 2U) != 0);
  mlp->fc2->weight.requires_grad_((wanted & 4U) != 0);
  mlp->zero_grad();
  const auto y = joined ? mlp->joined(leaf) : mlp(leaf);
  y.backward(on_device(y.sizes(), 7, y.scalar_type()));
  return {y.detach(), leaf.grad(), mlp->fc1->weight.grad(), mlp->fc2->weight.grad()};
}

void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << i;
    if (a[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << i;
    }
  }
}

TEST_F(CudaMlp, IsTheFunctionsOneByOne) {
  for (const auto type : {at::kBFloat16, at::kHalf})
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1, 1, 24}, {2, 37, 24}, {3, 24}}) {
      const auto x = on_device(shape, 1, type);
      expect_same(through_mlp(small_mlp(type), x, true), through_mlp(small_mlp(type), x, false));
    }
}

TEST_F(CudaMlp, OnlyWhatIsWantedIsComputed) {
  const auto x = on_device({2, 37, 24}, 1, at::kBFloat16);
  for (unsigned wanted = 1; wanted < 8; ++wanted) {
    SCOPED_TRACE(wanted);
    expect_same(through_mlp(small_mlp(at::kBFloat16), x, true, wanted),
                through_mlp(small_mlp(at::kBFloat16), x, false, wanted));
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(small_mlp(at::kBFloat16)->joined(x).requires_grad());
}

TEST_F(CudaMlp, ANaNStaysInItsRow) {
  auto x = on_device({5, 24}, 1, at::kBFloat16);
  const auto clean = small_mlp(at::kBFloat16)->joined(x);
  x[3][2] = NAN;
  const auto y = small_mlp(at::kBFloat16)->joined(x);
  EXPECT_TRUE(y[3].isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(y.narrow(0, 0, 3), clean.narrow(0, 0, 3)));
}

TEST_F(CudaMlp, SecondDerivativesAreRefused) {
  const auto x = on_device({4, 24}, 1, at::kBFloat16).requires_grad_();
  const auto y = small_mlp(at::kBFloat16)->joined(x);
  EXPECT_THROW((void)torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true),
               c10::NotImplementedError);
}

TEST_F(CudaMlp, WhatIsNotServedIsRefusedInWords) {
  const auto x = on_device({4, 24}, 1, at::kBFloat16);
  const auto mlp = small_mlp(at::kBFloat16);
  EXPECT_EQ(mlp->refusal(x, resolve({})), "");
  EXPECT_THAT(mlp->refusal(x.to(at::kFloat), resolve({})), HasSubstr("x is Float"));
  EXPECT_THAT(mlp->refusal(x.to(at::kHalf), resolve({})), HasSubstr("another type"));
  for (const auto& [name, value] :
       Environment{{"NSA_FUSED_MLP", "0"}, {"NSA_USE_CUDA", "0"}, {"NSA_FORCE_PARITY", "1"}})
    EXPECT_EQ(mlp->refusal(x, resolve({{name, value}})), name + "=" + value);
}

// ---- with the SiLU in the products before it

// Enough for a GPU's tiles; the emulation has two SMs.
std::int64_t rows_served(std::int64_t wide) {
  const std::int64_t sms = kernels::current_device().sm_count, across = (wide + 255) / 256;
  return (sms / 2 + across - 1) / across * 192 + 5;
}
Mlp wide_mlp(at::ScalarType type) {
  torch::manual_seed(2);
  Mlp mlp(64);
  mlp->to(device(), type);
  return mlp;
}
bool no_hopper(Mlp mlp, const at::Tensor& x) {
  return mlp->silu_refusal(x, resolve({})).find("wgmma") != std::string::npos;
}
double relative(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor g = got.cpu().to(at::kDouble), w = wanted.cpu().to(at::kDouble);
  return ((g - w).norm() / w.norm()).item<double>();
}

// y and all gradients by `forward`.
template <typename Forward>
Tensors all_gradients(Mlp mlp, const at::Tensor& x, Forward&& forward) {
  const auto leaf = x.detach().requires_grad_();
  mlp->zero_grad();
  const at::Tensor y = forward(mlp, leaf);
  y.backward(on_device(y.sizes(), 7, at::kBFloat16).to(y.options()));
  return {y.detach(), leaf.grad(), mlp->fc1->weight.grad().clone(), mlp->fc2->weight.grad().clone()};
}

// One step of 64 columns summed over and one tile a CTA; on a GPU also more of both than fit, and edges.
TEST_F(CudaMlp, WithOwnSiluIsAsExactAsAten) {
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {{rows_served(256), 64}};
  if (device().is_cuda()) shapes.push_back({192 * kernels::current_device().sm_count + 5, 448});
  for (const auto& [rows, width] : shapes)
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      const auto x = on_device({rows, width}, 1, type);
      const auto made = [&, width = width](at::ScalarType of) {
        torch::manual_seed(2);
        Mlp mlp(width);
        mlp->to(device(), type);
        mlp->to(of);
        return mlp;
      };
      if (no_hopper(made(type), x)) GTEST_SKIP() << "the GPU is no Hopper";
      ASSERT_EQ(made(type)->silu_refusal(x, resolve({})), "");
      const auto by_own = [](Mlp& m, const at::Tensor& in) { return m->joined(in, true); };
      const auto own = all_gradients(made(type), x, by_own);
      const auto aten = all_gradients(made(type), x, [](Mlp& m, const at::Tensor& in) { return m->joined(in, false); });
      const auto wanted =
          all_gradients(made(at::kDouble), x.to(at::kDouble), [](Mlp& m, const at::Tensor& in) { return m(in); });
      for (std::size_t i = 0; i < own.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_LE(relative(own[i], wanted[i]), 1.1 * relative(aten[i], wanted[i]) + 1e-6);
        EXPECT_GT(relative(own[i], wanted[i]), 0);
      }
      expect_same(all_gradients(made(type), x, by_own), own);
    }
}

// No product of cuBLAS runs here: compute-sanitizer's racecheck breaks off in those.
TEST_F(CudaMlp, OwnSiluGivesTheSameBitsAgain) {
  const auto x = on_device({rows_served(320), 128}, 1, at::kBFloat16), fc1 = on_device({320, 128}, 2, at::kBFloat16),
             fc2 = on_device({128, 320}, 3, at::kBFloat16);
  if (silu_product_refusal(x, fc1, fc2).find("wgmma") != std::string::npos) GTEST_SKIP() << "the GPU is no Hopper";
  const auto once = [&] {
    const auto [hidden, active] = silu_product(x, fc1);
    return Tensors{hidden, active, silu_product_backward(x, fc2, hidden)};
  };
  const Tensors all = once();
  for (int repeat = 0; repeat < (device().is_cuda() ? 20 : 1); ++repeat) expect_same(once(), all);
  for (const auto& t : all) EXPECT_TRUE(t.isfinite().all().item<bool>());
}

TEST_F(CudaMlp, OwnSiluIsRefusedInWords) {
  const auto x = on_device({rows_served(256), 64}, 1, at::kBFloat16);
  const auto mlp = wide_mlp(at::kBFloat16);
  if (no_hopper(mlp, x)) GTEST_SKIP() << "the GPU is no Hopper";
  EXPECT_EQ(mlp->silu_refusal(x, resolve({})), "");
  EXPECT_THAT(mlp->silu_refusal(x.to(at::kFloat), resolve({})), HasSubstr("x is Float"));
  EXPECT_THAT(mlp->silu_refusal(x.to(at::kHalf), resolve({})), HasSubstr("another type"));
  EXPECT_THAT(small_mlp(at::kBFloat16)->silu_refusal(x.narrow(1, 0, 24), resolve({})), HasSubstr("widths 24 and 96"));
  if (device().is_cuda()) {
    EXPECT_THAT(mlp->silu_refusal(x.narrow(0, 0, 100), resolve({})), HasSubstr("fewer than"));
  }
  EXPECT_THAT(mlp->silu_refusal(x.narrow(1, 0, 32), resolve({})), HasSubstr("not of one width"));
  EXPECT_THAT(silu_product_refusal(x.narrow(1, 0, 0), x.new_empty({8, 0}), x.new_empty({0, 8})),
              HasSubstr("not of one width"));
  for (const auto& [name, value] :
       Environment{{"NSA_FUSED_SILU", "0"}, {"NSA_USE_CUDA", "0"}, {"NSA_FORCE_PARITY", "1"}})
    EXPECT_EQ(mlp->silu_refusal(x, resolve({{name, value}})), name + "=" + value);
}

// ---- in a model, whose attention is ATen's, with the norms by our own kernels and by ATen

LanguageModel small_model(Environment environment, bool joined) {
  environment["NSA_FUSED_PROJECT"] = "0";
  if (!joined) environment["NSA_FUSED_MLP"] = "0";
  auto model = fixtures::make_model(fixtures::tiny(), environment);
  model->runtime->ops = [](const Call&) { return backend_ops(Backend::sdpa); };
  model->to(device(), at::kBFloat16);
  return model;
}

// The loss, then every parameter's gradient; with `observed` every stage and its gradient behind them.
Tensors step(const LanguageModel& model, bool observed = false) {
  Tensors all;
  std::map<std::string, at::Tensor> gradients;
  if (observed)
    model.ptr()->runtime->observe = [&](std::string_view stage, const at::Tensor& value) {
      all.push_back(value.detach());
      if (value.requires_grad())
        value.register_hook([&, key = std::string(stage)](const at::Tensor& g) { gradients[key] = g.clone(); });
    };
  const auto loss = model.ptr()->loss(fixtures::bytes({2, 35}, 3).to(device()));
  loss.backward();
  model.ptr()->runtime->observe = nullptr;
  all.push_back(loss.detach());
  for (const auto& p : model->parameters()) all.push_back(p.grad());
  for (const auto& [stage, gradient] : gradients) all.push_back(gradient);
  return all;
}

std::string told(const LanguageModel& model) {
  std::string all;
  for (const auto& taken : model->runtime->parts->taken())
    if (taken.part == "mlp" || taken.part == "silu")
      all += taken.part + " " + taken.way + ": " + taken.why + " " + std::to_string(taken.calls) + "; ";
  return all;
}

TEST_F(CudaMlp, AModelGivesTheSameBits) {
  for (const auto& environment : {Environment{}, {{"NSA_FUSED_NORM", "0"}}}) {
    const auto own = small_model(environment, true), plain = small_model(environment, false);
    expect_same(step(own), step(plain));
    EXPECT_THAT(told(own), HasSubstr("mlp joined: served 2; silu aten: cuda refused: "));
    EXPECT_EQ(told(plain), "mlp aten: joined refused: NSA_FUSED_MLP=0 2; ");
  }
}

TEST_F(CudaMlp, AModelTakesItsOwnSiluUnlessItIsToldNotTo) {
  if (device().is_cuda()) GTEST_SKIP() << "a GPU wants more rows than this model has tokens";
  auto config = fixtures::tiny();
  config.dim = 64;
  const auto loss = [&](const Environment& environment, const std::string& wanted) {
    auto model = fixtures::make_model(config, environment);
    model->runtime->ops = [](const Call&) { return backend_ops(Backend::sdpa); };
    model->to(device(), at::kBFloat16);
    const auto result = model.ptr()->loss(fixtures::bytes({2, 35}, 3).to(device())).item<double>();
    EXPECT_THAT(told(model), HasSubstr(wanted));
    return result;
  };
  const double own = loss({{"NSA_FUSED_PROJECT", "0"}}, "mlp joined: served 2; silu cuda: served 2; ");
  const double aten =
      loss({{"NSA_FUSED_PROJECT", "0"}, {"NSA_FUSED_SILU", "0"}}, "silu aten: cuda refused: NSA_FUSED_SILU=0 2; ");
  EXPECT_NEAR(own, aten, 1e-2);
  EXPECT_TRUE(std::isfinite(own));
}

TEST_F(CudaMlp, AnObserverSeesTheSameStagesAndGradients) {
  const Environment environment{{"NSA_FUSED_NORM", "0"}};
  expect_same(step(small_model(environment, true), true), step(small_model(environment, false), true));
}

TEST_F(CudaMlp, RecomputationGivesTheSameBits) {
  const auto plain = small_model({}, true), recomputing = small_model({}, true);
  recomputing->runtime->recompute = true;
  expect_same(step(plain), step(recomputing));
}

TEST_F(CudaMlp, DecodingPassesThroughIt) {
  const auto tokens = fixtures::bytes({1, 20}, 3).to(device());
  const at::NoGradGuard no_grad;
  Tensors logits;
  for (const bool joined : {true, false}) {
    decode::Decoder decoder(small_model({}, joined), {.capacity = 32, .max_tokens = 0, .ops = decode::step_ops()});
    logits.push_back(decoder.prefill(tokens));
    logits.push_back(decoder.step(tokens.narrow(1, 0, 1)));
  }
  expect_same({logits[0], logits[1]}, {logits[2], logits[3]});
}

}  // namespace
}  // namespace nsa::cuda
