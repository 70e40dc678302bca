// What the tests of our own kernels share: inputs of a call on the device, an op as a plain function from tensors to
// tensors with its gradients, and the comparison with the reference in fp64. Linked with the kernels' emulation they
// run on the processor.
#pragma once

#include <ATen/Context.h>

#include <cmath>
#include <functional>

#include "nsa/cuda/cuda.hpp"
#include "nsa/kernels/params.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::fixtures {

using Tensors = std::vector<at::Tensor>;

// Bounds of the relative error (root mean square) for inputs of unit scale. Where queries see one to three keys, which
// are compressed blocks below a hundred tokens, rounding alone costs the gradients up to 7.8e-3 (48 tokens, width 128);
// cuda_rounding_test.cpp bounds them there by what rounding costs.
inline constexpr double kOutputBound = 3e-3, kGradientBound = 4e-3, kFewKeysBound = 8e-3;
inline constexpr std::int64_t kFewTokensCompressed = 100, kFewTokens = 4;

inline at::Device device() { return kernels::is_emulated() ? at::kCPU : at::kCUDA; }

// Skips with a reason where neither is. Every at::empty is filled with NaN, so that what a kernel leaves out is seen.
class CudaKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() && !kernels::is_emulated()) GTEST_SKIP() << "no CUDA device; their emulation is tested";
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }
};

struct CudaShape {
  std::int64_t S = 100, h = 6, Dk = 64, Dv = 64, G = 2, B = 1;
  at::ScalarType type = at::kBFloat16;
  Geometry g{};
  CuSeqlens cu_seqlens = std::nullopt;
  [[nodiscard]] std::string name() const {
    return "S " + std::to_string(S) + " h " + std::to_string(h) + " widths " + std::to_string(Dk) + "/" +
           std::to_string(Dv) + " G " + std::to_string(G) + " B " + std::to_string(B) + " " + c10::toString(type) +
           " l " + std::to_string(g.l) + " d " + std::to_string(g.d) + " l' " + std::to_string(g.l_sel) + " n " +
           std::to_string(g.n_sel) + " w " + std::to_string(g.w);
  }
};

// A tensor of unit scale: the same numbers for the kernels and, in fp64, for the reference.
inline at::Tensor on_device(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType type) {
  return random(sizes, seed, type).to(device());
}

// One op of a table as a function of its differentiable inputs.
struct CudaCase {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Ops&, const Tensors&)> call;
};

// Compressed keys and values are inputs of their own, so that each op is judged alone; the choice is the reference's.
inline std::vector<CudaCase> cuda_cases(const CudaShape& s) {
  const std::int64_t Hq = s.G * s.h, N = compressed_blocks(s.g, s.cu_seqlens, s.S);
  const auto draw = [&](std::int64_t rows, std::int64_t heads, std::int64_t width, std::uint64_t seed) {
    return on_device({s.B, rows, heads, width}, seed, s.type);
  };
  const auto q = draw(s.S, Hq, s.Dk, 1), k = draw(s.S, s.G, s.Dk, 2), v = draw(s.S, s.G, s.Dv, 3);
  const auto k_cmp = draw(N, s.G, s.Dk, 4), v_cmp = draw(N, s.G, s.Dv, 5);
  const auto gates = at::softmax(on_device({s.B, s.S, s.G, 3}, 6, at::kFloat), -1).to(s.type);
  const auto blocks = reference::select({q.to(at::kDouble), k_cmp.to(at::kDouble), s.g, s.cu_seqlens});
  const auto o = [&](std::uint64_t seed) { return draw(s.S, Hq, s.Dv, seed); };
  return {{"compress",
           {k, v},
           [s](const Ops& ops, const Tensors& in) {
             const auto [k_out, v_out] = ops.compress({in[0], in[1], s.g, s.cu_seqlens, {}, {}});
             return Tensors{k_out, v_out};
           }},
          {"attend_compressed",
           {q, k_cmp, v_cmp},
           [s](const Ops& ops, const Tensors& in) {
             return Tensors{ops.attend_compressed({in[0], {in[1], in[2]}, s.g, s.cu_seqlens}).o};
           }},
          {"attend_selected",
           {q, k, v},
           [s, blocks](const Ops& ops, const Tensors& in) {
             return Tensors{ops.attend_selected({in[0], in[1], in[2], blocks, s.g, s.cu_seqlens}).o};
           }},
          {"attend_window",
           {q, k, v},
           [s](const Ops& ops, const Tensors& in) {
             return Tensors{ops.attend_window({in[0], in[1], in[2], s.g, s.cu_seqlens}).o};
           }},
          {"attend",
           {q, k_cmp, v_cmp, k, v, draw(s.S, s.G, s.Dk, 10), draw(s.S, s.G, s.Dv, 11), gates},
           [s, blocks](const Ops& ops, const Tensors& in) {
             return Tensors{
                 ops.attend({in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], in[7], s.g, s.cu_seqlens, blocks})};
           }},
          {"combine", {gates, o(7), o(8), o(9)}, [](const Ops& ops, const Tensors& in) {
             return Tensors{ops.combine({in[0], in[1], in[2], in[3]})};
           }}};
}

