// Attention over the keys of a mask, and its gradients, in fp64: what the oracle compares the kernels with.
#pragma once

#include <cmath>
#include <vector>

#include "nsa/kernels/tests/oracle.hpp"

namespace nsa::kernels {

// Rows as [B,S,H,D].
struct Sums {
  int S, H, D;
  std::vector<double> values;
  Sums(int batches, int rows, int heads, int columns)
      : S(rows), H(heads), D(columns), values(static_cast<std::size_t>(batches) * rows * heads * columns) {}
  double* row(int b, int s, int h) { return &values[((static_cast<std::size_t>(b) * S + s) * H + h) * D]; }
};
[[nodiscard]] Sums values_of(const Tensor& x, int batches, int rows, int heads, int columns);
[[nodiscard]] Sums zeros_like(const Sums& x);

// The keys that a query sees, rising in each block. `blocks`: [B,S,G,n], of the selected branch.
[[nodiscard]] std::vector<int> keys_of(const Problem& x, const Documents& documents, const std::vector<int>& blocks,
                                       int b, int t, int group);

// exp2 of a query's scores, in `factor`'s units, less the largest of them.
struct Weights {
  std::vector<double> each;
  double maximum = -INFINITY, total = 0;
  Weights(const double* query, Sums& keys, const std::vector<int>& seen, int b, int group, double factor);
};

// What comes in, and the sums that are to come out.
struct InDoubles {
  Sums q, k, v, dout;
  Sums o = zeros_like(dout), dq = zeros_like(q), dk = zeros_like(k), dv = zeros_like(v);
  struct Query {
    int b, t, head, group;
  };
  // What one query adds. `delta`: the sum of o * dout over its columns.
  void add_gradients(const Query& at, const std::vector<int>& keys, const Weights& weights, double delta, double scale);
};

}  // namespace nsa::kernels
