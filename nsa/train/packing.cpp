#include "nsa/train/packing.hpp"

#include <ATen/ops/tensor.h>

namespace nsa::train {

at::Tensor cu_seqlens_of(const std::vector<std::int32_t>& begins, std::int64_t length) {
  std::vector<std::int32_t> offsets{0};
  offsets.insert(offsets.end(), begins.begin(), begins.end());
  offsets.push_back(static_cast<std::int32_t>(length));
  return at::tensor(offsets, at::kInt);
}

bool predicts_something(const std::vector<std::int32_t>& begins, std::int64_t length) {
  return static_cast<std::int64_t>(begins.size()) < length - 1;
}

}  // namespace nsa::train
