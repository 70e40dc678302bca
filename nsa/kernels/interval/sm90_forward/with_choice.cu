#include "nsa/kernels/interval/sm90_forward/with_choice.cuh"

#include <string>

#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/tensor_map.hpp"
#include "nsa/kernels/interval/sm90.hpp"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {
namespace hopper {
namespace {

template <typename T>
void launch(const AttentionForward& p, int* blocks, cudaStream_t stream) {
  using S = WithChoice;
  const auto kernel = forward_and_select_kernel<T>;
  if (const cudaError_t error = grant_shared(kernel, S::kSharedBytes); error != cudaSuccess)
    throw LaunchError(std::string("forward_and_select_hopper: ") + cudaGetErrorString(error));
  const auto k = tensor_map(p.k, p.storage, p.B, p.N, p.G, S::D, S::kHalf);
  const auto v = tensor_map(p.v, p.storage, p.B, p.N, p.G, S::D, S::kHalf);
  const WithChoiceWork work(p, blocks);
  const dim3 ctas(static_cast<unsigned>(p.G), static_cast<unsigned>(p.B), static_cast<unsigned>(work.tiles));
  kernels::launch(false, kernel, ctas, S::kThreads, S::kSharedBytes, stream, work, k, v);
  check_launch("forward_and_select_hopper");
}

}  // namespace
}  // namespace hopper

std::string_view forward_and_select_hopper_refusal(const AttentionForward& p) {
  using S = hopper::WithChoice;
  const Geometry& g = p.geometry;
  if (p.mask != Mask::compressed) return "not the compressed branch";
  if (p.Dk != S::D || p.Dv != S::D) return "the widths are not 64/64";
  if (g.l != 2 * g.d || g.l_sel != 4 * g.d) return "not the paper's proportions (l = 2d, l' = 4d)";
  if (p.packed.first_token) return "a packed batch";
  if (p.S <= 0 || p.B <= 0 || p.G <= 0 || p.Hq < p.G || p.Hq % p.G != 0 || g.d <= 0) return "there are no rows";
  if (p.Hq / p.G > 16) return "more than 16 heads a group";
  if (p.N < 1 || p.N > S::kKeys || (p.S - g.l) / g.d + 1 > S::kKeys) return "the compressed keys are not one tile";
  if (p.B > 65535 || (p.S - 1) / (64 / (p.Hq / p.G)) >= 65535) return "more batch entries or tiles than a grid has";
  if (hopper::expanded(p.k, p.B, p.N, p.G) || hopper::expanded(p.v, p.B, p.N, p.G)) return "K or V is expanded";
  if (g.n < 3 || g.n > kMostBlocks) return "n is not 3 to 64";
  return "";
}

void forward_and_select_hopper(const AttentionForward& p, int* blocks, cudaStream_t stream) {
  if (p.storage == Storage::bf16)
    hopper::launch<bf16>(p, blocks, stream);
  else
    hopper::launch<fp16>(p, blocks, stream);
}

}  // namespace nsa::kernels
