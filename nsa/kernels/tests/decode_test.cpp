// A step of decoding, emulated (nsa/kernels/tests/emulation), against sums in fp64; its plan.
#include "nsa/kernels/decode.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "nsa/kernels/plan/decode_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

struct DecodeShape {
  int t = 0, B = 1, G = 1, h = 1, Dk = 32, Dv = 32;
  Geometry geometry = {8, 4, 16, 5, 20};
  Storage storage = Storage::bf16;
  double size = 1;  // of the queries
  [[nodiscard]] int compressed() const { return t + 1 < geometry.l ? 0 : (t + 1 - geometry.l) / geometry.d + 1; }
  [[nodiscard]] int window() const { return std::min(geometry.w, t + 1); }
};
std::string name_of(const DecodeShape& s) {
  return "t " + std::to_string(s.t) + ", B " + std::to_string(s.B) + ", G " + std::to_string(s.G) + ", h " +
         std::to_string(s.h) + ", widths " + std::to_string(s.Dk) + "/" + std::to_string(s.Dv);
}

using Values = std::vector<double>;

struct DecodeProblem {
  DecodeShape s;
  Tensor q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, o, cmp, sel, win;
  std::vector<float> gates;
  std::vector<int> blocks;
  std::vector<float> workspace;

  // Caches as they lie: a group's rows side by side, with room after them.
  explicit DecodeProblem(const DecodeShape& shape)
      : s(shape),
        q(s.storage, s.B, 1, s.G * s.h, s.Dk),
        k_cmp(cache(s.compressed(), s.Dk)),
        v_cmp(cache(s.compressed(), s.Dv)),
        k_sel(cache(s.t + 1, s.Dk)),
        v_sel(cache(s.t + 1, s.Dv)),
        k_win(cache(s.window(), s.Dk)),
        v_win(cache(s.window(), s.Dv)),
        o(s.storage, s.B, 1, s.G * s.h, s.Dv),
        cmp(s.storage, s.B, 1, s.G * s.h, s.Dv),
        sel(s.storage, s.B, 1, s.G * s.h, s.Dv),
        win(s.storage, s.B, 1, s.G * s.h, s.Dv),
        gates(static_cast<std::size_t>(s.B * s.G * 3)),
        blocks(static_cast<std::size_t>(s.B * s.G * s.geometry.n), -7) {
    std::mt19937 random(static_cast<unsigned>(s.t) + 1);
    q.fill(random, s.size);
    for (Tensor* x : {&k_cmp, &v_cmp, &k_sel, &v_sel, &k_win, &v_win}) x->fill(random, 1);
    std::uniform_real_distribution<float> gate(0.1F, 0.6F);
    for (float& x : gates) x = gate(random);
  }

