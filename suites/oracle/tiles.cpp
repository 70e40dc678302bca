#include "suites/oracle/tiles.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/extent.hpp"

namespace suites::oracle {

namespace {

// Rows, and values, in each tile, [1,tiles,1]: the last one may have fewer.
at::Tensor tile_rows(const at::Tensor& t) {
  const std::int64_t S = t.size(1), tiles = (S + kTileRows - 1) / kTileRows;
  at::Tensor rows = at::full({tiles}, kTileRows, t.options());
  rows[tiles - 1] = S - (tiles - 1) * kTileRows;
  return rows.view({1, tiles, 1});
}
at::Tensor tile_sizes(const at::Tensor& t) { return tile_rows(t) * (t.dim() > 3 ? t.size(3) : 1); }

// Root mean squares by tile: [B,S,H,..] -> [B,tiles,H].
at::Tensor tile_rms(const at::Tensor& t) {
  const std::int64_t B = t.size(0), S = t.size(1), H = t.size(2), tiles = (S + kTileRows - 1) / kTileRows;
  const at::Tensor rows = t.reshape({B, S, H, -1}).square().sum(-1);  // [B,S,H]
  const at::Tensor whole = at::constant_pad_nd(rows, {0, 0, 0, tiles * kTileRows - S});
  return (whole.view({B, tiles, kTileRows, H}).sum(2) / tile_sizes(t)).sqrt();
}

// Of the reference's RMS. Inside a kernel of 16-bit storage P is rounded before it is multiplied, which the naive
// computation does not do; a sum in fp32 is rounded once a term.
double allowance(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-11;
  if (dtype == at::kFloat) return 16 * std::numeric_limits<float>::epsilon();
  return 1.0 / 128;
}

}  // namespace

bool TileVerdict::good() const { return !missing && shapes_agree && harness::at_most(error, bound); }

harness::Json TileVerdict::evidence() const {
  return {{"batch", batch},
          {"rows", {row, row + kTileRows - 1}},
          {"head", head},
          {"rms_error", reports::number(error)},
          {"rms_naive_error", reports::number(naive_error)},
          {"rms_reference", reports::number(scale)},
          {"bound", reports::number(bound)},
          {"where", where}};
}

TileVerdict judge_tiles(const Candidate& candidate, at::ScalarType storage, bool of_queries) {
  TileVerdict verdict;
  const at::Tensor &value = candidate.value, &reference = candidate.reference;
  verdict.missing = !value.defined();
  verdict.shapes_agree = !verdict.missing && value.sizes() == reference.sizes();
  if (!verdict.shapes_agree || value.numel() == 0) return verdict;
  const at::Tensor wanted = reference.to(at::kDouble);
  const at::Tensor error = tile_rms(value.detach().to(at::kDouble) - wanted),
                   naive = tile_rms(candidate.naive.detach().to(at::kDouble) - wanted), scale = tile_rms(wanted);
  // A tile with hardly anything in it is held against a tenth of its head's average, or of a small number: inputs are
  // of unit size, and what cancels exactly in the reference leaves a rounding elsewhere (dQ of a lone token is 0).
  const double unit = c10::isReducedFloatingType(storage) ? 0.03 : 0.1;
  const at::Tensor least = (scale.square().mean(1, /*keepdim=*/true).sqrt() / 10).clamp_min(unit);
  const at::Tensor scatter = 1 + 4 / tile_sizes(wanted).sqrt();
  at::Tensor bound = scatter * (2 * naive + allowance(storage) * at::maximum(scale, least));
  if (of_queries && c10::isReducedFloatingType(storage)) {
    const at::Tensor of_heads = at::maximum(naive, naive.square().mean(2, /*keepdim=*/true).sqrt()),
                     lone = 2 * (1 / tile_rows(wanted).sqrt() - 1 / std::sqrt(static_cast<double>(kTileRows)));
    bound = bound + 2 * scatter * (of_heads - naive) + 2 * lone * of_heads;
  }
  const at::Tensor excess = at::nan_to_num(error / bound.clamp_min(std::numeric_limits<double>::min()),
                                           std::numeric_limits<double>::infinity());
  const std::int64_t worst = excess.argmax().item<std::int64_t>(), tiles = error.size(1), heads = error.size(2);
  verdict.batch = worst / (tiles * heads);
  verdict.row = worst / heads % tiles * kTileRows;
  verdict.head = worst % heads;
  const auto at_worst = [&](const at::Tensor& t) { return t.flatten()[worst].item<double>(); };
  verdict.error = at_worst(error);
  verdict.naive_error = at_worst(naive);
  verdict.scale = at_worst(scale);
  verdict.bound = at_worst(bound);
  if (!verdict.good()) {
    constexpr double kFarthest = 4;  // single values scatter more than a tile's RMS
    verdict.where = extent_of_error(value, reference, kFarthest * verdict.bound);
    if (verdict.where.empty()) verdict.where = "by little";
  }
  return verdict;
}

bool expect_good(harness::Context& context, const TileVerdict& verdict, const Subjects& what) {
  const std::string name = what.gradient ? "gradient of " + what.output : what.output;
  harness::Json evidence = verdict.evidence();
  evidence["op"] = what.op;
  evidence[what.gradient ? "gradient" : "output"] = what.output;
  if (verdict.missing || !verdict.shapes_agree)
    return context.expect(name + ": exists in the reference's shape", false,
                          fmt::format("{}: there is no {} of the reference's shape", what.op, name),
                          what.gradient ? codes::kGraphBreak : codes::kOutputContract, evidence);
  if (verdict.bound > 0) context.metric(what.op + "." + name + " rms error/bound", verdict.error / verdict.bound, "");
  return context.expect(
      what.op + ": " + name + ": RMS by tile", verdict.good(),
      fmt::format("{}: {} is off by {:.3g} RMS in rows {} to {} of head {}, where it is {:.3g}; allowed {:.3g}",
                  what.op, name, verdict.error, verdict.row, verdict.row + kTileRows - 1, verdict.head, verdict.scale,
                  verdict.bound),
      what.gradient ? codes::kGradientBudget : codes::kOutputBudget, evidence);
}

}  // namespace suites::oracle
