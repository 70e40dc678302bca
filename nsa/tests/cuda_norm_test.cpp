// The residual's addition and RMSNorm on our own kernels: as a function of autograd against fp64, and in the model
// against the model that adds and norms by ATen. On a GPU, or over the kernels' emulation.
#include "nsa/cuda/norm.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "nsa/decode/decoder.hpp"
#include "nsa/tests/cuda_fixtures.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::device;
using fixtures::on_device;
using fixtures::relative_error;
using fixtures::Tensors;
using ::testing::HasSubstr;

constexpr double kEpsilon = 1e-6;

class CudaNorm : public fixtures::CudaKernels {};

// x, weight and, where there is one, delta.
Tensors norm_inputs(at::IntArrayRef sizes, at::ScalarType type, bool delta) {
  Tensors in = {on_device(sizes, 1, type), on_device({sizes.back()}, 2, type)};
  if (delta) in.push_back(on_device(sizes, 3, type));
  return in;
}
// sum and y of leaves, and the gradients of all of them; `weights`: what arrives at sum and y, undefined: nothing.
fixtures::Evaluated through_norm(const Tensors& inputs, const Tensors& weights) {
  Tensors leaves;
  for (const auto& t : inputs) leaves.push_back(t.detach().requires_grad_());
  const auto& x = leaves[0];
  const auto delta = leaves.size() > 2 ? std::optional(leaves[2]) : std::nullopt;
  fixtures::Evaluated result;
  if (x.scalar_type() == at::kDouble) {
    // The sum as it is stored; its rounding passes gradients on.
    const auto sum = delta ? x + *delta : x;
    const auto stored = sum + (sum.to(weights[0].scalar_type()).to(at::kDouble) - sum).detach();
    result.outputs = {stored, at::rms_norm(stored, {x.size(-1)}, leaves[1], kEpsilon)};
  } else {
    const auto [sum, y] = norm(x, delta, leaves[1], kEpsilon);
    result.outputs = {sum, y};
  }
  Tensors outputs, arriving;
  for (std::size_t i = 0; i < 2; ++i)
    if (weights[i].defined()) {
      outputs.push_back(result.outputs[i]);
      arriving.push_back(weights[i].to(x.scalar_type()));
    }
  result.gradients = torch::autograd::grad(outputs, leaves, arriving, std::nullopt, false, /*allow_unused=*/true);
  return result;
}
Tensors wide(const Tensors& all) {
  Tensors result;
  for (const auto& t : all) result.push_back(t.to(at::kDouble));
  return result;
}

// What the record says of the model's norms; the projections have rows of their own.
std::vector<PartTaken> norms_of(const LanguageModelImpl& model) {
  std::vector<PartTaken> rows;
  for (const PartTaken& row : model.runtime->parts->taken())
    if (row.part == "norm") rows.push_back(row);
  return rows;
}

TEST_F(CudaNorm, IsTheFormulaForwardAndBackward) {
  const std::vector<std::vector<std::int64_t>> shapes = {{1, 8},       {2, 5, 64},   {129, 72},
                                                         {3, 1, 4096}, {40, 2, 768}, {7, 1032}};
  for (const auto& shape : shapes)
    for (const auto type : {at::kBFloat16, at::kHalf})
      for (const bool delta : {true, false}) {
        SCOPED_TRACE(std::to_string(shape.back()) + " " + c10::toString(type) + (delta ? "" : " without delta"));
        const auto in = norm_inputs(shape, type, delta);
        const Tensors arriving = {on_device(shape, 4, type), on_device(shape, 5, type)};
        fixtures::expect_close("norm", through_norm(in, arriving), through_norm(wide(in), arriving));
      }
}

TEST_F(CudaNorm, WhatArrivesNowhereIsNotAsked) {
  const auto in = norm_inputs({9, 72}, at::kBFloat16, true);
  const auto dsum = on_device({9, 72}, 4, at::kBFloat16), dy = on_device({9, 72}, 5, at::kBFloat16);
  const auto by_sum = through_norm(in, {dsum, {}}).gradients;
  EXPECT_TRUE(at::equal(by_sum[0], dsum) && at::equal(by_sum[2], dsum));
  EXPECT_FALSE(by_sum[1].defined()) << "nothing came through the norm";
  const auto by_y = through_norm(in, {{}, dy}).gradients, both = through_norm(in, {dsum, dy}).gradients;
  EXPECT_TRUE(at::equal(by_y[0], by_y[2]));
  EXPECT_TRUE(at::equal(by_y[1], both[1])) << "the weight's does not depend on the residual's";
  // The residual's gradient is there: with it dropped, the comparison with fp64 says no.
  const auto wanted = through_norm(wide(in), {dsum, dy}).gradients;
  EXPECT_LE(relative_error(both[0], wanted[0]), fixtures::kGradientBound);
  EXPECT_GT(relative_error(by_y[0], wanted[0]), 100 * fixtures::kGradientBound);
}