  [[nodiscard]] Decode parameters() const {
    Decode p;
    p.q = q.rows();
    p.k_cmp = k_cmp.rows(), p.v_cmp = v_cmp.rows();
    p.k_sel = k_sel.rows(), p.v_sel = v_sel.rows();
    p.k_win = k_win.rows(), p.v_win = v_win.rows();
    p.gates = gates.data(), p.gates_fp32 = true;
    p.o = o.rows();
    p.branch[0] = cmp.rows(), p.branch[1] = sel.rows(), p.branch[2] = win.rows();
    p.blocks = const_cast<int*>(blocks.data());
    p.geometry = s.geometry;
    p.B = s.B, p.t = s.t, p.N = s.compressed(), p.window = s.window();
    p.Hq = s.G * s.h, p.G = s.G, p.Dk = s.Dk, p.Dv = s.Dv;
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.Dk)));
    p.storage = s.storage;
    return p;
  }
  void run(const std::function<void(Decode&)>& mistake = {}, const Device& device = emulation::kDevice) {
    Decode p = parameters();
    if (mistake) mistake(p);
    const DecodePlan plan = plan_decode(p, device);
    workspace.assign(static_cast<std::size_t>(plan.workspace) / 4, NAN);
    p.workspace = workspace.data();
    emulation::take_launched();
    decode(p, plan, nullptr);
    const auto launched = emulation::take_launched();
    EXPECT_EQ(launched.kernels, plan.launches);
    std::set<std::string> names = {"decode_attend", "decode_join"};
    if (plan.launches == 4) names.insert({"decode_scores", "decode_totals"});
    EXPECT_EQ(launched.names, names);
  }

  // Softmax of a head over some rows of k, and its mean of v.
  struct Branch {
    Values weights, o;
  };
  [[nodiscard]] Branch attend(int b, int head, const Tensor& k, const Tensor& v, const std::vector<int>& rows) const {
    const int group = head / s.h;
    Branch x{Values(rows.size()), Values(static_cast<std::size_t>(s.Dv))};
    double highest = -INFINITY, sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (int c = 0; c < s.Dk; ++c) x.weights[i] += q.at(b, 0, head, c) * k.at(b, rows[i], group, c);
      highest = std::max(highest, x.weights[i] /= std::sqrt(static_cast<double>(s.Dk)));
    }
    for (double& w : x.weights) sum += w = std::exp(w - highest);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      x.weights[i] /= sum;
      for (int c = 0; c < s.Dv; ++c) x.o[static_cast<std::size_t>(c)] += x.weights[i] * v.at(b, rows[i], group, c);
    }
    return x;
  }
  static std::vector<int> numbers(int count, int first = 0) {
    std::vector<int> all(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = first + i;
    return all;
  }
  // Eq 8 to 10, key by key: what the compressed block and the selection block have in common, in strides.
  [[nodiscard]] Values scores(int b, int group) const {
    const Geometry& g = s.geometry;
    Values all(static_cast<std::size_t>(s.t / g.l_sel + 1));
    for (int head = group * s.h; head < (group + 1) * s.h; ++head) {
      const auto weights = attend(b, head, k_cmp, v_cmp, numbers(s.compressed())).weights;
      for (int i = 0; i < s.compressed(); ++i)
        for (int j = 0; j < static_cast<int>(all.size()); ++j) {
          const int common = std::min(i * g.d + g.l, (j + 1) * g.l_sel) - std::max(i * g.d, j * g.l_sel);
          if (common > 0) all[static_cast<std::size_t>(j)] += weights[static_cast<std::size_t>(i)] * common / g.d;
        }
    }
    return all;
  }
  // Whether a row of the table of blocks is what Eq 11 allows; "" or what is wrong.
  [[nodiscard]] std::string wrong_choice(int b, int group) const {
    const int n = s.geometry.n, current = s.t / s.geometry.l_sel, taken = std::min(n, current + 1);
    const int* row = &blocks[static_cast<std::size_t>((b * s.G + group) * n)];
    std::vector<bool> chosen(static_cast<std::size_t>(current + 1));
    for (int i = 0; i < n; ++i) {
      if (i >= taken ? row[i] != -1 : (row[i] < 0 || row[i] > current || (i > 0 && row[i] <= row[i - 1])))
        return "blocks[" + std::to_string(i) + "] is " + std::to_string(row[i]);
      if (i < taken) chosen[static_cast<std::size_t>(row[i])] = true;
    }
    for (const int forced : {0, std::max(0, current - 1), current})
      if (!chosen[static_cast<std::size_t>(forced)]) return "block " + std::to_string(forced) + " is missing";
    const Values score = scores(b, group);
    double least = INFINITY, most = 0;
    for (int j = 1; j < current - 1; ++j) {
      const double own = score[static_cast<std::size_t>(j)];
      if (chosen[static_cast<std::size_t>(j)])
        least = std::min(least, own);
      else
        most = std::max(most, own);
    }
    // A tie within rounding may go either way.
    return most > least * (1 + 1e-4) + 1e-9 ? "a block was passed over" : "";
  }

  // What is off; NaN is. Empty where all is well. The selected branch is held against the blocks that were chosen.
  [[nodiscard]] std::string wrong() const {
    const double once = s.storage == Storage::bf16 ? 1.0 / 256 : 1.0 / 2048, least = once;
    std::string found;
    const auto compare = [&](const char* name, int b, int head, int c, double got, double want) {
      if (found.empty() && !(std::abs(got - want) <= once * std::abs(want) + least))
        found = std::string(name) + "[" + std::to_string(b) + "," + std::to_string(head) + "," + std::to_string(c) +
                "] is " + std::to_string(got) + ", wanted " + std::to_string(want);
    };
    const Geometry& g = s.geometry;
    for (int b = 0; b < s.B; ++b)
      for (int head = 0; head < s.G * s.h; ++head) {
        const int group = head / s.h;
        if (const auto choice = wrong_choice(b, group); !choice.empty()) return choice;
        std::vector<int> tokens;
        for (int i = 0; i < g.n; ++i) {
          const int block = blocks[static_cast<std::size_t>((b * s.G + group) * g.n + i)];
          for (int x = block * g.l_sel; block >= 0 && x < std::min((block + 1) * g.l_sel, s.t + 1); ++x)
            tokens.push_back(x);
        }
        const auto c = attend(b, head, k_cmp, v_cmp, numbers(s.compressed())).o;
        const auto x = attend(b, head, k_sel, v_sel, tokens).o;
        const auto w = attend(b, head, k_win, v_win, numbers(s.window())).o;
        const float* gate = &gates[static_cast<std::size_t>((b * s.G + group) * 3)];
        for (int i = 0; i < s.Dv; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const double seen = s.compressed() > 0 ? c[at] : 0;
          compare("cmp", b, head, i, cmp.at(b, 0, head, i), seen);
          compare("sel", b, head, i, sel.at(b, 0, head, i), x[at]);
          compare("win", b, head, i, win.at(b, 0, head, i), w[at]);
          compare("o", b, head, i, o.at(b, 0, head, i), gate[0] * seen + gate[1] * x[at] + gate[2] * w[at]);
        }
      }
    for (const Tensor* x : {&o, &cmp, &sel, &win})
      if (!x->surroundings_are_untouched()) found += " something else was written";
    return found;
  }

 private:
  [[nodiscard]] Tensor cache(int rows, int D) const {
    return {s.storage, s.B, rows, s.G, D, Tensor::Order::heads_outside, 8};
  }
};

