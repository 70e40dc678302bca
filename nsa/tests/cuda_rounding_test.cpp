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

// A sum of fp32 on tensor cores is off by about this share of the root of its terms' squares: they cut terms off where
// they do not round. It shows where terms cancel: the gradient of a single key's score is exactly 0.
constexpr double kSum = 0x1p-22;
constexpr double kSpreads = 6;  // at large logits a few rows decide, whose errors may be several times the usual

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

// What the model gives, and how far from exact results sums in fp32 may lead besides (root mean square, per element).
struct Modelled {
  Evaluated rounded, spread;
};

// One batch entry.
Modelled by_rounding(const CudaCase& c, const CudaShape& s, const at::Tensor& allowed, const at::Tensor& dout) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.Dk));
  const auto stored = [&](const at::Tensor& x) { return x.to(s.type).to(at::kFloat); };
  const auto by_head = [&](const at::Tensor& x) {  // [1,G,h or 1,S,D]
    return x.to(at::kFloat).transpose(1, 2).reshape({1, s.G, -1, x.size(1), x.size(3)});
  };
  const auto rows = [&](const at::Tensor& x) {  // and back
    return x.reshape({1, -1, x.size(3), x.size(4)}).transpose(1, 2);
  };
  const auto q = by_head(c.inputs[0]), k = by_head(c.inputs[1]), v = by_head(c.inputs[2]), g = by_head(dout);
  const auto scores = (at::matmul(q, k.mT()) * scale).masked_fill(allowed.logical_not(), -INFINITY);
  const auto maximum = scores.amax(-1, true).masked_fill(allowed.any(-1, true).logical_not(), 0.0);
  const auto p = at::exp(scores - maximum);
  const auto sum = p.sum(-1, true);
  const auto weight = (p / sum).masked_fill(sum.eq(0), 0.0);
  const auto o = stored((at::matmul(stored(p), v) / sum).masked_fill(sum.eq(0), 0.0));
  const auto dp = at::matmul(g, v.mT()), delta = (o * g).sum(-1, true);
  const auto ds = stored(weight * (dp - delta));
  const auto of_group = [](const at::Tensor& x) { return x.sum(2, true); };
  Modelled m;
  m.rounded = {{rows(o)},
               {rows(at::matmul(ds, k) * scale), rows(of_group(at::matmul(ds.mT(), q)) * scale),
                rows(of_group(at::matmul(stored(weight).mT(), g)))}};
  for (auto* tensors : {&m.rounded.outputs, &m.rounded.gradients})
    for (at::Tensor& x : *tensors) x = x.to(s.type);

  // Variances. A score's error moves the weights of its row against each other: none where there is only one.
  const auto squares = [](const at::Tensor& x, const at::Tensor& y) { return at::matmul(x.square(), y.square()); };
  const auto of_score = squares(q, k.mT()) * (scale * scale * kSum * kSum);
  const auto of_weight = (weight * (1 - weight)).square() * of_score;
  const auto of_ds = weight.square() * (squares(g, v.mT()) + (o * g).square().sum(-1, true)) * (kSum * kSum) +
                     of_weight * (dp - delta).square();
  const auto root = [&](const at::Tensor& x, double factor) { return rows(x.sqrt() * factor); };
  m.spread = {{root(at::matmul(of_weight, v.square()), 1)},
              {root(at::matmul(of_ds, k.square()), scale), root(of_group(at::matmul(of_ds.mT(), q.square())), scale),
               root(of_group(at::matmul(of_weight.mT(), g.square())), 1)}};
  return m;
}

at::Tensor wide(const at::Tensor& t) { return t.to(at::kDouble); }

void compare(const at::Tensor& own, const at::Tensor& rounded, const at::Tensor& spread, const at::Tensor& wanted,
             const std::string& name) {
  EXPECT_LE(relative_error(own, wanted), kWorse * relative_error(rounded, wanted) +
                                             kSpreads * relative_error(wide(spread) + wanted, wanted) + kNothing)
      << name;
}

