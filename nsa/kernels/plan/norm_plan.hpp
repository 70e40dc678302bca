// How the norm's kernels (layer/norm.cu) are cut, by the rows, their width and the device alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "nsa/kernels/norm.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

// The warps that own a row, of which a thread has so many chunks of eight columns.
struct NormTeam {
  int warps, chunks;
  [[nodiscard]] constexpr int columns() const { return warps * 32 * chunks * 8; }  // at most
  // Of a CTA.
  [[nodiscard]] constexpr int teams() const { return warps == 1 ? 8 : 1; }
  [[nodiscard]] constexpr int threads() const { return teams() * warps * 32; }
};
// Those that are compiled, ascending.
inline constexpr NormTeam kNormTeams[] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {4, 2}, {4, 4}, {8, 4}};
// The first that holds a row.
[[nodiscard]] constexpr NormTeam norm_team(int width) {
  for (const NormTeam& team : kNormTeams)
    if (width <= team.columns()) return team;
  return kNormTeams[std::size(kNormTeams) - 1];
}
static_assert(norm_team(kWidestNorm).columns() == kWidestNorm);

struct NormBackwardPlan {
  // Threads of an SM, which have 128 registers each; rows of a team, below which fewer CTAs do.
  static constexpr int kThreadsOfSm = 512, kLeastRows = 2;

  NormTeam team;
  std::int64_t ctas = 0;       // which walk over the rows; all are on their SMs at once
  std::int64_t workspace = 0;  // floats, for the weight's gradient: a part of each CTA
  bool early = false;          // what adds the parts begins while the last of them are written
};
[[nodiscard]] inline NormBackwardPlan plan_norm_backward(std::int64_t rows, int width, const Device& device) {
  NormBackwardPlan plan{norm_team(width)};
  const std::int64_t most = std::int64_t{device.sm_count} * (NormBackwardPlan::kThreadsOfSm / plan.team.threads());
  const std::int64_t rows_of_cta = std::int64_t{plan.team.teams()} * NormBackwardPlan::kLeastRows;
  plan.ctas = std::min(most, (rows + rows_of_cta - 1) / rows_of_cta);
  plan.workspace = plan.ctas * width;
  plan.early = plan.ctas > 0 && device.hopper;
  return plan;
}

}  // namespace nsa::kernels