void check_decode(const DecodeShape& shape) {
  DecodeProblem p(shape);
  p.run();
  EXPECT_EQ(p.wrong(), "") << name_of(shape);
}

// From the first token over the first compressed block (t = 7) and n blocks (t = 79) to a choice, at the edges of
// blocks, tiles and windows.
TEST(EmulatedDecode, Tokens) {
  for (const int t : {0, 1, 6, 7, 8, 15, 16, 19, 20, 63, 64, 79, 80, 81, 95, 96, 127, 128, 300})
    check_decode({.t = t, .h = 2});
}
TEST(EmulatedDecode, Widths) {
  for (const auto& [Dk, Dv] : {std::pair{32, 32}, {64, 64}, {128, 128}, {192, 128}})
    for (const Storage storage : {Storage::bf16, Storage::fp16})
      check_decode({.t = 200, .h = 3, .Dk = Dk, .Dv = Dv, .storage = storage});
}
TEST(EmulatedDecode, HeadsGroupsAndRows) {
  for (const int h : {1, 7, 16}) check_decode({.t = 190, .B = 2, .G = 3, .h = h});
  check_decode({.t = 10, .B = 3, .G = 2, .h = 2});
}
// More compressed keys than a tile has, with blocks at its edges; blocks longer than a tile; the paper's proportions;
// n = 3, where nothing is chosen by score; overlaps of one stride and of four.
TEST(EmulatedDecode, Geometries) {
  check_decode({.t = 1100, .h = 2, .geometry = {4, 2, 8, 9, 300}});
  check_decode({.t = 900, .h = 2, .geometry = {16, 16, 160, 4, 130}});
  check_decode({.t = 2300, .h = 3, .Dk = 64, .Dv = 64, .geometry = {32, 16, 64, 16, 512}});
  check_decode({.t = 300, .h = 2, .geometry = {8, 4, 16, 3, 1}});
  check_decode({.t = 400, .h = 2, .geometry = {16, 4, 16, 6, 40}});
  check_decode({.t = 700, .h = 2, .geometry = {6, 2, 10, 7, 64}});
}
TEST(EmulatedDecode, SteepScores) {
  for (const double size : {10.0, 200.0}) check_decode({.t = 700, .h = 2, .geometry = {4, 2, 8, 6, 64}, .size = size});
}