// All branches and their sum: each branch is given its gate's share of dO.
void expect_all_no_worse(CudaCase c, const CudaShape& s, const at::Tensor& blocks, double logits) {
  const std::array<std::string, 3> branches = {"attend_compressed", "attend_selected", "attend_window"};
  c.inputs[0] = c.inputs[0] * logits;
  const auto exact = by_reference(c), got = evaluate(c, ops(), c.inputs);
  const auto dout = fixtures::random(got.outputs[0].sizes(), 20, at::kBFloat16).to(device(), at::kFloat);
  at::Tensor o, dq, o_spread, dq_spread;
  const auto add = [](at::Tensor& to, const at::Tensor& x) { to = to.defined() ? to + x : x; };
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const CudaCase branch{branches[i], {c.inputs[0], c.inputs[1 + 2 * i], c.inputs[2 + 2 * i]}, {}};
    const auto gate =
        c.inputs[7].select(3, static_cast<std::int64_t>(i)).to(at::kFloat).repeat_interleave(s.h, 2).unsqueeze(3);
    const auto model = by_rounding(branch, s, seen(s, branches[i], blocks), gate * dout);
    add(o, gate * model.rounded.outputs[0]);
    add(o_spread, gate * model.spread.outputs[0]);
    add(dq, model.rounded.gradients[0]);
    add(dq_spread, model.spread.gradients[0]);
    for (const std::size_t j : {1, 2})
      compare(got.gradients[2 * i + j], model.rounded.gradients[j], model.spread.gradients[j],
              exact.gradients[2 * i + j], branches[i] + (j == 1 ? " dk" : " dv"));
  }
  compare(got.outputs[0], o.to(s.type), o_spread, exact.outputs[0], "o");
  compare(got.gradients[0], dq.to(s.type), dq_spread, exact.gradients[0], "dq");
}

void expect_no_worse(const CudaShape& s, double logits) {
  auto cases = cuda_cases(s);
  const auto blocks =
      reference::select({wide(cases[1].inputs[0]), wide(cases[1].inputs[1]), s.g, s.cu_seqlens}).to(device());
  for (CudaCase& c : cases) {
    if (c.name == "compress" || c.name == "combine") continue;
    SCOPED_TRACE(c.name + " logits of " + std::to_string(logits) + " " + s.name());
    if (c.name == "attend") {
      expect_all_no_worse(c, s, blocks, logits);
      continue;
    }
    c.inputs[0] = c.inputs[0] * logits;
    const auto exact = by_reference(c), got = evaluate(c, ops(), c.inputs);
    const auto dout = fixtures::random(got.outputs[0].sizes(), 20, at::kBFloat16).to(got.outputs[0].options());
    const auto model = by_rounding(c, s, seen(s, c.name, blocks), dout);
    compare(got.outputs[0], model.rounded.outputs[0], model.spread.outputs[0], exact.outputs[0], "o");
    for (std::size_t i = 0; i < 3; ++i)
      compare(got.gradients[i], model.rounded.gradients[i], model.spread.gradients[i], exact.gradients[i],
              std::string("dq dk dv").substr(3 * i, 2));
  }
}

class CudaRounding : public CudaKernels, public ::testing::WithParamInterface<double> {};

TEST_P(CudaRounding, CostsNoMoreThanItMust) {
  const Geometry g{.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 100};
  std::vector<CudaShape> shapes = {{.S = 65, .h = 6, .G = 2, .g = g},
                                   {.S = 48, .h = 6, .Dk = 128, .Dv = 128, .G = 1, .g = g},
                                   {.S = 300, .h = 3, .Dk = 128, .Dv = 128, .G = 1, .type = at::kHalf, .g = g}};
  if (device().is_cuda())  // every width with every number of heads; types take turns
    for (const auto& [Dk, Dv] : {std::pair{32, 32}, {64, 64}, {128, 128}, {192, 128}})
      for (const auto& [S, h] :
           {std::pair{33, 1}, {33, 6}, {33, 16}, {257, 1}, {257, 6}, {257, 16}, {1000, 6}, {1000, 16}, {3000, 6}})
        shapes.push_back(
            {.S = S, .h = h, .Dk = Dk, .Dv = Dv, .type = shapes.size() % 2 == 0 ? at::kBFloat16 : at::kHalf, .g = g});
  for (const CudaShape& shape : shapes) expect_no_worse(shape, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Logits, CudaRounding, testing::Values(1e-3, 1.0, 30.0, 1e3, 1e4),
                         [](const auto& i) { return std::to_string(i.index); });

}  // namespace
}  // namespace nsa::cuda
