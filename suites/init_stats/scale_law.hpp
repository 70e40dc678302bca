// What the initial laws say about the size of an activation, given what goes into it. Everything is a mean square over
// rows and channels; the expectation is over the draw of the weights, the input is what the model really had there. So
// a stage is judged against its own input, and one wrong stage does not make the ones after it look wrong.
//
// Note [Quadratic forms]
// y = W z with the entries of W independent, mean 0, variance v: the mean square of y over rows z_t and n outputs is
// sum_o w_o' C w_o / n with C = mean z z', expectation v tr C. For entries that are strictly sub-Gaussian (uniform and
// normal ones are) the upper tail is that of Gaussian entries (Hsu, Kakade, Zhang 2012), which Laurent and Massart
// bound: a mean square exceeds E (1 + 2 sqrt(x/k) + 2 x/r) with probability e^-x, where k = n (tr C)^2 / |C|_F^2 and
// r = n tr C / |C|; the lower one falls below E (1 - 2 sqrt(x/k)). k is a number of degrees of freedom: many outputs
// and inputs that point in many directions make a sharp bound, few make a wide one.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nsa/config.hpp"

namespace suites::init_laws {

[[nodiscard]] double mean_square(const at::Tensor& t);  // in fp64

struct ScaleLaw {
  double expected = 0;        // mean square
  double freedom = INFINITY;  // k; infinite: nothing is drawn between input and stage
  double tail = INFINITY;     // r
  double down = 1, up = 1;    // what the derivation neglects, as factors
};
struct ScaleBounds {
  double low = 0, high = 0;  // mean square
};
// Each side is wrong with probability at most `alarm` when the law holds. `rounding`: relative, of the stored values.
[[nodiscard]] ScaleBounds bounds(const ScaleLaw& law, double alarm, double rounding);

// A linear map of `rows` [..., width], fp64: `outputs` channels, entries of variance `variance`.
[[nodiscard]] ScaleLaw linear_law(const at::Tensor& rows, std::int64_t outputs, double variance);
// Several, side by side: the mean over all their channels.
[[nodiscard]] ScaleLaw together(const std::vector<ScaleLaw>& laws);
// rows standard normal themselves (the embedding): `counts` says how often each drawn row of `width` values is used.
[[nodiscard]] ScaleLaw drawn_rows_law(const at::Tensor& counts, std::int64_t width);

// E silu(h)^2 for h normal with mean 0.
[[nodiscard]] double silu_mean_square(double variance);

// x / rms(x), the norm with weights 1. fp64.
[[nodiscard]] at::Tensor normed(const at::Tensor& x);
// Mean square of the mean over a block of l keys that RoPE has turned, per unit of variance*width: n [S,dim] -> scalar.
[[nodiscard]] double turned_pool_mean_square(const at::Tensor& n, const nsa::ModelConfig& model, double rope_scale);
// Means of x [S,width] over blocks of l every d tokens: [N_c,width].
[[nodiscard]] at::Tensor block_means(const at::Tensor& x, const nsa::Geometry& g);
// Row-normalised [S,keys] fp64 from a bool mask: attention that weighs everything it sees alike. Empty rows are 0.
[[nodiscard]] at::Tensor uniform_attention(const at::Tensor& visible);

}  // namespace suites::init_laws
