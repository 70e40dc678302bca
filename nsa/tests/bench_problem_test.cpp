#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "nsa/bench/subject.hpp"

namespace nsa::bench {
namespace bench_problem_test {

constexpr Geometry kPaper{};
constexpr Geometry kSmall{.l = 4, .d = 2, .l_sel = 8, .n_sel = 3, .w = 6};
constexpr Geometry kNoOverlap{.l = 8, .d = 8, .l_sel = 8, .n_sel = 4, .w = 1};

struct Pairs {
  std::int64_t compressed = 0, selected = 0, window = 0;
  bool operator==(const Pairs&) const = default;
};

// Every query asks every key.
Pairs by_hand(const Geometry& g, std::int64_t S) {
  Pairs pairs;
  for (std::int64_t t = 0; t < S; ++t) {
    for (std::int64_t block = 0; block * g.d + g.l <= S; ++block) pairs.compressed += block * g.d + g.l - 1 <= t;
    const std::int64_t current = t / g.l_sel, chosen = std::min(g.n_sel, current + 1);
    for (std::int64_t block = current - chosen + 1; block <= current; ++block)
      for (std::int64_t key = block * g.l_sel; key < (block + 1) * g.l_sel; ++key) pairs.selected += key <= t;
    for (std::int64_t key = 0; key <= t; ++key) pairs.window += key > t - g.w;
  }
  return pairs;
}

TEST(BenchProblem, PairsAreThoseOfCountingThem) {
  for (const Geometry& g : {kPaper, kSmall, kNoOverlap})
    for (const std::int64_t S : {1, 3, 4, 7, 8, 9, 31, 32, 33, 48, 63, 64, 65, 200, 959, 960, 1100})
      EXPECT_EQ((Pairs{compressed_pairs(g, S), selected_pairs(g, S), window_pairs(g, S)}), by_hand(g, S))
          << "S " << S << " l " << g.l;
}

const Subject& subject(const std::string& name) {
  const auto all = subjects();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Subject& s) { return s.name == name; });
  if (found == all.end()) throw std::logic_error("no subject " + name);
  return *found;
}

// Written down once by hand from the pairs: 2 FLOPs for each of Dk and Dv values of a pair and head; backward two and a
// half times as much when Dk = Dv.
TEST(BenchProblem, FlopsOfAttention) {
  const Problem c = problem("c", 8192);
  const double pairs = static_cast<double>(window_pairs(c.geometry, 8192));
  EXPECT_DOUBLE_EQ(work(Op::attend_window, c, Mode::fwd).flops, 2 * 64 * pairs * 256);
  EXPECT_DOUBLE_EQ(work(Op::attend_window, c, Mode::fwd_bwd).flops, 3.5 * 2 * 64 * pairs * 256);
  const Problem b = problem("b", 8192);
  EXPECT_DOUBLE_EQ(work(Op::attend_window, b, Mode::fwd).flops, 2 * 64 * pairs * 320);
  EXPECT_DOUBLE_EQ(work(Op::attend_window, b, Mode::fwd_bwd).flops, 2 * 64 * pairs * (320 + 832));
  EXPECT_DOUBLE_EQ(work(Op::select, b, Mode::fwd).flops,
                   2 * 64 * static_cast<double>(compressed_pairs(b.geometry, 8192)) * 192);
  EXPECT_DOUBLE_EQ(work(subject("nsa"), c, Mode::fwd).flops,
                   work(subject("compressed"), c, Mode::fwd).flops + work(subject("select"), c, Mode::fwd).flops +
                       work(subject("selected"), c, Mode::fwd).flops + work(subject("window"), c, Mode::fwd).flops +
                       work(subject("combine"), c, Mode::fwd).flops);
}

TEST(BenchProblem, BytesAreEveryInputAndOutputOnce) {
  const Problem a = problem("a", 2048);
  const double q = 2048.0 * 12 * 64 * 2, k = 2048.0 * 2 * 64 * 2, lse = 2048.0 * 12 * 4, gates = 2048.0 * 2 * 3 * 2;
  const double blocks = 2048.0 * 2 * 16 * 4, k_cmp = 127.0 * 2 * 64 * 2;
  EXPECT_DOUBLE_EQ(work(Op::compress, a, Mode::fwd).bytes, 2 * (k + k_cmp));
  EXPECT_DOUBLE_EQ(work(Op::attend_window, a, Mode::fwd).bytes, 2 * q + 2 * k + lse);
  EXPECT_DOUBLE_EQ(work(Op::attend_compressed, a, Mode::fwd).bytes, 2 * q + 2 * k_cmp + lse);
  EXPECT_DOUBLE_EQ(work(Op::attend_selected, a, Mode::fwd).bytes, 2 * q + 2 * k + lse + blocks);
  EXPECT_DOUBLE_EQ(work(Op::select, a, Mode::fwd).bytes, q + k_cmp + lse + blocks);
  EXPECT_DOUBLE_EQ(work(Op::combine, a, Mode::fwd).bytes, 4 * q + gates);
  // Backward reads q, o, dout, k, v, lse and writes dq, dk, dv; combine reads and writes three outputs, dout and gates.
  EXPECT_DOUBLE_EQ(work(Op::attend_window, a, Mode::fwd_bwd).bytes, 6 * q + 6 * k + 2 * lse);
  EXPECT_DOUBLE_EQ(work(Op::combine, a, Mode::fwd_bwd).bytes, (4 + 7) * q + 3 * gates);
}