// More compressed tiles than a thread keeps, more blocks than it looks at at once, and as many taken as can be.
TEST(EmulatedDecode, LongTexts) {
  check_decode({.t = 17000, .h = 1, .geometry = {4, 2, 8, 9, 30}});
  check_decode({.t = 9100, .h = 5, .geometry = {4, 2, 8, 64, 30}});
}
// All scores alike: the lowest numbers, also where tiles meet, and whatever the tiles beside them hold.
TEST(EmulatedDecode, TiesGoToTheLowerBlock) {
  DecodeProblem p({.t = 1100, .h = 3, .geometry = {4, 2, 8, 9, 30}});
  for (int head = 0; head < 3; ++head)
    for (int c = 0; c < 32; ++c) p.q.set(0, 0, head, c, 0);
  p.run();
  EXPECT_EQ(p.blocks, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 136, 137}));
  EXPECT_EQ(p.wrong(), "");
}
TEST(EmulatedDecode, TiesGoToTheLowerBlockOfMany) {
  DecodeProblem p({.t = 17000, .geometry = {4, 2, 8, 9, 30}});
  for (int c = 0; c < 32; ++c) p.q.set(0, 0, 0, c, 0);
  p.run();
  EXPECT_EQ(p.blocks, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 2124, 2125}));
}
// Makes a compressed key `share` of all heads' queries together, so that it scores much in each.
void align(DecodeProblem& p, int key, double share) {
  for (int c = 0; c < p.s.Dk; ++c) {
    double sum = 0;
    for (int head = 0; head < p.s.h; ++head) sum += p.q.at(0, 0, head, c);
    p.k_cmp.set(0, key, 0, c, share * sum);
  }
}
// Blocks are of ten kinds that come again and again, in another order in every tile; the third outscores the others,
// and 32 is the first block of a tile. One key of most tiles outscores all, each by another factor: so they count their
// weights from different maxima.
TEST(EmulatedDecode, EqualKeysTieInEveryTile) {
  for (int round = 0; round < 6; ++round) {
    DecodeProblem p({.t = 1099, .h = 2, .geometry = {4, 2, 8, 16, 30}, .size = 3});
    for (int i = 0; i < p.s.compressed(); ++i) {
      for (int c = 0; c < 32; ++c) p.k_cmp.set(0, i, 0, c, p.k_cmp.at(0, i % 40, 0, c));
      if (i % 40 >= 7 && i % 40 < 12) align(p, i, 0.45);
    }
    int tile = 0;
    for (const int key : {5, 141, 281, 401}) align(p, key, 0.48 + 0.013 * ((round + ++tile) % 5) + 0.004 * round);
    p.run();
    EXPECT_EQ(p.wrong(), "");
    EXPECT_EQ(p.blocks, (std::vector<int>{0, 1, 2, 12, 22, 32, 35, 42, 52, 62, 70, 72, 82, 100, 136, 137})) << round;
  }
}
// A key of the last of 67 tiles has all of one head's weight: the other head alone chooses the other blocks.
TEST(EmulatedDecode, TheLastOfManyTilesCounts) {
  DecodeProblem p({.t = 17000, .h = 2, .geometry = {4, 2, 8, 9, 30}, .size = 3});
  for (int c = 0; c < 32; ++c) p.k_cmp.set(0, 8470, 0, c, p.q.at(0, 0, 0, c));
  p.run();
  EXPECT_EQ(p.wrong_choice(0, 0), "");
}
// The last key of a tile of 128 belongs to the next tile's first block as well.
TEST(EmulatedDecode, AKeyAtTheEdgeOfATileCountsForBothItsBlocks) {
  DecodeProblem p({.t = 1099, .geometry = {4, 2, 8, 5, 30}, .size = 3});
  align(p, 127, 1);
  p.run();
  EXPECT_EQ(p.wrong(), "");
  EXPECT_EQ(p.blocks, (std::vector<int>{0, 31, 32, 136, 137}));
}

