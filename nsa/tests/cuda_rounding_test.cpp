// How far from fp64 rounding alone may lead: attention written out with products summed in fp32, P and dS rounded to
// the storage type before they are multiplied. Our own kernels are to stay within 1.5 times that error at every scale
// of the logits, where the fixed bounds of cuda_test.cpp no longer hold.
#include <ATen/ATen.h>

#include "nsa/tests/cuda_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::by_reference;
using fixtures::cuda_cases;
using fixtures::CudaCase;
using fixtures::CudaKernels;
using fixtures::CudaShape;
using fixtures::device;
using fixtures::evaluate;
using fixtures::Evaluated;
using fixtures::relative_error;
using fixtures::Tensors;

constexpr double kWorse = 1.5;
constexpr double kNothing = 1e-4;  // where the rounding happens to cost less, as for a single key

// Which keys each query of a group sees, [1,G,1,S,N]; the branches have their names' places in cuda_cases.
at::Tensor seen(const CudaShape& s, const std::string& branch, const at::Tensor& blocks) {
  const auto on = at::device(device()).dtype(at::kLong);
  const auto t = at::arange(s.S, on).view({1, 1, 1, s.S, 1});
  if (branch == "attend_compressed") {
    const auto last = at::arange(compressed_blocks(s.g, s.S), on) * s.g.d + s.g.l - 1;
    return last.le(t).expand({1, s.G, 1, -1, -1});
  }
  const auto key = at::arange(s.S, on);
  const auto before = key.le(t);
  if (branch == "attend_window") return before.logical_and(key.gt(t - s.g.w)).expand({1, s.G, 1, -1, -1});
  const auto own = at::floor_divide(key, s.g.l_sel).view({1, 1, 1, 1, s.S, 1});
  const auto chosen = blocks.to(at::kLong).transpose(1, 2).view({1, s.G, 1, s.S, 1, s.g.n_sel}).eq(own).any(-1);
  return chosen.logical_and(before);
}

// One batch entry.
Evaluated by_rounding(const CudaCase& c, const CudaShape& s, const at::Tensor& allowed, const at::Tensor& dout) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.Dk));
  const auto stored = [&](const at::Tensor& x) { return x.to(s.type).to(at::kFloat); };
  const auto by_head = [&](const at::Tensor& x) {  // [1,G,h or 1,S,D]
    return x.to(at::kFloat).transpose(1, 2).reshape({1, s.G, -1, x.size(1), x.size(3)});
  };
  const auto rows = [&](const at::Tensor& x) {  // and back, in the storage type
    return x.reshape({1, -1, x.size(3), x.size(4)}).transpose(1, 2).to(s.type);
  };
  const auto q = by_head(c.inputs[0]), k = by_head(c.inputs[1]), v = by_head(c.inputs[2]), g = by_head(dout);
  const auto scores = (at::matmul(q, k.mT()) * scale).masked_fill(allowed.logical_not(), -INFINITY);
  const auto maximum = scores.amax(-1, true).masked_fill(allowed.any(-1, true).logical_not(), 0.0);
  const auto p = at::exp(scores - maximum);
  const auto sum = p.sum(-1, true);
  const auto weight = (p / sum).masked_fill(sum.eq(0), 0.0);
  const auto o = stored((at::matmul(stored(p), v) / sum).masked_fill(sum.eq(0), 0.0));
  const auto dp = at::matmul(g, v.mT());
  const auto ds = stored(weight * (dp - (o * g).sum(-1, true)));
  const auto of_group = [](const at::Tensor& x) { return x.sum(2, true); };
  return {{rows(o)},
          {rows(at::matmul(ds, k) * scale), rows(of_group(at::matmul(ds.mT(), q)) * scale),
           rows(of_group(at::matmul(stored(weight).mT(), g)))}};
}

void expect_no_worse(const CudaShape& s, double logits) {
  auto cases = cuda_cases(s);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto blocks =
      reference::select({wide(cases[1].inputs[0]), wide(cases[1].inputs[1]), s.g, s.cu_seqlens}).to(device());
  for (CudaCase& c : cases) {
    if (c.name == "compress" || c.name == "combine") continue;
    SCOPED_TRACE(c.name + " logits of " + std::to_string(logits) + " " + s.name());
    c.inputs[0] = c.inputs[0] * logits;
    const auto exact = by_reference(c), got = evaluate(c, ops(), c.inputs);
    const auto dout = fixtures::random(got.outputs[0].sizes(), 20, at::kBFloat16).to(got.outputs[0].options());
    const auto rounded = by_rounding(c, s, seen(s, c.name, blocks), dout);
    const auto compare = [&](const at::Tensor& own, const at::Tensor& model, const at::Tensor& wanted,
                             std::string name) {
      EXPECT_LE(relative_error(own, wanted), kWorse * relative_error(model, wanted) + kNothing) << name;
    };
    compare(got.outputs[0], rounded.outputs[0], exact.outputs[0], "o");
    for (std::size_t i = 0; i < 3; ++i)
      compare(got.gradients[i], rounded.gradients[i], exact.gradients[i], std::string("dq dk dv").substr(3 * i, 2));
  }
}

class CudaRounding : public CudaKernels, public ::testing::WithParamInterface<double> {};

TEST_P(CudaRounding, CostsNoMoreThanItMust) {
  const Geometry g{.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 100};
  std::vector<CudaShape> shapes = {{.S = 65, .h = 6, .G = 2, .g = g},
                                   {.S = 48, .h = 6, .Dk = 128, .Dv = 128, .G = 1, .g = g},
                                   {.S = 300, .h = 3, .Dk = 128, .Dv = 128, .G = 1, .type = at::kHalf, .g = g}};
  if (device().is_cuda())
    for (const auto& [Dk, Dv] : {std::pair{32, 32}, {64, 64}, {128, 128}, {192, 128}})
      for (const std::int64_t S : {33, 257, 1000, 3000})
        for (const std::int64_t h : {1, 6, 16})
          for (const auto type : {at::kBFloat16, at::kHalf})
            shapes.push_back({.S = S, .h = h, .Dk = Dk, .Dv = Dv, .type = type, .g = g});
  for (const CudaShape& shape : shapes) expect_no_worse(shape, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Logits, CudaRounding, testing::Values(1e-3, 1.0, 30.0, 1e3, 1e4),
                         [](const auto& i) { return std::to_string(i.index); });

}  // namespace
}  // namespace nsa::cuda
