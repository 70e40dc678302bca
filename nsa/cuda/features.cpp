#include "nsa/cuda/features.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <utility>

#include "nsa/cuda/architectures.hpp"

namespace nsa {

namespace {

constexpr std::array<std::pair<std::int64_t, std::int64_t>, 4> kWidths = {{{32, 32}, {64, 64}, {128, 128}, {192, 128}}};
constexpr std::array<std::int64_t, 4> kGateWidths = {32, 64, 128, 192};
constexpr std::int64_t kMostHeadsAGroup = 16;  // one group's heads of a token are rows of one tile
constexpr std::int64_t kEight = 8;             // values of one access
constexpr std::int64_t kMostBlocks = 64;       // chosen by a query
constexpr std::int64_t kMostTokens = 8192;     // in them: their numbers lie in shared memory beside the tiles
constexpr std::int64_t kMostPlaces = std::numeric_limits<std::int32_t>::max();  // counted by int inside the kernels

std::string geometry_refusal(const Geometry& g) {
  if (g.d < 1 || g.l % g.d != 0 || g.l_sel % g.d != 0)
    return fmt::format("geometry l={} d={} l'={}; served: d divides l and l'", g.l, g.d, g.l_sel);
  if (g.n_sel < 3 || g.n_sel > kMostBlocks)
    return fmt::format("{} selected blocks a query; served: 3 to {}", g.n_sel, kMostBlocks);
  if (g.l_sel > kMostTokens / g.n_sel)
    return fmt::format("{} selected blocks of {} tokens; served: at most {} tokens a query", g.n_sel, g.l_sel,
                       kMostTokens);
  return "";
}

// A product that leaves int64 is above every limit.
bool above(std::int64_t limit, std::initializer_list<std::int64_t> factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return true;
  return product > limit;
}

// Offsets in bytes are 64 bits wide; what is numbered by int is not.
std::string size_refusal(const Call& call) {
  if (above(kMostPlaces, {call.B, call.S, call.G, call.geometry.n_sel}))
    return fmt::format("B {} x S {} x G {} x n {}; served: at most {} chosen blocks", call.B, call.S, call.G,
                       call.geometry.n_sel, kMostPlaces);
  if (above(kMostPlaces, {call.S, call.Hq, std::max(call.Dk, call.Dv) / kEight}))
    return fmt::format("S {} x {} heads of width {}; served: at most {} x 8 values a batch entry", call.S, call.Hq,
                       std::max(call.Dk, call.Dv), kMostPlaces);
  return "";
}

std::string narrow_refusal(const Call& call) {
  if (auto reason = machine_refusal(call); !reason.empty()) return reason;
  if (call.precision != Precision::bf16)
    return fmt::format("precision is {}; served: bf16 and fp16", to_string(call.precision));
  return "";
}

}  // namespace

std::string machine_refusal(const Call& call) {
  if (!call.cuda) return "device is cpu; served: a CUDA device";
  // Every function of every call asks, and the answer is read out of a text: who was served is served again.
  thread_local std::pair served{-1, -1};
  const std::pair asked{call.cuda_major, call.cuda_minor};
  if (asked == served) return "";
  auto reason = architecture_refusal(compiled_architectures(), asked.first, asked.second);
  if (reason.empty()) served = asked;
  return reason;
}

std::string cuda_refusal(const Call& call, Op op) {
  if (auto reason = narrow_refusal(call); !reason.empty()) return reason;
  if (call.G < 1 || call.Hq % call.G != 0 || call.Hq / call.G < 1 || call.Hq / call.G > kMostHeadsAGroup)
    return fmt::format("{} heads in {} groups; served: 1 to {} heads a group", call.Hq, call.G, kMostHeadsAGroup);
  if (std::find(kWidths.begin(), kWidths.end(), std::pair(call.Dk, call.Dv)) == kWidths.end())
    return fmt::format("d_k {}, d_v {}; served: 32/32, 64/64, 128/128, 192/128", call.Dk, call.Dv);
  if (auto reason = geometry_refusal(call.geometry); !reason.empty()) return reason;
  if (auto reason = size_refusal(call); !reason.empty()) return reason;
  if (op == Op::compress && call.phi == Phi::mlp) return "phi is mlp; served: avg";
  return "";
}

std::string project_refusal(const Call& call) {
  if (auto reason = narrow_refusal(call); !reason.empty()) return reason;
  if (call.G < 1 || call.Hq < 1 || call.Hq % call.G != 0)
    return fmt::format("{} heads in {} groups; served: as many in each", call.Hq, call.G);
  if (std::find(kGateWidths.begin(), kGateWidths.end(), call.Dk) == kGateWidths.end() || call.Dv % kEight != 0)
    return fmt::format("d_k {}, d_v {}; served: d_k 32, 64, 128 or 192, d_v a multiple of 8", call.Dk, call.Dv);
  // The gate's CTA of the widest queries has 109 KB of shared memory, these chips 99 KB.
  if (call.Dk == kGateWidths.back() && call.cuda_major == 8 && (call.cuda_minor == 6 || call.cuda_minor == 9))
    return fmt::format("d_k {} on compute capability 8.{}; served there: up to 128", call.Dk, call.cuda_minor);
  if (above(kMostPlaces, {call.B, call.S, call.G, std::max(call.Dk, call.Dv) / kEight}))
    return fmt::format("B {} x S {} x G {}, width {}; served: at most {} x 8 values of a kind", call.B, call.S, call.G,
                       std::max(call.Dk, call.Dv), kMostPlaces);
  return "";
}

}  // namespace nsa