TEST(EmulatedDecode, ANaNStaysVisible) {
  const DecodeShape shape{.t = 300, .h = 2};
  const auto nan = [](const Tensor& x, int head) {
    for (int c = 0; c < 32; ++c)
      if (std::isnan(x.at(0, 0, head, c))) return true;
    return false;
  };
  for (const int which : {0, 1, 2, 3, 4, 5}) {
    DecodeProblem p(shape);
    Tensor* const all[] = {&p.k_cmp, &p.v_cmp, &p.k_sel, &p.v_sel, &p.k_win, &p.v_win};
    all[which]->set(0, 3, 0, 5, NAN);
    p.run();
    for (int head = 0; head < 2; ++head) EXPECT_TRUE(nan(p.o, head)) << which;
  }
  DecodeProblem p(shape);
  p.q.set(0, 0, 1, 0, NAN);
  p.run();
  EXPECT_TRUE(nan(p.o, 1));
}

// The comparison says no.
TEST(EmulatedDecode, MistakesAreSeen) {
  const DecodeShape shape{.t = 300, .h = 2};
  const auto with = [&](const std::function<void(Decode&)>& mistake) {
    DecodeProblem p(shape);
    p.run(mistake);
    return p.wrong();
  };
  EXPECT_EQ(with([](Decode&) {}), "");
  EXPECT_NE(with([](Decode& p) { p.N -= 1; }), "");
  EXPECT_NE(with([](Decode& p) { p.window -= 1; }), "");
  EXPECT_NE(with([](Decode& p) { p.t -= 1; }), "");
  EXPECT_NE(with([](Decode& p) { p.scale *= 1.1F; }), "");
  EXPECT_NE(with([](Decode& p) { std::swap(p.k_sel, p.v_sel); }), "");
  EXPECT_NE(with([](Decode& p) { p.branch[1].data = nullptr; }), "");
  EXPECT_NE(with([](Decode& p) { p.geometry.n -= 1; }), "");
  DecodeProblem chosen(shape);
  chosen.run();
  chosen.blocks[1] = chosen.blocks[1] == 1 ? 2 : 1;  // some other block
  EXPECT_NE(chosen.wrong(), "");
}

TEST(EmulatedDecode, TheOrderOfThreadsAndCtasChangesNoBit) {
  const DecodeShape shape{.t = 1000, .B = 2, .G = 2, .h = 3, .geometry = {4, 2, 8, 9, 300}};
  DecodeProblem once(shape), again(shape);
  emulation::set_order(1);
  once.run();
  emulation::set_order(2);
  again.run();
  EXPECT_TRUE(once.o.same_bits(again.o));
  EXPECT_EQ(once.blocks, again.blocks);
}

// ---- the plan -----------------------------------------------------------------------------------------------------

