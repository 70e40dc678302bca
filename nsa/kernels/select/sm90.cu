#include "nsa/kernels/select/sm90.cuh"

#include <algorithm>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/select/sm90.hpp"

namespace nsa::kernels {
namespace hopper {
namespace {

template <typename Each>
void with_shape(const Select& p, int pairs, Each&& each) {
  const auto with_width = [&](auto compiled) {
    constexpr int kPairs = decltype(compiled)::value;
    if (p.Dk == 64) return each(SelectShape<64, kPairs>());
    if (p.Dk == 128) return each(SelectShape<128, kPairs>());
    return each(SelectShape<192, kPairs>());
  };
  if (pairs == 3) return with_width(std::integral_constant<int, 3>());
  if (pairs == 4) return with_width(std::integral_constant<int, 4>());
  if (pairs == 6) return with_width(std::integral_constant<int, 6>());
  return with_width(std::integral_constant<int, 8>());
}

template <typename T, typename S>
void launch(Select p, int sm_count, cudaStream_t stream) {
  p.scale *= kLog2E;  // the kernel's powers are of two
  const auto kernel = select_kernel<T, S>;
  grant_shared(kernel, S::kSharedBytes);
  const auto k_map = tensor_map(p.k_cmp, p.storage, p.B, p.N, p.G, S::Dk, S::kKeys);
  const int tiles = (p.S + S::kTokens - 1) / S::kTokens * p.B * p.G, ctas = std::min(tiles, sm_count);
  kernels::launch(false, kernel, ctas, S::kThreads, S::kSharedBytes, stream, p, tiles, k_map);
  check_launch("select_blocks_hopper");
}

}  // namespace
}  // namespace hopper

void select_blocks_hopper(const Select& p, const SelectPlan& plan, cudaStream_t stream) {
  hopper::with_shape(p, plan.pairs, [&](auto shape) {
    using Shape = decltype(shape);
    if (p.storage == Storage::bf16)
      hopper::launch<bf16, Shape>(p, plan.device.sm_count, stream);
    else
      hopper::launch<fp16, Shape>(p, plan.device.sm_count, stream);
  });
}

}  // namespace nsa::kernels
