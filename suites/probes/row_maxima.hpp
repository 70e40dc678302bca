// The largest |x| of each row of many tensors by one launch of a kernel of our own (row_maxima.cu). ATen's reductions
// take one tensor each, so that a watch over hundreds of tensors is hundreds of launches, most of them shorter than
// what a launch costs. On the current stream, without a word to the host: a CUDA graph can hold it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace suites::probes {

struct TensorRows {
  at::Tensor value;
  std::int64_t row = -1;  // the dimension that is kept; -1: none
  bool positive = false;  // the largest x, or 0, instead of the largest |x|
};

// On a GPU, of 16, 32 or 64 bits a number, not empty and below 2^31 elements; any strides.
[[nodiscard]] bool serves_row_maxima(const at::Tensor& value);

struct RowMaximaOf {
  at::Tensor values;               // of all tensors end to end, fp32; fp64 where one of them is
  std::vector<std::int64_t> ends;  // of each tensor's in `values`
};
// Of tensors that are served, of one device. A row's NaN is NaN, whatever else is in it. A tensor without rows has one
// number or several, of which the largest counts (or the NaN).
[[nodiscard]] RowMaximaOf row_maxima(const std::vector<TensorRows>& tensors);

}  // namespace suites::probes
