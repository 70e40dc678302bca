#include "nsa/kernels/tests/in_doubles.hpp"

#include <algorithm>
#include <set>

namespace nsa::kernels {

Sums values_of(const Tensor& x, int batches, int rows, int heads, int columns) {
  Sums all(batches, rows, heads, columns);
  for (int b = 0; b < batches; ++b)
    for (int s = 0; s < rows; ++s)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < columns; ++d) all.row(b, s, h)[d] = x.at(b, s, h, d);
  return all;
}

Sums zeros_like(const Sums& x) {
  Sums zeros = x;
  std::fill(zeros.values.begin(), zeros.values.end(), 0);
  return zeros;
}

std::vector<int> keys_of(const Problem& x, const Documents& documents, const std::vector<int>& blocks, int b, int t,
                         int group) {
  const Geometry& g = x.geometry;
  const int first = documents.first_token[t];
  std::vector<int> keys;
  if (x.call.mask == Mask::window)
    for (int i = std::max(first, t - g.w + 1); i <= t; ++i) keys.push_back(i);
  if (x.call.mask == Mask::compressed)
    for (int i = 0; i * g.d + g.l - 1 <= t - first; ++i) keys.push_back(documents.first_block[t] + i);
  if (x.call.mask == Mask::selected) {
    std::set<int> chosen;
    for (int i = 0; i < g.n; ++i)
      chosen.insert(blocks[((static_cast<std::size_t>(b) * x.S + t) * x.G + group) * g.n + i]);
    for (const int number : chosen)
      if (number >= 0)
        for (int i = 0; i < g.l_sel; ++i)
          if (first + number * static_cast<std::int64_t>(g.l_sel) + i <= t)
            keys.push_back(first + number * g.l_sel + i);
  }
  return keys;
}

Weights::Weights(const double* query, Sums& keys, const std::vector<int>& seen, int b, int group, double factor)
    : each(seen.size()) {
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double* key = keys.row(b, seen[i], group);
    for (int d = 0; d < keys.D; ++d) each[i] += query[d] * key[d];
    each[i] *= factor;
    maximum = std::max(maximum, each[i]);
  }
  for (double& w : each) total += w = std::exp2(w - maximum);
}

void InDoubles::add_gradients(const Query& at, const std::vector<int>& keys, const Weights& weights, double delta,
                              double scale) {
  const double *query = q.row(at.b, at.t, at.head), *gradient = dout.row(at.b, at.t, at.head);
  double* to_q = dq.row(at.b, at.t, at.head);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double *key = k.row(at.b, keys[i], at.group), *value = v.row(at.b, keys[i], at.group);
    const double weight = weights.each[i] / weights.total;
    double dp = 0;
    for (int d = 0; d < v.D; ++d) dp += gradient[d] * value[d];
    const double ds = weight * (dp - delta) * scale;
    double *to_k = dk.row(at.b, keys[i], at.group), *to_v = dv.row(at.b, keys[i], at.group);
    for (int d = 0; d < k.D; ++d) {
      to_q[d] += ds * key[d];
      to_k[d] += ds * query[d];
    }
    for (int d = 0; d < v.D; ++d) to_v[d] += weight * gradient[d];
  }
}

}  // namespace nsa::kernels
