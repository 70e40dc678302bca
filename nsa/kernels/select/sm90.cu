#include "nsa/kernels/select/sm90.cuh"

#include <algorithm>

#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/plan/device.hpp"
#include "nsa/kernels/select/sm90.hpp"

namespace nsa::kernels {
namespace hopper {
namespace {

// The shape for a number of heads: by pairs of them, padded to the next one that is compiled.
template <typename Each>
void with_shape(const Select& p, Each&& each) {
  const auto with_width = [&](auto pairs) {
    constexpr int kPairs = decltype(pairs)::value;
    if (p.Dk == 64) return each(SelectShape<64, kPairs>());
    if (p.Dk == 128) return each(SelectShape<128, kPairs>());
    return each(SelectShape<192, kPairs>());
  };
  const int pairs = (p.Hq / p.G + 1) / 2;
  if (pairs <= 3) return with_width(std::integral_constant<int, 3>());
  if (pairs <= 4) return with_width(std::integral_constant<int, 4>());
  if (pairs <= 6) return with_width(std::integral_constant<int, 6>());
  return with_width(std::integral_constant<int, 8>());
}

template <typename T, typename S>
void launch(Select p, cudaStream_t stream) {
  p.scale *= 1.44269504088896341f;  // log2(e): the kernel's powers are of two
  const auto kernel = select_kernel<T, S>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  const auto k_map = tensor_map(p.k_cmp, p.storage, p.B, p.N, p.G, S::Dk, S::kKeys);
  const int tiles = (p.S + S::kTokens - 1) / S::kTokens * p.B * p.G, ctas = std::min(tiles, current_device().sm_count);
  kernel<<<ctas, S::kThreads, S::kSharedBytes, stream>>>(p, tiles, k_map);
  check_launch("select_blocks_hopper");
}

}  // namespace
}  // namespace hopper

bool select_blocks_hopper_supports(const Select& p) {
  const Geometry& g = p.geometry;
  if (g.l != 2 * g.d || g.l_sel != 4 * g.d || (p.Dk != 64 && p.Dk != 128 && p.Dk != 192)) return false;
  if (p.S <= 0 || p.N <= 0 || p.B <= 0 || p.G <= 0 || p.Hq % p.G != 0 || p.Hq / p.G > 16) return false;
  if (hopper::expanded(p.k_cmp, p.B, p.N, p.G)) return false;
  // Tiles of 16 tokens at least, counted in an int.
  if (std::int64_t{p.S} * p.B * p.G >= std::int64_t{1} << 31) return false;
  return current_device().hopper;
}

void select_blocks_hopper(const Select& p, cudaStream_t stream) {
  if (!select_blocks_hopper_supports(p)) throw LaunchError("select_blocks_hopper: this problem is not supported");
  hopper::with_shape(p, [&](auto shape) {
    using Shape = decltype(shape);
    if (p.storage == Storage::bf16)
      hopper::launch<bf16, Shape>(p, stream);
    else
      hopper::launch<fp16, Shape>(p, stream);
  });
}

}  // namespace nsa::kernels