Decode of_c(int t) {
  Decode p;
  p.B = 1, p.t = t, p.N = t + 1 < 32 ? 0 : (t + 1 - 32) / 16 + 1, p.window = std::min(512, t + 1);
  p.Hq = 64, p.G = 4, p.Dk = p.Dv = 128;
  return p;
}

TEST(DecodePlan, CutsAStepIntoTiles) {
  const Device gpu{.hopper = true, .sm_count = 132};
  const auto plan = plan_decode(of_c(65535), gpu);
  EXPECT_EQ(plan.variant, DecodeVariant::early);
  EXPECT_EQ(plan.cuts.compressed, 32);  // 4095 keys
  EXPECT_EQ(plan.cuts.window, 4);
  EXPECT_EQ(plan.cuts.first, 1);
  EXPECT_EQ(plan.cuts.last, 1);
  EXPECT_EQ(plan.cuts.last_token, 1022 * 64);
  EXPECT_EQ(plan.cuts.chosen, 13);
  EXPECT_EQ(plan.launches, 4);
  EXPECT_EQ(plan_decode(of_c(1000), gpu).launches, 2);
  EXPECT_LT(plan.workspace, 4 << 20);
  EXPECT_EQ(plan_decode(of_c(65535), Device{}).variant, DecodeVariant::in_order);
  // Together on an SM: a CTA of the first launch and two of the second, of 1 KB more each.
  EXPECT_LE(plan.scores_bytes + 2 * plan.attend_bytes + 3 * 1024, 228 << 10);
}
TEST(DecodePlan, ChoosesFromTheFirstBlockOnThatIsLeftOut) {
  const auto cuts = [](int t) { return plan_decode(of_c(t), Device{}).cuts; };
  EXPECT_EQ(cuts(1023).chosen, 0);  // 16 blocks
  EXPECT_EQ(cuts(1023).last, 8);
  EXPECT_EQ(cuts(1023).last_token, 0);
  EXPECT_EQ(cuts(1024).chosen, 13);
  EXPECT_EQ(cuts(1024).last, 1);
  EXPECT_EQ(cuts(1024).last_token, 960);
  EXPECT_EQ(cuts(0).compressed, 0);
  EXPECT_EQ(cuts(30).compressed, 0);
  EXPECT_EQ(cuts(31).compressed, 1);
}
TEST(DecodePlan, ServesAMillionTokensAndRefusesWithWords) {
  EXPECT_EQ(decode_refusal(of_c((1 << 20) - 1)), "");
  const auto refusal = [](const std::function<void(Decode&)>& change) {
    Decode p = of_c(65535);
    change(p);
    return decode_refusal(p);
  };
  EXPECT_EQ(refusal([](Decode&) {}), "");
  EXPECT_NE(refusal([](Decode& p) { p.Dk = 48; }).find("d_k 48"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.Hq = 68; }).find("68 heads in 4 groups"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.geometry.n = 2; }).find("3 to 64, got 2"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.geometry.n = 65; }).find("3 to 64, got 65"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.geometry.d = 12; }).find("d divides"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) {
              p.geometry = {4, 1, 256, 16, 512};
            }).find("up to 128, got 256"),
            std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.t = 1 << 24, p.N = 1 << 20; }).find("shared memory"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) {
              p.t = 17 << 20, p.N = 8191, p.geometry = {2048, 2048, 262144, 64, 512};
            }).find("65535, got 12"),
            std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.window = 0; }).find("window"), std::string::npos);
  EXPECT_NE(refusal([](Decode& p) { p.B = 20000; }).find("65535"), std::string::npos);
  Decode bad = of_c(100);
  bad.Dk = 48;
  EXPECT_THROW(static_cast<void>(plan_decode(bad, Device{})), std::invalid_argument);
  Decode none = of_c(100);
  none.B = 0;
  EXPECT_EQ(plan_decode(none, Device{}).launches, 0);
}

}  // namespace
}  // namespace nsa::kernels
