#include "nsa/kernels/plan/select_plan.hpp"

#include <stdexcept>
#include <string>

#include "nsa/kernels/device/tensor_map.hpp"

namespace nsa::kernels {

namespace {

void demand(bool holds, const char* what, int got) {
  if (!holds) throw std::invalid_argument(std::string("select_blocks: ") + what + ", got " + std::to_string(got));
}

void check(const Select& p) {
  const Geometry& g = p.geometry;
  demand(p.Dk == 32 || p.Dk == 64 || p.Dk == 128 || p.Dk == 192, "Dk is 32, 64, 128 or 192", p.Dk);
  demand(p.G > 0 && p.Hq % p.G == 0 && p.Hq / p.G >= 1 && p.Hq / p.G <= 16, "1 to 16 heads a group", p.Hq);
  demand(g.n >= 3 && g.n <= kMostBlocks, "n is 3 to 64", g.n);
  demand(g.d > 0 && g.l % g.d == 0 && g.l >= g.d, "d divides l", g.l);
  demand(g.l_sel % g.d == 0 && g.l <= g.l_sel, "d divides l' and l <= l'", g.l_sel);
}

// Not the number of tokens: what comes later would change who chooses for a token.
std::string_view why_no_wgmma(const Select& p, const Device& device) {
  const Geometry& g = p.geometry;
  if (!device.hopper) return "the device has no wgmma";
  if (g.l != 2 * g.d || g.l_sel != 4 * g.d) return "not the paper's proportions (l = 2d, l' = 4d)";
  if (p.Dk == 32) return "width 32";
  if (p.N <= 0) return "no compressed keys";
  if (hopper::expanded(p.k_cmp, p.B, p.N, p.G)) return "the compressed keys are expanded";
  // Tiles of 16 tokens at least, counted in an int.
  if (std::int64_t{p.S} * p.B * p.G >= std::int64_t{1} << 31) return "2^31 tokens and groups";
  return "";
}

// The next number of pairs of heads that is compiled.
int pairs_of(const Select& p, SelectVariant variant) {
  const int pairs = (p.Hq / p.G + 1) / 2;
  for (const int compiled : {3, 4, 6})
    if (pairs <= compiled && (compiled != 6 || variant == SelectVariant::wgmma)) return compiled;
  return 8;
}

}  // namespace

std::string_view to_string(SelectVariant variant) {
  switch (variant) {
    case SelectVariant::mma_sync:
      return "blocks by mma.sync";
    case SelectVariant::wgmma:
      return "blocks by wgmma";
  }
  return "?";
}

SelectPlan plan_select(const Select& p, const Device& device) {
  check(p);
  const std::string_view refusal = why_no_wgmma(p, device);
  SelectPlan plan;
  plan.variant = refusal.empty() ? SelectVariant::wgmma : SelectVariant::mma_sync;
  plan.pairs = pairs_of(p, plan.variant);
  plan.launches = p.B == 0 || p.S == 0 ? 0 : 1;
  plan.why = refusal.empty() ? "the device has wgmma" : refusal;
  plan.device = device;
  return plan;
}

}  // namespace nsa::kernels
