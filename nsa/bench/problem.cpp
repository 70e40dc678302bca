#include "nsa/bench/problem.hpp"

#include <algorithm>
#include <stdexcept>

namespace nsa::bench {

namespace {

constexpr double kValue = 2;  // bytes of a bf16
constexpr double kWord = 4;   // of an LSE and of a block number

// sum of floor(x / d) over x in [0, n)
std::int64_t sum_of_floors(std::int64_t n, std::int64_t d) {
  if (n <= 0) return 0;
  const std::int64_t whole = n / d, rest = n % d;
  return d * (whole * (whole - 1) / 2) + rest * whole;
}

Work& operator+=(Work& a, const Work& b) {
  a.flops += b.flops;
  a.bytes += b.bytes;
  return a;
}

struct Sizes {
  double S, Hq, G, Dk, Dv, blocks, h;  // blocks: N_c
};
Sizes sizes_of(const Problem& p) {
  const auto& g = p.geometry;
  const std::int64_t blocks = p.S < g.l ? 0 : (p.S - g.l) / g.d + 1;
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  return {real(p.S), real(p.Hq), real(p.G), real(p.Dk), real(p.Dv), real(blocks), real(p.Hq) / real(p.G)};
}

// Attention over `pairs` pairs a head, `keys` rows of K and V, and `index` bytes of block numbers.
Work attention(const Sizes& s, std::int64_t pairs, double keys, double index, Mode mode) {
  const double p = 2 * s.Hq * static_cast<double>(pairs);
  const double rows = kValue * s.S * s.Hq * (s.Dk + s.Dv) + kWord * s.S * s.Hq;  // q, o, lse
  const double kv = kValue * keys * s.G * (s.Dk + s.Dv);
  Work result{p * (s.Dk + s.Dv), rows + kv + index};
  // Backward: q, o and dout are read, dq is written, K and V and their gradients likewise.
  if (mode == Mode::fwd_bwd)
    result +=
        {p * (3 * s.Dk + 2 * s.Dv), 2 * kValue * s.S * s.Hq * (s.Dk + s.Dv) + kWord * s.S * s.Hq + 2 * kv + index};
  return result;
}

Work compress(const Sizes& s, const Geometry& g, Mode mode) {
  const double passes = mode == Mode::fwd ? 1 : 2, width = s.G * (s.Dk + s.Dv);
  return {passes * s.blocks * static_cast<double>(g.l) * width, passes * kValue * (s.S + s.blocks) * width};
}

// The scores of all visible blocks; sums, top-n and exponentials are not counted.
Work select(const Sizes& s, const Geometry& g, std::int64_t pairs) {
  return {2 * s.Hq * static_cast<double>(pairs) * s.Dk, kValue * s.S * s.Hq * s.Dk + kWord * s.S * s.Hq +
                                                            kValue * s.blocks * s.G * s.Dk +
                                                            kWord * s.S * s.G * static_cast<double>(g.n_sel)};
}

// Three branches are weighted and added; backward a product with dout and a dot product each.
Work combine(const Sizes& s, Mode mode) {
  constexpr double kBranches = 3;
  const double values = s.S * s.Hq * s.Dv, gates = kValue * kBranches * s.S * s.G;
  Work result{2 * kBranches * values, kValue * (kBranches + 1) * values + gates};
  if (mode == Mode::fwd_bwd) result += {3 * kBranches * values, kValue * (2 * kBranches + 1) * values + 2 * gates};
  return result;
}

}  // namespace

Problem problem(const std::string& config, std::int64_t S) {
  Problem p{.config = config, .geometry = {}, .S = S};
  if (config == "a") {
    p.Hq = 12, p.G = 2, p.Dk = 64, p.Dv = 64;
  } else if (config == "b") {
    p.Hq = 64, p.G = 4, p.Dk = 192, p.Dv = 128;
  } else if (config == "c") {
    p.Hq = 64, p.G = 4, p.Dk = 128, p.Dv = 128;
  } else if (config == "d") {
    p = problem("c", S);
    p.config = config;
    p.geometry.l_sel = 128;
  } else {
    throw std::invalid_argument("config '" + config + "': must be a, b, c or d");
  }
  return p;
}

std::string_view to_string(Mode mode) { return mode == Mode::fwd ? "fwd" : "fwd_bwd"; }

std::int64_t compressed_pairs(const Geometry& g, std::int64_t S) {
  // Query t sees floor((t + 1 - l) / d) + 1 blocks from t = l - 1 on.
  const std::int64_t queries = std::max<std::int64_t>(0, S - g.l + 1);
  return sum_of_floors(queries, g.d) + queries;
}

std::int64_t selected_pairs(const Geometry& g, std::int64_t S) {
  // Whole blocks before the current one, min(n - 1, t / l') of them, and t % l' + 1 tokens of the current one.
  const std::int64_t full = std::min(S, (g.n_sel - 1) * g.l_sel);  // queries before which every block is chosen
  const std::int64_t before = sum_of_floors(full, g.l_sel) + (S - full) * (g.n_sel - 1);
  const std::int64_t blocks = S / g.l_sel, rest = S % g.l_sel;
  return before * g.l_sel + blocks * (g.l_sel * (g.l_sel + 1) / 2) + rest * (rest + 1) / 2;
}

std::int64_t window_pairs(const Geometry& g, std::int64_t S) {
  const std::int64_t rising = std::min(S, g.w);
  return rising * (rising + 1) / 2 + (S - rising) * g.w;
}

Work work(Op op, const Problem& p, Mode mode) {
  const Sizes s = sizes_of(p);
  const auto& g = p.geometry;
  const double index = kWord * s.S * s.G * static_cast<double>(g.n_sel);
  switch (op) {
    case Op::compress:
      return compress(s, g, mode);
    case Op::attend_compressed:
      return attention(s, compressed_pairs(g, p.S), s.blocks, 0, mode);
    case Op::select:
      return select(s, g, compressed_pairs(g, p.S));
    case Op::attend_selected:
      return attention(s, selected_pairs(g, p.S), s.S, index, mode);
    case Op::attend_window:
      return attention(s, window_pairs(g, p.S), s.S, 0, mode);
    case Op::combine:
      return combine(s, mode);
    case Op::attend: {
      Work sum;
      for (const Op part : kAttendParts) {
        const Work one = work(part, p, mode);
        sum.flops += one.flops;
        sum.bytes += one.bytes;
      }
      return sum;
    }
  }
  throw std::logic_error("an op without a count");
}

Work step_work(const Problem& p) {
  const Sizes s = sizes_of(p);
  const Geometry& g = p.geometry;
  const std::int64_t before = std::min(g.n_sel - 1, (p.S - 1) / g.l_sel);  // whole blocks before the current one
  const auto selected = static_cast<double>(before * g.l_sel + (p.S - 1) % g.l_sel + 1);
  const double keys = s.blocks + selected + static_cast<double>(std::min(g.w, p.S));
  const double token = kValue * s.Hq * (s.Dk + s.Dv) + kWord * s.G * static_cast<double>(3 + g.n_sel);  // gates, blocks
  return {2 * s.Hq * keys * (s.Dk + s.Dv), kValue * keys * s.G * (s.Dk + s.Dv) + token};
}

std::optional<Peaks> measured_peaks(const std::string& gpu) {
  if (gpu == "NVIDIA H200") return Peaks{790e12, 4.3e12};
  return std::nullopt;
}

double roof_seconds(const Work& work, const Peaks& peaks) {
  return std::max(work.flops / peaks.flops_per_s, work.bytes / peaks.bytes_per_s);
}

}  // namespace nsa::bench
