// A layer's projections, RoPE and gate by our own kernels against ATen's functions one by one: the layer by itself in
// fp64, and a model's loss and gradients.
#include <ATen/ATen.h>

#include "nsa/cuda/project.hpp"
#include "nsa/model/rope.hpp"
#include "nsa/tests/cuda_fixtures.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::bytes;
using fixtures::cu;
using fixtures::CudaKernels;
using fixtures::device;
using fixtures::distance;
using fixtures::on_device;
using fixtures::relative_error;
using fixtures::Tensors;

struct LayerShape {
  std::int64_t B = 1, S = 3, h = 3, G = 2, Dk = 64, Dv = 64, dim = 48;
  at::ScalarType type = at::kBFloat16;
  GateActivation activation = GateActivation::softmax;
  CuSeqlens cu_seqlens = std::nullopt;
  [[nodiscard]] ModelConfig config() const {
    ModelConfig config = fixtures::tiny();
    config.dim = dim;
    config.n_layers = 1;
    config.n_heads = h * G;
    config.n_kv_groups = G;
    config.d_k = Dk;
    config.d_v = Dv;
    config.gate = activation;
    config.gate_tau = 0.5;
    return config;
  }
};

struct Layer {
  Layer(const LayerShape& s, const Environment& environment)
      : runtime(std::make_shared<Runtime>(Runtime{.flags = resolve(environment), .ops = {}, .observe = {}})) {
    torch::manual_seed(1);
    attention = NsaAttention(s.config(), 0, runtime);
    attention->to(device(), s.type);
  }
  Projected project(const LayerShape& s, const at::Tensor& x) {
    return attention->project(x, rope_rotations(s.S, s.Dk, 1e4, 1, s.cu_seqlens, x.options()));
  }
  // Of the only pass.
  [[nodiscard]] PartTaken way() const { return runtime->parts->taken().at(0); }
  std::shared_ptr<Runtime> runtime;
  NsaAttention attention{nullptr};
};

Tensors results_of(const Projected& p) { return {p.gates, p.q, p.k_cmp, p.k_sel, p.k_win, p.v_cmp, p.v_sel, p.v_win}; }

// What a layer's attention is given, and the gradients of x and of every parameter, of the results that `wanted` names.
struct Made {
  PartTaken way;
  Tensors results, gradients;
};
Made make(Layer layer, const LayerShape& s, at::ScalarType type, unsigned wanted = 0xff) {
  layer.attention->to(type);
  const auto x = on_device({s.B, s.S, s.dim}, 3, s.type).to(type).requires_grad_();
  const Projected p = layer.project(s, x);
  Made made{layer.way(), results_of(p), {}};
  Tensors roots, weights;
  for (std::size_t i = 0; i < made.results.size(); ++i) {
    if ((wanted >> i & 1U) == 0) continue;
    roots.push_back(made.results[i]);
    weights.push_back(fixtures::random(roots.back().sizes(), 20 + i, at::kBFloat16).to(roots.back().options()));
  }
  Tensors leaves = {x};
  for (const auto& parameter : layer.attention->parameters()) leaves.push_back(parameter);
  made.gradients = torch::autograd::grad(roots, leaves, weights, std::nullopt, false, /*allow_unused=*/true);
  return made;
}

// In one and, in fp64, in parts: the same numbers but for rounding.
void expect_same(const LayerShape& s, unsigned wanted = 0xff) {
  SCOPED_TRACE(std::to_string(s.S) + " tokens, h " + std::to_string(s.h) + ", G " + std::to_string(s.G) + ", " +
               std::to_string(s.Dk) + "/" + std::to_string(s.Dv) + " " + c10::toString(s.type) + ", wanted " +
               std::to_string(wanted));
  const Made own = make(Layer(s, {}), s, s.type, wanted);
  const Made plain = make(Layer(s, {{"NSA_FUSED_PROJECT", "0"}}), s, at::kDouble, wanted);
  ASSERT_EQ(own.way.way, "cuda") << own.way.why;
  ASSERT_EQ(plain.way.way, "aten");
  for (std::size_t i = 0; i < own.results.size(); ++i)
    EXPECT_LE(relative_error(own.results[i], plain.results[i]), 4e-3) << "result " << i;
  for (std::size_t i = 0; i < own.gradients.size(); ++i) {
    ASSERT_EQ(own.gradients[i].defined(), plain.gradients[i].defined()) << "gradient " << i;
    if (!own.gradients[i].defined()) continue;
    EXPECT_LE(relative_error(own.gradients[i], plain.gradients[i]), 8e-3) << "gradient " << i;
  }
}

