// The choice of blocks, emulated (nsa/kernels/tests/emulation), against scores in fp64.
#include <gtest/gtest.h>

#include "nsa/kernels/plan/select_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

struct Problem {
  int B = 1, S = 600, h = 6, G = 1, Dk = 32;
  Geometry geometry{8, 4, 16, 5, 512};
  std::vector<int> boundaries = {};  // a packed batch; S is then the last
  bool tie = false;                  // equal scores everywhere
  Storage storage = Storage::bf16;
  bool hopper = true;
  int nan_query = -1, nan_key = -1;  // of the first head or group: what sees them has NaN for every score
};

// Rows that are not a right choice: in the wrong form, or without a block whose score is larger than a chosen one's by
// more than rounding.
int wrong_rows(Problem x) {
  if (!x.boundaries.empty()) x.S = x.boundaries.back();
  const bool packed = !x.boundaries.empty();
  const Geometry& g = x.geometry;
  const Documents documents(packed ? x.boundaries : std::vector<int>{0, x.S}, g);
  const int N = documents.compressed, Hq = x.h * x.G;
  std::mt19937 random(1);
  Tensor q(x.storage, x.B, x.S, Hq, x.Dk, Tensor::Order::tokens_outside, 8);
  Tensor k(x.storage, x.B, N, x.G, x.Dk, Tensor::Order::heads_outside, 8);
  q.fill(random, x.tie ? 0 : 1);
  k.fill(random, 1);
  if (x.nan_query >= 0) q.set(0, x.nan_query, 0, 1, NAN);
  if (x.nan_key >= 0) k.set(0, x.nan_key, 0, 1, NAN);
  std::vector<float> stats(static_cast<std::size_t>(x.B) * Hq * x.S * 2);
  std::vector<int> blocks(static_cast<std::size_t>(x.B) * x.S * x.G * g.n, -99);
  Select p;
  p.q = q.rows(), p.k_cmp = k.rows();
  p.stats = stats.data();
  p.blocks = blocks.data();
  if (packed) p.packed = {documents.first_token.data(), documents.first_block.data()};
  p.geometry = g;
  p.B = x.B, p.S = x.S, p.N = N, p.Hq = Hq, p.G = x.G, p.Dk = x.Dk;
  p.scale = static_cast<float>(1 / std::sqrt(x.Dk));
  p.storage = x.storage;
  Device device = current_device();
  device.hopper = x.hopper;
  const SelectPlan plan = plan_select(p, device);
  EXPECT_EQ(plan.variant == SelectVariant::wgmma,
            x.hopper && N > 0 && x.Dk >= 64 && g.l == 2 * g.d && g.l_sel == 4 * g.d);

  const std::size_t rows = static_cast<std::size_t>(x.B) * x.S * x.G;
  std::vector<std::vector<double>> scores(rows);  // [B,S,G] of the blocks up to the token's own
  for (std::size_t row = 0; row < rows; ++row) {
    const int group = static_cast<int>(row % x.G), t = static_cast<int>(row / x.G % x.S),
              b = static_cast<int>(row / x.G / x.S);
    const int position = t - documents.first_token[t], current = position / g.l_sel;
    const int visible = position + 1 >= g.l ? (position + 1 - g.l) / g.d + 1 : 0;
    scores[row].assign(current + 1, 0);
    for (int head = group * x.h; head < (group + 1) * x.h; ++head) {
      std::vector<double> score(visible);
      double maximum = -INFINITY, total = 0;
      for (int i = 0; i < visible; ++i) {
        for (int d = 0; d < x.Dk; ++d)
          score[i] += q.at(b, t, head, d) * k.at(b, documents.first_block[t] + i, group, d);
        score[i] *= p.scale * 1.4426950408889634;
        maximum = std::max(maximum, score[i]);
      }
      for (const double s : score) total += std::exp2(s - static_cast<float>(maximum));
      const std::size_t at = ((static_cast<std::size_t>(b) * Hq + head) * x.S + t) * 2;
      stats[at] = static_cast<float>(maximum);
      stats[at + 1] = static_cast<float>(total);
      for (int i = 0; i < visible; ++i)
        for (int j = i * g.d / g.l_sel; j <= std::min(current, (i * g.d + g.l - 1) / g.l_sel); ++j) {
          const int overlap = std::min(i * g.d + g.l, (j + 1) * g.l_sel) - std::max(i * g.d, j * g.l_sel);
          scores[row][j] += std::exp2(score[i] - static_cast<float>(maximum)) / total * overlap / g.d;
        }
    }
  }
  (void)emulation::take_launched();
  select_blocks(p, plan, nullptr);
  EXPECT_EQ(emulation::take_launched().kernels, plan.launches);

  int wrong = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    const int* row = &blocks[r * g.n];
    const int current = static_cast<int>(scores[r].size()) - 1, want = std::min(g.n, current + 1);
    std::vector<bool> chosen(current + 1);
    bool right = true;
    for (int i = 0; i < g.n; ++i) {
      if (i >= want) {
        right &= row[i] == -1;
        continue;
      }
      const bool inside = row[i] >= 0 && row[i] <= current;
      right &= inside && (i == 0 || row[i] > row[i - 1]);
      if (inside) chosen[row[i]] = true;
    }
    right &= chosen[0] && chosen[current] && (current == 0 || chosen[current - 1]);
    double least = INFINITY, missed = -1;
    for (int j = 1; j < current - 1; ++j)
      if (chosen[j])
        least = std::min(least, scores[r][j]);
      else
        missed = std::max(missed, scores[r][j]);
    right &= missed <= 0 || missed - least <= 3e-5 * missed;
    if ((x.tie || (current > 0 && std::isnan(scores[r][0]))) && current >= g.n)
      for (int i = 0; i < g.n - 2; ++i) right &= row[i] == i;  // ties go to the lower number
    wrong += !right;
  }
  return wrong;
}