struct Evaluated {
  Tensors outputs, gradients;
};
// The outputs, and the gradients of sum(output * weight) by every input.
inline Evaluated evaluate(const CudaCase& c, const Ops& ops, const Tensors& inputs) {
  Tensors leaves;
  for (const auto& t : inputs) leaves.push_back(t.detach().requires_grad_());
  Evaluated result;
  result.outputs = c.call(ops, leaves);
  Tensors weights;
  for (std::size_t i = 0; i < result.outputs.size(); ++i)
    weights.push_back(random(result.outputs[i].sizes(), 20 + i, at::kBFloat16).to(result.outputs[i].options()));
  result.gradients = torch::autograd::grad(result.outputs, leaves, weights, std::nullopt, false, /*allow_unused=*/true);
  return result;
}

inline Evaluated by_reference(const CudaCase& c) {
  Tensors wide;
  for (const auto& t : c.inputs) wide.push_back(t.detach().to(at::kDouble));
  Evaluated result = evaluate(c, reference::ops(), wide);
  // Without any block the reference does not reach its inputs; the kernels must answer with zeros all the same.
  for (std::size_t i = 0; i < wide.size(); ++i)
    if (!result.gradients[i].defined()) result.gradients[i] = at::zeros_like(wide[i]);
  return result;
}

// Root mean square of the difference over that of what is wanted; the floor is for what should be exactly 0. NaN, or
// another shape, is infinitely far.
inline double relative_error(const at::Tensor& got, const at::Tensor& wanted) {
  constexpr double kFloor = 1e-2;
  if (!got.defined() || got.sizes() != wanted.sizes()) return std::numeric_limits<double>::infinity();
  if (got.numel() == 0) return 0.0;
  const auto rms = [](const at::Tensor& t) { return std::sqrt(t.square().mean().item<double>()); };
  const double error = rms(got.detach().to(at::kDouble) - wanted.detach().to(at::kDouble));
  if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
  return error / std::max(kFloor, rms(wanted.detach().to(at::kDouble)));
}

inline void expect_close(const std::string& name, const Evaluated& got, const Evaluated& wanted,
                         double gradient_bound = kGradientBound) {
  for (std::size_t i = 0; i < wanted.outputs.size(); ++i)
    EXPECT_LE(relative_error(got.outputs[i], wanted.outputs[i]), kOutputBound) << name << ", output " << i;
  for (std::size_t i = 0; i < wanted.gradients.size(); ++i)
    EXPECT_LE(relative_error(got.gradients[i], wanted.gradients[i]), gradient_bound) << name << ", gradient " << i;
}

// (maximum + log2(sum)) * ln 2, which is -inf for (-inf, 0).
inline at::Tensor lse_of(const at::Tensor& stats) {
  return (stats.select(3, 0) + at::log2(stats.select(3, 1))) * std::log(2.0);
}

// Block tables agree where the forced blocks are there, the numbers ascend, as many are chosen, and what they score
// (fp64) is the same: another block with the same score within rounding is no difference. One document.
inline void expect_same_choice(const at::Tensor& got, const at::Tensor& q, const at::Tensor& k_cmp, const Geometry& g) {
  const auto wide_q = q.to(at::kDouble), wide_k = k_cmp.to(at::kDouble);
  const std::int64_t S = q.size(1), G = k_cmp.size(2);
  const auto score = reference::importance(reference::compressed_probabilities(wide_q, wide_k, g), g, G, S);
  const auto wanted = reference::choose(score, g);
  ASSERT_EQ(got.sizes(), wanted.sizes());
  EXPECT_TRUE(at::equal(got.ge(0), wanted.ge(0))) << "as many blocks, and -1 behind them";
  const auto number = got.to(at::kLong);
  const auto later = number.narrow(3, 1, number.size(3) - 1), earlier = number.narrow(3, 0, number.size(3) - 1);
  EXPECT_TRUE(later.gt(earlier).logical_or(later.eq(-1)).all().item<bool>()) << "ascending";
  const auto current = at::floor_divide(at::arange(S, number.options()), g.l_sel).view({1, S, 1, 1});
  EXPECT_TRUE(number.le(current).all().item<bool>()) << "no block after the query";
  for (const auto& forced : {at::zeros_like(current), current, (current - 1).clamp_min(0)})
    EXPECT_TRUE(number.eq(forced).any(-1).all().item<bool>()) << "forced blocks";
  const auto scores = [&](const at::Tensor& blocks) {
    const auto place = blocks.to(at::kLong);
    return std::get<0>(at::sort(score.gather(3, place.clamp_min(0)).masked_fill(place.lt(0), -1.0), -1));
  };
  const double h = static_cast<double>(q.size(2) / G);
  EXPECT_LE((scores(got) - scores(wanted)).abs().max().item<double>(), 1e-4 * h) << "the same scores";
}

}  // namespace nsa::fixtures