TEST_F(CudaNorm, OnlyWhatIsWantedIsComputed) {
  const auto in = norm_inputs({9, 72}, at::kBFloat16, true);
  const auto dy = on_device({9, 72}, 5, at::kBFloat16);
  const auto wanted = through_norm(in, {{}, dy}).gradients;
  for (std::size_t only = 0; only < in.size(); ++only) {
    Tensors leaves;
    for (std::size_t i = 0; i < in.size(); ++i) leaves.push_back(in[i].detach().requires_grad_(i == only));
    const auto y = norm(leaves[0], leaves[2], leaves[1], kEpsilon).y;
    EXPECT_TRUE(at::equal(torch::autograd::grad({y}, {leaves[only]}, {dy})[0], wanted[only])) << only;
  }
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(norm(in[0], in[2], in[1], kEpsilon).y.requires_grad());
}

TEST_F(CudaNorm, TheSameBitsAgain) {
  const auto in = norm_inputs({1500, 64}, at::kBFloat16, true);
  const Tensors arriving = {on_device({1500, 64}, 4, at::kBFloat16), on_device({1500, 64}, 5, at::kBFloat16)};
  const auto first = through_norm(in, arriving), again = through_norm(in, arriving);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(first.outputs[i], again.outputs[i])) << i;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(first.gradients[i], again.gradients[i])) << i;
}

TEST_F(CudaNorm, HowATensorLiesChangesNoBit) {
  const auto in = norm_inputs({6, 5, 72}, at::kBFloat16, true);
  const Tensors arriving = {on_device({6, 5, 72}, 4, at::kBFloat16), on_device({6, 5, 72}, 5, at::kBFloat16)};
  const auto lying = [](const at::Tensor& t) {  // rows apart, and at an odd place
    return at::constant_pad_nd(t, {1, 2}).narrow(-1, 1, t.size(-1));
  };
  const auto wanted = through_norm(in, arriving);
  const auto got = through_norm({lying(in[0]), lying(in[1]), in[2].transpose(0, 1).contiguous().transpose(0, 1)},
                                {lying(arriving[0]), lying(arriving[1])});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(got.outputs[i], wanted.outputs[i])) << i;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got.gradients[i], wanted.gradients[i])) << i;
}

TEST_F(CudaNorm, SecondDerivativesAreRefused) {
  const auto in = norm_inputs({4, 64}, at::kBFloat16, true);
  const auto x = in[0].detach().requires_grad_();
  const auto y = norm(x, in[2], in[1], kEpsilon).y;
  EXPECT_THROW((void)torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true),
               c10::NotImplementedError);
}

TEST_F(CudaNorm, WhatIsNotServedIsRefusedInWords) {
  const auto refusal = [](at::IntArrayRef sizes, at::ScalarType type, std::int64_t weight, at::ScalarType of_weight) {
    return norm_refusal(on_device(sizes, 1, type), std::nullopt, on_device({weight}, 2, of_weight));
  };
  EXPECT_EQ(refusal({3, 72}, at::kHalf, 72, at::kHalf), "");
  EXPECT_EQ(refusal({3, 72}, at::kFloat, 72, at::kFloat), "x is Float; served: BFloat16 and Half");
  EXPECT_THAT(refusal({3, 72}, at::kBFloat16, 72, at::kFloat), HasSubstr("another type"));
  EXPECT_EQ(refusal({3, 12}, at::kBFloat16, 12, at::kBFloat16), "width 12; served: multiples of 8 up to 8192");
  EXPECT_EQ(refusal({3, 8200}, at::kBFloat16, 8200, at::kBFloat16), "width 8200; served: multiples of 8 up to 8192");
  EXPECT_THAT(refusal({3, 72}, at::kBFloat16, 64, at::kBFloat16), HasSubstr("one width"));
  const auto x = on_device({3, 72}, 1, at::kBFloat16), weight = on_device({72}, 2, at::kBFloat16);
  EXPECT_THAT(norm_refusal(x, x.narrow(0, 0, 2), weight), HasSubstr("shape"));
  EXPECT_THROW((void)norm(x.to(at::kFloat), std::nullopt, weight, kEpsilon), Unsupported);
}

// ---- in the model

ModelConfig small_model() {
  ModelConfig config = fixtures::tiny();
  config.d_k = config.d_v = 32;
  return config;
}
LanguageModel on_kernels(const Environment& environment, at::ScalarType type = at::kBFloat16) {
  auto model = fixtures::make_model(small_model(), environment);
  model->runtime->ops = [type](const Call&) {
    return backend_ops(type == at::kDouble ? Backend::reference : Backend::cuda);
  };
  model->to(device(), type);
  return model;
}

