#include "nsa/kernels/interval/sm90_forward/forward.cuh"

#include <algorithm>
#include <string>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/interval/sm90.hpp"

namespace nsa::kernels {
namespace hopper {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw LaunchError(std::string("attention_forward_hopper: ") + cudaGetErrorString(error));
}

template <typename T, bool Combines, typename S>
void launch(const AttentionForward& p, int sm_count, const Combine& sum, cudaStream_t stream) {
  const auto kernel = attention_forward_kernel<T, Combines, S>;
  check(grant_shared(kernel, S::kSharedBytes));
  // Without keys nothing is copied, but a description needs a tensor: any.
  const Rows k = p.N > 0 ? p.k : p.q, v = p.N > 0 ? p.v : p.q;
  const auto k_map = tensor_map(k, p.storage, p.B, std::max(p.N, 1), p.G, S::Dk, S::kKeys);
  const auto v_map = tensor_map(v, p.storage, p.B, std::max(p.N, 1), p.G, S::Dv, S::kKeys);
  const int rows = p.S * (p.Hq / p.G), tiles = (rows + S::kRows - 1) / S::kRows * p.B * p.G;
  const int ctas = std::min(tiles, sm_count);
  kernels::launch(false, kernel, ctas, S::kThreads, S::kSharedBytes, stream, p, sum, k_map, v_map);
  check_launch("attention_forward_hopper");
}

// What fits beside the accumulators in 160 registers, measured fastest. A window of 512 and a tile's own tokens are
// five steps of 112 keys.
using Narrow = Shape<64, 64, 144, 4, 2>;
using NarrowWindow = Shape<64, 64, 112, 4, 2>;
using Square = Shape<128, 128, 112, 2, 2>;
using Wide = Shape<192, 128, 112, 2, 1>;

template <typename T, bool Combines>
void launch(const AttentionForward& p, int sm_count, const Combine& sum, cudaStream_t stream) {
  if (p.Dk == 64 && p.mask == Mask::window) return launch<T, Combines, NarrowWindow>(p, sm_count, sum, stream);
  if constexpr (!Combines)
    if (p.Dk == 64) return launch<T, Combines, Narrow>(p, sm_count, sum, stream);
  if (p.Dk == 128) return launch<T, Combines, Square>(p, sm_count, sum, stream);
  return launch<T, Combines, Wide>(p, sm_count, sum, stream);
}

}  // namespace
}  // namespace hopper

std::string_view attention_forward_hopper_refusal(const AttentionForward& p) {
  if (p.mask == Mask::selected) return "the selected branch is no interval";
  const bool widths = (p.Dk == 64 && p.Dv == 64) || (p.Dk == 128 && p.Dv == 128) || (p.Dk == 192 && p.Dv == 128);
  if (!widths) return "the widths are not 64/64, 128/128 or 192/128";
  if (p.S <= 0 || p.B <= 0 || p.G <= 0 || p.Hq % p.G != 0) return "there are no rows";
  if (static_cast<std::int64_t>(p.S) * (p.Hq / p.G) >= std::int64_t{1} << 27) return "2^27 rows of a group or more";
  if (hopper::expanded(p.k, p.B, p.N, p.G) || hopper::expanded(p.v, p.B, p.N, p.G)) return "K or V is expanded";
  return "";
}

void attention_forward_hopper(const AttentionForward& p, int sm_count, cudaStream_t stream) {
  if (p.storage == Storage::bf16)
    hopper::launch<bf16, false>(p, sm_count, {}, stream);
  else
    hopper::launch<fp16, false>(p, sm_count, {}, stream);
}

void window_and_combine_hopper(const AttentionForward& p, int sm_count, const Combine& sum, cudaStream_t stream) {
  if (p.storage == Storage::bf16)
    hopper::launch<bf16, true>(p, sm_count, sum, stream);
  else
    hopper::launch<fp16, true>(p, sm_count, sum, stream);
}

}  // namespace nsa::kernels