TEST(EmulatedSelect, HeadsAndWidths) {
  EXPECT_EQ(wrong_rows({.S = 700, .geometry = {32, 16, 64, 4, 512}}), 0);
  EXPECT_EQ(wrong_rows({.B = 2, .S = 300, .h = 5, .G = 2}), 0);
  EXPECT_EQ(wrong_rows({.h = 16}), 0);
  EXPECT_EQ(wrong_rows({.h = 7, .storage = Storage::fp16}), 0);
  EXPECT_EQ(wrong_rows({.S = 1000, .Dk = 64, .hopper = false}), 0);
  EXPECT_EQ(wrong_rows({.S = 300, .h = 16, .Dk = 128, .hopper = false}), 0);
}
TEST(EmulatedSelect, Width192) {
  for (const int h : {6, 8, 13}) EXPECT_EQ(wrong_rows({.S = 300, .h = h, .Dk = 192, .hopper = false}), 0);
}
TEST(EmulatedSelect, NotANumber) { EXPECT_EQ(wrong_rows({.hopper = false, .nan_query = 500, .nan_key = 100}), 0); }
TEST(EmulatedSelect, ManyBlocks) {
  EXPECT_EQ(wrong_rows({.S = 1200, .h = 2, .geometry = {8, 4, 16, 3, 512}}), 0);
  EXPECT_EQ(wrong_rows({.S = 2000, .h = 3, .geometry = {8, 4, 16, 16, 512}}), 0);
  EXPECT_EQ(wrong_rows({.S = 1600, .h = 1, .geometry = {8, 4, 16, 64, 512}}), 0);
}
TEST(EmulatedSelect, OtherGeometries) {
  for (const Geometry& g : {Geometry{8, 8, 8, 4, 512}, Geometry{12, 4, 20, 5, 512}, Geometry{8, 4, 160, 4, 512},
                            Geometry{4, 4, 4, 33, 512}, Geometry{64, 4, 64, 4, 512}})
    EXPECT_EQ(wrong_rows({.geometry = g}), 0);
  EXPECT_EQ(wrong_rows({.S = 400, .h = 9, .geometry = {12, 4, 20, 5, 512}}), 0);
  EXPECT_EQ(wrong_rows({.S = 200, .h = 16, .Dk = 192, .geometry = {8, 8, 8, 4, 512}}), 0);
}
TEST(EmulatedSelect, Packed) {
  for (const auto& boundaries : std::vector<std::vector<int>>{
           {0, 0, 3, 4, 90, 200, 520}, {0, 20, 20, 84, 400, 401, 600}, {0, 130, 131, 270, 300}}) {
    EXPECT_EQ(wrong_rows({.boundaries = boundaries}), 0);
    EXPECT_EQ(wrong_rows({.geometry = {8, 8, 8, 4, 512}, .boundaries = boundaries}), 0);
  }
}
TEST(EmulatedSelect, DocumentsOfATile) {  // each with scores of its own
  EXPECT_EQ(wrong_rows({.geometry = {4, 4, 4, 4, 512}, .boundaries = {0, 40, 60, 80, 97, 140}}), 0);
}
TEST(EmulatedSelect, Ties) {
  EXPECT_EQ(wrong_rows({.S = 1200, .tie = true}), 0);
  EXPECT_EQ(wrong_rows({.geometry = {8, 8, 8, 4, 512}, .tie = true}), 0);
  EXPECT_EQ(wrong_rows({.S = 1200, .geometry = {8, 4, 16, 40, 512}, .tie = true}), 0);
}

