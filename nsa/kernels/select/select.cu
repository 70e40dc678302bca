#include <stdexcept>
#include <string>

#include "nsa/kernels/select/sm80.cuh"
#include "nsa/kernels/select/sm90.hpp"

namespace nsa::kernels {

namespace {

template <typename Plan>
void launch(Select p, cudaStream_t stream) {
  p.scale *= 1.44269504088896341f;  // log2(e): the kernel's powers are of two
  const Overlap overlap{p.geometry.l_sel / p.geometry.d, p.geometry.l / p.geometry.d};
  const std::int64_t tiles = (p.S + Plan::kTokens - 1) / Plan::kTokens;
  const auto kernel = select_kernel<Plan>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::kBytes);
  kernel<<<static_cast<unsigned>(tiles * p.B * p.G), Plan::kThreads, Plan::kBytes, stream>>>(p, overlap);
  check_launch("select_blocks");
}

template <typename T, bool Trapezoid, int Dk>
void launch_heads(const Select& p, cudaStream_t stream) {
  const int pairs = (p.Hq / p.G + 1) / 2;
  if (pairs <= 3) return launch<SelectPlan<T, Dk, 3, Trapezoid>>(p, stream);
  if (pairs <= 4) return launch<SelectPlan<T, Dk, 4, Trapezoid>>(p, stream);
  return launch<SelectPlan<T, Dk, 8, Trapezoid>>(p, stream);
}

template <typename T, bool Trapezoid>
void launch_width(const Select& p, cudaStream_t stream) {
  switch (p.Dk) {
    case 32:
      return launch_heads<T, Trapezoid, 32>(p, stream);
    case 64:
      return launch_heads<T, Trapezoid, 64>(p, stream);
    case 128:
      return launch_heads<T, Trapezoid, 128>(p, stream);
    default:
      return launch_heads<T, Trapezoid, 192>(p, stream);
  }
}

void demand(bool holds, const char* what, int got) {
  if (!holds) throw std::invalid_argument(std::string("select_blocks: ") + what + ", got " + std::to_string(got));
}

}  // namespace

void select_blocks(const Select& p, cudaStream_t stream) {
  const Geometry& g = p.geometry;
  demand(p.Dk == 32 || p.Dk == 64 || p.Dk == 128 || p.Dk == 192, "Dk is 32, 64, 128 or 192", p.Dk);
  demand(p.G > 0 && p.Hq % p.G == 0 && p.Hq / p.G >= 1 && p.Hq / p.G <= 16, "1 to 16 heads a group", p.Hq);
  demand(g.n >= 3 && g.n <= kMostBlocks, "n is 3 to 64", g.n);
  demand(g.d > 0 && g.l % g.d == 0 && g.l >= g.d, "d divides l", g.l);
  demand(g.l_sel % g.d == 0 && g.l <= g.l_sel, "d divides l' and l <= l'", g.l_sel);
  if (p.B == 0 || p.S == 0) return;
  if (p.hopper && select_blocks_hopper_supports(p)) return select_blocks_hopper(p, stream);
  const bool paper = g.l == 2 * g.d && g.l_sel == 4 * g.d;
  if (p.storage == Storage::bf16)
    return paper ? launch_width<bf16, false>(p, stream) : launch_width<bf16, true>(p, stream);
  return paper ? launch_width<fp16, false>(p, stream) : launch_width<fp16, true>(p, stream);
}

}  // namespace nsa::kernels