TEST_F(CudaKernels, ProjectionsInOne) {
  expect_same({.S = 1, .h = 1, .G = 1, .Dk = 32, .Dv = 32});
  expect_same({.B = 2, .S = 3, .type = at::kHalf});
  expect_same({.S = 129, .h = 6, .activation = GateActivation::sigmoid});
  expect_same({.S = 40, .h = 16, .G = 1, .Dk = 192, .Dv = 128});
  expect_same({.B = 2, .S = 33, .h = 4, .Dk = 128, .Dv = 128, .type = at::kHalf});
  expect_same({.S = 70, .h = 3, .Dk = 32, .Dv = 32, .cu_seqlens = cu({0, 0, 1, 30, 70})});
}

TEST_F(CudaKernels, ProjectionsWithoutSomeGradients) {
  for (unsigned i = 0; i < 8; ++i) expect_same({.S = 9, .Dk = 32, .Dv = 32}, 0xff & ~(1U << i));
  expect_same({.S = 9, .Dk = 32, .Dv = 32}, 0x01);  // the gates' alone
  expect_same({.S = 9, .Dk = 32, .Dv = 32}, 0x80);  // v_win's alone
}

TEST_F(CudaKernels, ProjectionsOfOneTokenAreThoseOfThePrompt) {
  const LayerShape s{.B = 2, .S = 5};
  const at::NoGradGuard no_grad;
  Layer layer(s, {});
  const auto x = on_device({s.B, s.S, s.dim}, 3, s.type);
  const auto rotations = rope_rotations(s.S, s.Dk, 1e4, 1, {}, x.options());
  const auto whole = results_of(layer.attention->project(x, rotations));
  for (std::int64_t t = 0; t < s.S; ++t) {
    const auto one = results_of(layer.attention->project(x.narrow(1, t, 1), rotations.narrow(0, t, 1)));
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_LE(relative_error(one[i], whole[i].narrow(1, t, 1)), 4e-3) << t << ", result " << i;
  }
}

TEST_F(CudaKernels, ProjectionsAreTheSameBitsTwice) {
  const LayerShape s{.B = 2, .S = 65};
  const Made first = make(Layer(s, {}), s, s.type), second = make(Layer(s, {}), s, s.type);
  for (std::size_t i = 0; i < first.results.size(); ++i) EXPECT_TRUE(at::equal(first.results[i], second.results[i]));
  for (std::size_t i = 0; i < first.gradients.size(); ++i) {
    ASSERT_EQ(first.gradients[i].defined(), second.gradients[i].defined()) << i;
    if (!first.gradients[i].defined()) continue;
    EXPECT_TRUE(at::equal(first.gradients[i], second.gradients[i])) << i;
  }
}

TEST_F(CudaKernels, ProjectionsKeepANaNVisible) {
  const LayerShape s{.B = 1, .S = 5, .Dk = 32, .Dv = 32};
  Layer layer(s, {});
  auto x = on_device({s.B, s.S, s.dim}, 3, s.type);
  x[0][2].fill_(std::numeric_limits<double>::quiet_NaN());
  const auto p = layer.project(s, x);
  for (const auto& t : results_of(p))
    for (std::int64_t token = 0; token < s.S; ++token)
      EXPECT_EQ(t.isnan().select(1, token).all().item<bool>(), token == 2);
}