struct Seen {
  std::vector<std::string> stages;
  std::map<std::string, at::Tensor> values, gradients;  // by stage; the gradients of parameters by their names
};
Seen seen_step(const LanguageModel& model) {
  Seen seen;
  model.ptr()->runtime->observe = [&](std::string_view stage, const at::Tensor& value) {
    const std::string name(stage);
    seen.stages.push_back(name);
    seen.values[name] = value.detach();
    if (value.requires_grad())
      value.register_hook([&seen, name](const at::Tensor& g) { seen.gradients[name] = g.detach(); });
  };
  model.ptr()->loss(fixtures::bytes({2, 71}, 3).to(device())).backward();
  model.ptr()->runtime->observe = nullptr;
  for (const auto& p : model->named_parameters()) seen.gradients["parameter " + p.key()] = p.value().grad();
  return seen;
}

TEST_F(CudaNorm, AModelIsAsExactWithItAsWithoutAndShowsTheSameStages) {
  const auto fused = on_kernels({}), plain = on_kernels({{"NSA_FUSED_NORM", "0"}});
  auto exact = on_kernels({}, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    const auto rounded = plain->named_parameters();
    for (auto& p : exact->named_parameters()) p.value().copy_(rounded[p.key()]);
  }
  const Seen own = seen_step(fused), other = seen_step(plain), wanted = seen_step(exact);
  EXPECT_EQ(own.stages, other.stages);
  ASSERT_EQ(own.gradients.size(), other.gradients.size());
  // Both are off by what bf16 costs: the fused one by no more, but for the luck of a few roundings.
  const auto compare = [&](const auto& mine, const auto& theirs, const auto& judge, const std::string& name) {
    const double by_kernels = relative_error(mine, judge), by_aten = relative_error(theirs, judge);
    EXPECT_LE(by_kernels, 1.5 * by_aten + 2e-3) << name << ": by ATen " << by_aten;
  };
  std::size_t compared = 0;
  for (const auto& [name, value] : wanted.values)
    if (name.find(".blocks") == std::string::npos && own.values.contains(name)) {
      compare(own.values.at(name), other.values.at(name), value, name);
      ++compared;
    }
  for (const auto& [name, gradient] : other.gradients) {
    ASSERT_TRUE(own.gradients.contains(name)) << name;
    if (!wanted.gradients.contains(name)) continue;
    compare(own.gradients.at(name), gradient, wanted.gradients.at(name), "gradient of " + name);
    ++compared;
  }
  EXPECT_GT(compared, 60U);

  const auto ran = norms_of(*fused), refused = norms_of(*plain);
  ASSERT_EQ(ran.size(), 1U);
  EXPECT_EQ(ran[0].way, "cuda");
  EXPECT_EQ(ran[0].calls, 2 * 2 + 1);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].way + ": " + refused[0].why, "aten: cuda refused: NSA_FUSED_NORM=0");
}

TEST_F(CudaNorm, OtherFlagsKeepItOffToo) {
  for (const auto& [flag, value] : {std::pair{"NSA_USE_CUDA", "0"}, {"NSA_FORCE_PARITY", "1"}}) {
    const auto model = on_kernels({{flag, value}});
    (void)seen_step(model);
    const auto taken = norms_of(*model);
    ASSERT_EQ(taken.size(), 1U);
    EXPECT_EQ(taken[0].why, std::string("cuda refused: ") + flag + "=" + value);
  }
}

TEST_F(CudaNorm, AModelRepeatsItsBitsAlsoWhereItRecomputes) {
  const auto first = on_kernels({}), again = on_kernels({}), recomputing = on_kernels({});
  recomputing->runtime->recompute = true;
  const Seen wanted = seen_step(first);
  for (const auto& model : {again, recomputing}) {
    const Seen got = seen_step(model);
    for (const auto& p : model->named_parameters()) {
      const auto name = "parameter " + p.key();
      EXPECT_TRUE(at::equal(got.gradients.at(name), wanted.gradients.at(name))) << name;
    }
  }
}

TEST_F(CudaNorm, DecodingPassesThroughIt) {
  auto model = on_kernels({});
  model->runtime->ops = [](const Call&) { return backend_ops(Backend::sdpa); };  // steps have no kernels
  const auto tokens = fixtures::bytes({1, 20}, 3).to(device());
  const at::NoGradGuard no_grad;
  decode::Decoder decoder(model, {.capacity = 32, .max_tokens = 0, .ops = decode::step_ops()});
  EXPECT_LE(relative_error(decoder.prefill(tokens), model->forward(tokens)), 0.0);
  decoder.reset();
  EXPECT_LE(relative_error(decoder.sequential(tokens), model->forward(tokens)), 3e-2);
}

}  // namespace
}  // namespace nsa::cuda