// c over 65,536 tokens: 4095 compressed keys, 16 blocks of 64 and a window of 512, 2 KB each with its value.
TEST(BenchProblem, BytesOfAStepOfDecoding) {
  const double keys = 4095 + 1024 + 512, token = 64 * 256 * 2 + 4 * 4 * 19;
  EXPECT_DOUBLE_EQ(step_work(problem("c", 65536)).bytes, keys * 4 * 256 * 2 + token);
  EXPECT_DOUBLE_EQ(step_work(problem("c", 65536)).flops, 2 * 64 * keys * 256);
  EXPECT_DOUBLE_EQ(step_work(problem("c", 65537)).bytes, (keys - 63) * 4 * 256 * 2 + token);
  EXPECT_DOUBLE_EQ(step_work(problem("a", 1)).bytes, 2 * 2 * 128 * 2 + 12 * 128 * 2 + 4 * 2 * 19);
  const Peaks peaks = measured_peaks("NVIDIA H200").value();
  EXPECT_NEAR(1e6 * roof_seconds(subject("decode"), problem("c", 65536), Mode::fwd, peaks), 2.69, 0.01);
  EXPECT_NE(refusal(subject("decode"), Backend::flash, problem("c", 2048), Mode::fwd, {9, 0}), "");
}

TEST(BenchProblem, TheRoofIsTheSlowerOfArithmeticAndMemory) {
  const Peaks peaks{.flops_per_s = 100, .bytes_per_s = 10};
  EXPECT_DOUBLE_EQ(roof_seconds(Work{.flops = 200, .bytes = 10}, peaks), 2);
  EXPECT_DOUBLE_EQ(roof_seconds(Work{.flops = 200, .bytes = 30}, peaks), 3);
}

// The roofs of the survey of kernels, in ms, on an H200.
TEST(BenchProblem, RoofsOfTheWhole) {
  struct Row {
    const char* config;
    std::int64_t S;
    double fwd, bwd;
  };
  for (const Row& row : {Row{"a", 8192, 0.071, 0.156},
                         {"a", 65536, 1.27, 2.43},
                         {"c", 2048, 0.158, 0.342},
                         {"c", 32768, 4.62, 9.42},
                         {"c", 65536, 13.4, 25.9},
                         {"b", 65536, 17.3, 33.1}}) {
    const Problem p = problem(row.config, row.S);
    const Peaks peaks = measured_peaks("NVIDIA H200").value();
    const double fwd = 1e3 * roof_seconds(subject("nsa"), p, Mode::fwd, peaks);
    const double both = 1e3 * roof_seconds(subject("nsa"), p, Mode::fwd_bwd, peaks);
    EXPECT_NEAR(fwd, row.fwd, 0.03 * row.fwd) << row.config << " " << row.S;
    EXPECT_NEAR(both - fwd, row.bwd, 0.03 * row.bwd) << row.config << " " << row.S;
  }
}

TEST(BenchSubject, TheCapabilityDecidesWithAReason) {
  constexpr Capability kHopper{9, 0}, kOld{7, 5};
  const Problem b = problem("b", 2048), c = problem("c", 2048);
  for (const Subject& s : subjects()) {
    EXPECT_EQ(refusal(s, Backend::cuda, c, Mode::fwd_bwd, kHopper), "") << s.name;
    EXPECT_EQ(refusal(s, Backend::sdpa, b, Mode::fwd, kHopper), "") << s.name;
    EXPECT_NE(refusal(s, Backend::cuda, c, Mode::fwd, kOld), "") << s.name;
  }
  EXPECT_EQ(refusal(subject("window"), Backend::flash, c, Mode::fwd, kHopper), "");
  EXPECT_EQ(refusal(subject("nsa"), Backend::flash, c, Mode::fwd_bwd, kHopper), "");
  EXPECT_EQ(refusal(subject("window"), Backend::flash, b, Mode::fwd, kHopper),
            "attend_window: d_k 192 differs from d_v 128");
  EXPECT_EQ(refusal(subject("combine"), Backend::flash, c, Mode::fwd, kHopper),
            "flash has no combine of its own, see sdpa");
}

// c with twice the keys a block, and its chosen blocks alone.
TEST(BenchSubject, OfDOnlyWhatIsGivenItsBlocks) {
  const Problem c = problem("c", 65536), d = problem("d", 65536);
  EXPECT_EQ(d.geometry.l_sel, 2 * c.geometry.l_sel);
  EXPECT_EQ(std::tuple(d.Hq, d.G, d.Dk, d.Dv), std::tuple(c.Hq, c.G, c.Dk, c.Dv));
  EXPECT_NEAR(work(subject("selected"), d, Mode::fwd).flops / work(subject("selected"), c, Mode::fwd).flops, 2, 0.05);
  for (const Subject& s : subjects()) EXPECT_EQ(applies(s, "d"), s.name == "selected") << s.name;
}

TEST(BenchSubject, OnlyBIsMeasuredWithoutItsWindow) {
  EXPECT_TRUE(applies(subject("nsa"), "b"));
  EXPECT_TRUE(applies(subject("nsa_no_window"), "b"));
  EXPECT_FALSE(applies(subject("nsa_no_window"), "c"));
  EXPECT_EQ(peer_of(subject("nsa"), "c"), "full NSA");
  EXPECT_EQ(peer_of(subject("nsa"), "b"), "") << "nobody measured it";
  EXPECT_EQ(peer_of(subject("nsa_no_window"), "b"), "full NSA");
  EXPECT_THROW((void)problem("e", 1), std::invalid_argument);
}

}  // namespace bench_problem_test
}  // namespace nsa::bench
