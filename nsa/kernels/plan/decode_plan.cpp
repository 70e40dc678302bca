#include "nsa/kernels/plan/decode_plan.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "nsa/kernels/plan/decode_layout.hpp"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

namespace {

constexpr int kSharedMost = 160 << 10;  // of a CTA, bytes: what an A100 has
constexpr int kMostPairs = 65535;       // of a grid's second dimension

int tiles_of_keys(int keys, int tile) { return (keys + tile - 1) / tile; }

DecodeCuts cut(const Decode& p) {
  const Geometry& g = p.geometry;
  DecodeCuts cuts;
  const int current = cuts.current = p.t / g.l_sel;
  cuts.block_keys = g.l_sel / g.d;
  cuts.reach = g.l / g.d;
  cuts.heads = p.Hq / p.G;
  cuts.tile_blocks = kDecodeKeys / cuts.block_keys;
  cuts.compressed = tiles_of_keys(p.N, cuts.tile_keys());
  cuts.window = tiles_of_keys(p.window, kDecodeKeys);
  cuts.block_tiles = tiles_of_keys(g.l_sel, kDecodeKeys);
  if (current >= g.n) {  // else every block is taken, in one piece
    cuts.first = cuts.block_tiles;
    cuts.last_token = (current - 1) * g.l_sel;
    cuts.wanted = g.n - 3;
    cuts.chosen = cuts.wanted * cuts.block_tiles;
  }
  cuts.last = tiles_of_keys(p.t + 1 - cuts.last_token, kDecodeKeys);
  return cuts;
}

std::string said(const char* what, int got) { return std::string(what) + ", got " + std::to_string(got); }

}  // namespace

std::string_view to_string(DecodeVariant variant) {
  switch (variant) {
    case DecodeVariant::in_order:
      return "decoding by launches in order";
    case DecodeVariant::early:
      return "decoding by early launches";
  }
  return "?";
}

std::string decode_refusal(const Decode& p) {
  const Geometry& g = p.geometry;
  const bool same = p.Dk == p.Dv && (p.Dk == 32 || p.Dk == 64 || p.Dk == 128);
  if (!same && !(p.Dk == 192 && p.Dv == 128))
    return "d_k " + std::to_string(p.Dk) + ", d_v " + std::to_string(p.Dv) + "; served: 32/32, 64/64, 128/128, 192/128";
  if (p.G < 1 || p.Hq % p.G != 0 || p.Hq / p.G < 1 || p.Hq / p.G > kDecodeHeads)
    return std::to_string(p.Hq) + " heads in " + std::to_string(p.G) + " groups; served: 1 to 16 heads a group";
  if (g.n < 3 || g.n > kMostBlocks) return said("n; served: 3 to 64", g.n);
  if (g.d < 1 || g.l < g.d || g.l % g.d != 0 || g.l_sel % g.d != 0 || g.l > g.l_sel)
    return said("d; served: d divides l and l', l <= l'", g.d);
  if (g.l_sel / g.d > kDecodeKeys) return said("l'/d; served: up to 128", g.l_sel / g.d);
  if (p.t < 0 || p.N < 0 || p.window < 1) return said("t; served: 0 and more, with keys in the window", p.t);
  if (std::int64_t{p.B} * p.G > kMostPairs)
    return said("rows of the batch times groups; served: up to 65535", p.B * p.G);
  // Counted in tokens first, so that nothing overflows.
  if (p.t / g.l_sel > kSharedMost / 4 || p.N / kDecodeKeys > kSharedMost / 64 ||
      attend_shared(p, cut(p)).bytes > kSharedMost)
    return said("token; served: while its scores fit the shared memory", p.t);
  if (cut(p).parts() > kMostPairs) return said("tiles of a row of the batch; served: up to 65535", cut(p).parts());
  return "";
}

DecodePlan plan_decode(const Decode& p, const Device& device) {
  if (const std::string refusal = decode_refusal(p); !refusal.empty())
    throw std::invalid_argument("decode: " + refusal);
  DecodePlan plan;
  plan.cuts = cut(p);
  plan.variant = device.hopper ? DecodeVariant::early : DecodeVariant::in_order;
  plan.workspace = DecodeWork(p, plan.cuts).bytes;
  plan.launches = p.B == 0 ? 0 : plan.cuts.chosen > 0 ? 4 : 2;
  plan.scores_bytes = DecodeShared(p.Dk, 0, kDecodeKeys, 0).bytes;
  plan.attend_bytes = attend_shared(p, plan.cuts).bytes;
  plan.join_bytes = plan.cuts.parts() * 4;
  plan.why = device.hopper ? "the device lets a kernel begin early" : "the device lets no kernel begin early";
  plan.device = device;
  return plan;
}

}  // namespace nsa::kernels
