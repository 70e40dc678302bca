#include "nsa/kernels/device/early.cuh"
#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/plan/select_plan.hpp"
#include "nsa/kernels/select/sm80.cuh"
#include "nsa/kernels/select/sm90.hpp"

namespace nsa::kernels {

namespace {

template <typename Plan>
void launch(Select p, cudaStream_t stream) {
  p.scale *= kLog2E;  // the kernel's powers are of two
  const Overlap overlap{p.geometry.l_sel / p.geometry.d, p.geometry.l / p.geometry.d};
  const std::int64_t tiles = (p.S + Plan::kTokens - 1) / Plan::kTokens;
  const auto kernel = select_kernel<Plan>;
  grant_shared(kernel, Plan::kBytes);
  kernels::launch(false, kernel, static_cast<unsigned>(tiles * p.B * p.G), Plan::kThreads, Plan::kBytes, stream, p,
                  overlap);
  check_launch("select_blocks");
}

template <typename T, bool Trapezoid, int Dk>
void launch_heads(const Select& p, int pairs, cudaStream_t stream) {
  if (pairs == 3) return launch<SelectTile<T, Dk, 3, Trapezoid>>(p, stream);
  if (pairs == 4) return launch<SelectTile<T, Dk, 4, Trapezoid>>(p, stream);
  return launch<SelectTile<T, Dk, 8, Trapezoid>>(p, stream);
}

template <typename T, bool Trapezoid>
void launch_width(const Select& p, int pairs, cudaStream_t stream) {
  switch (p.Dk) {
    case 32:
      return launch_heads<T, Trapezoid, 32>(p, pairs, stream);
    case 64:
      return launch_heads<T, Trapezoid, 64>(p, pairs, stream);
    case 128:
      return launch_heads<T, Trapezoid, 128>(p, pairs, stream);
    default:
      return launch_heads<T, Trapezoid, 192>(p, pairs, stream);
  }
}

}  // namespace

void select_blocks(const Select& p, const SelectPlan& plan, cudaStream_t stream) {
  if (plan.launches == 0) return;
  if (plan.variant == SelectVariant::wgmma) return select_blocks_hopper(p, plan, stream);
  const Geometry& g = p.geometry;
  const bool paper = g.l == 2 * g.d && g.l_sel == 4 * g.d;
  if (p.storage == Storage::bf16)
    return paper ? launch_width<bf16, false>(p, plan.pairs, stream) : launch_width<bf16, true>(p, plan.pairs, stream);
  return paper ? launch_width<fp16, false>(p, plan.pairs, stream) : launch_width<fp16, true>(p, plan.pairs, stream);
}

}  // namespace nsa::kernels
