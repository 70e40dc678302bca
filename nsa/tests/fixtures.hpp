// What the tests of the computation share: a small geometry with every boundary within reach, random inputs, a measure
// of distance that NaN fails.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <string>
#include <vector>

#include "nsa/dispatch.hpp"
#include "nsa/ops.hpp"
#include "nsa/reference/reference.hpp"

namespace nsa::fixtures {

// l 4, d 2, l' 8, n 3, w 6: from S = 33 on some block must be left out.
inline constexpr Geometry kSmall{.l = 4, .d = 2, .l_sel = 8, .n_sel = 3, .w = 6};

inline at::Tensor random(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType type = at::kDouble) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kDouble).to(type);
}
inline at::Tensor cu(const std::vector<std::int32_t>& values) { return at::tensor(values, at::kInt); }

// The largest difference, relative to the larger of 1 and the largest wanted value; infinite for a NaN in either, for
// an infinity that the other has not, and for other shapes.
inline double distance(const at::Tensor& got, const at::Tensor& wanted) {
  constexpr double kFar = std::numeric_limits<double>::infinity();
  if (!got.defined() || !wanted.defined() || got.sizes() != wanted.sizes()) return kFar;
  if (got.numel() == 0) return 0.0;
  const auto a = got.detach().to(at::kCPU, at::kDouble), b = wanted.detach().to(at::kCPU, at::kDouble);
  if (a.isnan().any().item<bool>() || b.isnan().any().item<bool>()) return kFar;
  if (!at::equal(a.isinf(), b.isinf()) || !at::equal(a.masked_select(a.isinf()), b.masked_select(b.isinf())))
    return kFar;
  const auto x = a.masked_fill(a.isinf(), 0.0), y = b.masked_fill(b.isinf(), 0.0);
  return (x - y).abs().max().item<double>() / std::max(1.0, y.abs().max().item<double>());
}

inline double tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-11 : type == at::kFloat ? 2e-5 : 3e-2; }

// 1, 2, round l, round l', round w, 2w, round n*l', round 128.
inline const std::vector<std::int64_t> kLengths{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 23, 24, 25, 127, 128, 129};
inline const std::vector<std::pair<std::int64_t, std::int64_t>> kHeads{{1, 1}, {1, 6}, {2, 2}, {3, 1}, {2, 6}};  // G, h

// Everything that the functions take, on the CPU.
struct Shape {
  std::int64_t B = 1, S = 1, G = 1, h = 1, Dk = 8, Dv = 8;
};
struct Inputs {
  at::Tensor q, k, v, gates;
  Geometry g = kSmall;
  CuSeqlens cu_seqlens;

  Inputs(const Shape& s, std::uint64_t seed, at::ScalarType type = at::kDouble, const Geometry& geometry = kSmall)
      : q(random({s.B, s.S, s.G * s.h, s.Dk}, seed, type)),
        k(random({s.B, s.S, s.G, s.Dk}, seed + 1, type)),
        v(random({s.B, s.S, s.G, s.Dv}, seed + 2, type)),
        gates(at::softmax(random({s.B, s.S, s.G, 3}, seed + 3), -1)),
        g(geometry) {}

  // The same numbers in fp64: what the oracle computes from.
  [[nodiscard]] Inputs wide() const {
    Inputs result = *this;
    for (auto* t : {&result.q, &result.k, &result.v}) *t = t->to(at::kCPU, at::kDouble);
    return result;
  }
  Inputs& require_gradients() {
    for (auto* t : {&q, &k, &v}) t->set_requires_grad(true);
    return *this;
  }
  [[nodiscard]] CompressArgs compress() const { return {k, v, g, cu_seqlens, {}, {}}; }
  [[nodiscard]] AttendCompressedArgs compressed(const Compressed& kv) const { return {q, kv, g, cu_seqlens}; }
  [[nodiscard]] SelectArgs select(const Compressed& kv) const { return {q, kv.k, g, cu_seqlens}; }
  [[nodiscard]] AttendSelectedArgs selected(const at::Tensor& blocks) const { return {q, k, v, blocks, g, cu_seqlens}; }
  [[nodiscard]] AttendWindowArgs window() const { return {q, k, v, g, cu_seqlens}; }
  // The reference's choice for these numbers.
  [[nodiscard]] at::Tensor blocks() const {
    const Inputs w = wide();
    return reference::select(w.select(reference::compress(w.compress()))).to(q.device());
  }
};

// Gradients of sum(o * weight) with respect to q, k, v, the weight drawn from `seed`.
inline std::vector<at::Tensor> gradients(const at::Tensor& o, const Inputs& inputs, std::uint64_t seed) {
  const auto weight = random(o.sizes(), seed, o.scalar_type()).to(o.device());
  return torch::autograd::grad({(o * weight).sum()}, {inputs.q, inputs.k, inputs.v}, {}, {}, false,
                               /*allow_unused=*/true);
}

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace nsa::fixtures
