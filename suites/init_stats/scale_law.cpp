#include "suites/init_stats/scale_law.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace suites::init_laws {

double mean_square(const at::Tensor& t) { return t.to(at::kDouble).square().mean().item<double>(); }

ScaleBounds bounds(const ScaleLaw& law, double alarm, double rounding) {
  const double x = std::log(1 / alarm), spread = 2 * std::sqrt(x / law.freedom);
  const double stored = 1 + 4 * rounding;  // a square has twice the error of its root, and input and output are rounded
  return {law.expected * law.down * std::max(0.0, 1 - spread) / stored,
          law.expected * law.up * (1 + spread + 2 * x / law.tail) * stored};
}

ScaleLaw linear_law(const at::Tensor& rows, std::int64_t outputs, double variance) {
  const at::Tensor z = rows.flatten(0, -2);
  const double count = static_cast<double>(z.size(0)), n = static_cast<double>(outputs);
  // z z' and z' z have the same trace and Frobenius norm: the smaller one is made.
  const at::Tensor gram = z.size(0) < z.size(1) ? z.matmul(z.t()) : z.t().matmul(z);
  const double trace = gram.trace().item<double>() / count, norm = gram.norm().item<double>() / count;
  ScaleLaw law;
  law.expected = variance * trace;
  law.freedom = n * trace * trace / (norm * norm);
  law.tail = n * trace / norm;  // |C| <= |C|_F
  return law;
}

ScaleLaw together(const std::vector<ScaleLaw>& laws) {
  ScaleLaw sum;
  sum.expected = 0;
  double spread = 0;  // sum of (expected^2 / k): variances of independent parts add
  double tail = INFINITY;
  for (const ScaleLaw& law : laws) {
    sum.expected += law.expected;
    spread += law.expected * law.expected / law.freedom;
    tail = std::min(tail, law.tail / law.expected);
  }
  sum.freedom = sum.expected * sum.expected / spread;
  sum.tail = tail * sum.expected;
  sum.expected /= static_cast<double>(laws.size());
  return sum;
}

ScaleLaw drawn_rows_law(const at::Tensor& counts, std::int64_t width) {
  const at::Tensor c = counts.to(at::kDouble);
  const double total = c.sum().item<double>(), squares = c.square().sum().item<double>();
  ScaleLaw law;
  law.expected = 1;
  law.freedom = static_cast<double>(width) * total * total / squares;
  law.tail = static_cast<double>(width) * total / c.max().item<double>();
  return law;
}

double silu_mean_square(double variance) {
  // Trapezoids over +-10 deviations: exact to rounding for a smooth function under a Gaussian.
  constexpr int kSteps = 2000;
  const double deviation = std::sqrt(variance), step = 20.0 / kSteps;
  double sum = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double u = -10 + i * step, h = u * deviation, silu = h / (1 + std::exp(-h));
    sum += silu * silu * std::exp(-u * u / 2) * step;
  }
  return sum / std::sqrt(2 * std::numbers::pi);
}

at::Tensor normed(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return wide / (wide.square().mean(-1, true) + 1e-6).sqrt();
}

double turned_pool_mean_square(const at::Tensor& n, const nsa::ModelConfig& model, double rope_scale) {
  const nsa::Geometry& g = model.nsa;
  const at::TensorOptions options = n.options();
  const at::Tensor frequency = at::pow(model.rope_base, at::arange(0, model.d_k, 2, options) / -double(model.d_k));
  const at::Tensor place = at::arange(g.l, options) / rope_scale;
  // E |sum_j R_j W n_j|^2 holds <n_i, n_j> times the mean of cos((i-j) theta): what two turned copies have in common.
  const at::Tensor common =
      at::cos((place.unsqueeze(1) - place.unsqueeze(0)).unsqueeze(-1) * frequency).mean(-1);  // [l,l]
  const at::Tensor blocks = n.unfold(0, g.l, g.d);                                            // [N_c,dim,l]
  const at::Tensor products = at::matmul(blocks.transpose(1, 2), blocks);                     // [N_c,l,l]
  const double l = static_cast<double>(g.l);
  return ((products * common).sum({1, 2}).mean() / (l * l)).item<double>();
}

at::Tensor block_means(const at::Tensor& x, const nsa::Geometry& g) { return x.unfold(0, g.l, g.d).mean(-1); }

at::Tensor uniform_attention(const at::Tensor& visible) {
  const at::Tensor weight = visible.to(at::kDouble);
  return weight / weight.sum(-1, true).clamp_min(1);
}

}  // namespace suites::init_laws