TEST_F(CudaKernels, FlagsThatWantNoneOfItGoInParts) {
  const LayerShape s{.S = 4, .Dk = 32, .Dv = 32};
  const auto way = [&](const Environment& environment, const LayerShape& shape) {
    Layer layer(shape, environment);
    (void)layer.project(shape, on_device({1, shape.S, shape.dim}, 3, shape.type));
    return layer.way();
  };
  for (const auto& [name, value] : Environment{{"NSA_FUSED_PROJECT", "0"},
                                               {"NSA_USE_CUDA", "0"},
                                               {"NSA_FORCE_PARITY", "1"},
                                               {"NSA_FORCE_BRANCH", "sel"},
                                               {"NSA_FORCE_UNIFORM_GATE", "1"}}) {
    const PartTaken taken = way({{name, value}}, s);
    EXPECT_EQ(taken.way, "aten") << name;
    EXPECT_EQ(taken.why, "cuda refused: " + name + "=" + value);
  }
  EXPECT_EQ(way({{"NSA_STOPGRAD_GATES", "1"}}, s).way, "cuda");
  EXPECT_NE(way({}, {.S = 4, .Dk = 8, .Dv = 8}).why.find("d_k 8"), std::string::npos);
  EXPECT_NE(way({}, {.S = 4, .Dk = 32, .Dv = 32, .type = at::kFloat}).why.find("precision is fp32"), std::string::npos);
}

TEST_F(CudaKernels, AGateOfAnotherTypeGoesInParts) {
  const LayerShape s{.S = 4, .Dk = 32, .Dv = 32};
  Layer layer(s, {});
  layer.attention->gate->to(at::kFloat);
  (void)layer.project(s, on_device({1, s.S, s.dim}, 3, s.type));
  EXPECT_EQ(layer.way().way, "aten");
  EXPECT_EQ(layer.way().why, "cuda refused: x is BFloat16, the gate's weights are Float; served: one type");
}

TEST_F(CudaKernels, StoppedGatesLetNoGradientThrough) {
  const LayerShape s{.S = 4, .Dk = 32, .Dv = 32};
  Layer layer(s, {{"NSA_STOPGRAD_GATES", "1"}});
  const auto x = on_device({1, s.S, s.dim}, 3, s.type);
  const auto p = layer.project(s, x);
  EXPECT_FALSE(p.gates.requires_grad());
  p.q.sum().backward();
  EXPECT_FALSE(layer.attention->gate->fc1->weight.grad().defined());
  EXPECT_TRUE(layer.attention->q->weight.grad().defined());
}

TEST_F(CudaKernels, ASecondDerivativeOfProjectionsIsRefused) {
  const LayerShape s{.S = 4, .Dk = 32, .Dv = 32};
  Layer layer(s, {});
  const auto x = on_device({1, s.S, s.dim}, 3, s.type).requires_grad_();
  const auto p = layer.project(s, x);
  for (const auto& root : {p.q.sum(), p.gates.sum()})
    EXPECT_THROW((void)torch::autograd::grad({root}, {x}, {}, true, /*create_graph=*/true), c10::NotImplementedError);
}

// A whole model, its attention by our kernels too: fused against not fused, within what bf16 rounds.
TEST_F(CudaKernels, AModelTrainsByProjectionsInOne) {
  ModelConfig config = fixtures::tiny();
  config.d_k = config.d_v = 32;
  const auto step = [&](const Environment& environment, bool recompute) {
    auto model = fixtures::make_model(config, environment);
    model->runtime->ops = [](const Call&) { return backend_ops(Backend::cuda); };
    model->runtime->recompute = recompute;
    std::map<std::string, at::Tensor> stages;
    model->to(device(), at::kBFloat16);
    model->runtime->observe = [&](std::string_view name, const at::Tensor& value) {
      if (name.ends_with(".gates") || name.ends_with(".q")) {
        if (value.requires_grad())
          value.register_hook([&stages, key = std::string(name)](const at::Tensor& g) { stages[key] = g.clone(); });
      }
    };
    const auto loss = model->loss(bytes({1, 61}, 3).to(device()), cu({0, 0, 20, 61}));
    loss.backward();
    Tensors all = {loss.detach()};
    for (const auto& p : model->parameters()) all.push_back(p.grad());
    EXPECT_EQ(stages.size(), 4U);  // two layers' gates and queries
    for (const auto& [name, gradient] : stages) all.push_back(gradient);
    return all;
  };
  const Tensors own = step({}, false), plain = step({{"NSA_FUSED_PROJECT", "0"}}, false), again = step({}, true);
  ASSERT_EQ(own.size(), plain.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_LE(distance(own[i], plain[i]), 3e-2) << i;
    EXPECT_TRUE(at::equal(own[i], again[i])) << i << ", with recomputation";
  }
}

}  // namespace
}  // namespace nsa::cuda