// select/sm90.cuh: tiles of tokens enough that it is taken, and that a CTA has many of them.
TEST(EmulatedSelectHopper, Heads) {
  for (int h = 1; h <= 16; ++h)
    for (const Storage storage : {Storage::bf16, Storage::fp16})
      EXPECT_EQ(wrong_rows({.S = 333 + h, .h = h, .Dk = 64, .storage = storage}), 0) << h;
}
TEST(EmulatedSelectHopper, Widths) {
  for (const int Dk : {64, 128, 192})
    for (const int h : {6, 7, 16}) EXPECT_EQ(wrong_rows({.S = 500, .h = h, .Dk = Dk}), 0) << Dk << ", " << h;
}
TEST(EmulatedSelectHopper, BatchesAndGroups) {
  EXPECT_EQ(wrong_rows({.B = 2, .S = 401, .h = 3, .G = 2, .Dk = 64}), 0);
  EXPECT_EQ(wrong_rows({.B = 2, .S = 300, .h = 16, .G = 2, .Dk = 128, .storage = Storage::fp16}), 0);
  EXPECT_EQ(wrong_rows({.S = 1700, .h = 4, .Dk = 64, .geometry = {32, 16, 64, 4, 512}}), 0);
}
TEST(EmulatedSelectHopper, ManyBlocks) {  // the lists fill up again and again
  EXPECT_EQ(wrong_rows({.S = 2100, .h = 2, .Dk = 64, .geometry = {4, 2, 8, 3, 512}}), 0);
  EXPECT_EQ(wrong_rows({.S = 2100, .h = 2, .Dk = 64, .geometry = {4, 2, 8, 16, 512}}), 0);
  EXPECT_EQ(wrong_rows({.S = 1600, .h = 9, .Dk = 64, .geometry = {4, 2, 8, 64, 512}}), 0);
}
TEST(EmulatedSelectHopper, FewTokens) {  // most or all choose no block by score
  for (const int S : {1, 15, 63, 64, 79, 80, 81, 97, 113})
    EXPECT_EQ(wrong_rows({.B = 5, .S = S, .h = 6, .G = 2, .Dk = 64}), 0) << S;
}
TEST(EmulatedSelectHopper, Packed) {
  for (const auto& boundaries : std::vector<std::vector<int>>{
           {0, 0, 3, 4, 90, 200, 520}, {0, 20, 20, 84, 400, 401, 600}, {0, 130, 131, 270, 300}})
    for (const int h : {2, 8, 12}) EXPECT_EQ(wrong_rows({.h = h, .Dk = 64, .boundaries = boundaries}), 0);
  EXPECT_EQ(wrong_rows({.h = 16, .G = 2, .Dk = 128, .boundaries = {0, 1, 300, 301, 490}}), 0);
  EXPECT_EQ(wrong_rows({.h = 16, .Dk = 192, .boundaries = {0, 200, 301, 303, 333}}), 0);
  // Documents of a tile, each with scores of its own.
  EXPECT_EQ(wrong_rows({.Dk = 64, .geometry = {2, 1, 4, 4, 512}, .boundaries = {0, 40, 60, 80, 97, 140}}), 0);
}
TEST(EmulatedSelectHopper, Ties) {
  for (const int h : {6, 16}) EXPECT_EQ(wrong_rows({.S = 1200, .h = h, .Dk = 64, .tie = true}), 0);
  EXPECT_EQ(wrong_rows({.S = 1200, .Dk = 64, .geometry = {8, 4, 16, 40, 512}, .tie = true}), 0);
}
TEST(EmulatedSelectHopper, NotANumber) {
  EXPECT_EQ(wrong_rows({.S = 700, .Dk = 64, .nan_query = 500, .nan_key = 100}), 0);
  EXPECT_EQ(wrong_rows({.h = 16, .Dk = 128, .boundaries = {0, 200, 520}, .nan_query = 199, .nan_key = 60}), 0);
}

}  // namespace
}  // namespace nsa::kernels
