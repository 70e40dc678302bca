// The query lists, emulated (nsa/kernels/tests/emulation), against lists made one entry after the other.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "nsa/kernels/selected/lists_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

constexpr int kUntouched = -7;
enum class Table { any, few_blocks, one_block };  // numbers from outside too; many repeats

struct Problem {
  int B = 1, S = 100, G = 2, n = 4, l_sel = 64;
  std::vector<int> boundaries = {};  // a packed batch; S is then the last
  int begin = 0, end = 0, stretch = 0;
  std::vector<int> unless = {};  // of every stretch
  bool places = true, forced = true;
  Table table = Table::any;
  int launches = 0;  // that it must take, unless 0
};

// Empty, or what is wrong.
std::string differences(Problem x) {
  if (!x.boundaries.empty()) x.S = x.boundaries.back();
  const bool packed = !x.boundaries.empty();
  Geometry geometry;
  geometry.l_sel = x.l_sel;
  geometry.n = x.n;
  const Documents documents(packed ? x.boundaries : std::vector<int>{0, x.S}, geometry);
  const int J = static_cast<int>(documents.starts.size()), last = x.end ? x.end : x.S;
  std::mt19937 random(1);
  std::vector<int> blocks(static_cast<std::size_t>(x.B) * x.S * x.G * x.n);
  for (int& block : blocks) {
    const unsigned number = random();
    block = x.table == Table::any          ? static_cast<int>(number % (J + 6)) - 3
            : x.table == Table::few_blocks ? static_cast<int>(number % 4) - 1
                                           : 0;
  }
  Inverse p;
  p.blocks = blocks.data();
  p.geometry = geometry;
  if (packed) {
    p.packed.first_token = documents.first_token.data();
    p.document_blocks = documents.document_blocks.data();
  }
  p.B = x.B, p.S = x.S, p.G = x.G, p.J = J;
  p.end = last - x.begin;  // the size is asked for a chunk from token 0 on
  p.stretch = x.stretch;
  p.forced = x.forced;
  p.unless = x.unless.empty() ? nullptr : x.unless.data();
  const int stretch = x.stretch ? std::min(x.stretch, last - x.begin) : last - x.begin;
  const int stretches = (last - x.begin + stretch - 1) / stretch, sets = stretches * x.B * x.G;
  const std::size_t work = static_cast<std::size_t>(InversePlan(p).workspace) / sizeof(int);
  std::vector<int> workspace(work + 8, kUntouched), offsets(static_cast<std::size_t>(sets) * (J + 1) + 8, kUntouched);
  std::vector<int> tokens(static_cast<std::size_t>(sets) * stretch * x.n + 8, kUntouched), places(tokens);
  p.begin = x.begin;
  p.end = x.end;
  p.workspace = workspace.data();
  p.offsets = offsets.data();
  p.tokens = tokens.data();
  p.places = x.places ? places.data() : nullptr;
  (void)emulation::take_launched();
  invert_choice(p, nullptr);
  const auto launched = emulation::take_launched().kernels;

  std::vector<int> want_offsets, want_tokens(tokens.size(), kUntouched), want_places(want_tokens);
  for (int set = 0; set < sets; ++set) {
    const int number = set / (x.B * x.G), b = set % (x.B * x.G) / x.G, group = set % x.G;
    std::vector<std::vector<std::pair<int, int>>> lists(J);
    const int begin = x.begin + number * stretch, end = std::min(begin + stretch, last);
    for (int t = begin; t < (x.unless.empty() || x.unless[number] == 0 ? end : begin); ++t) {
      std::set<int> seen;
      for (int place = 0; place < x.n; ++place) {
        const int block = blocks[((static_cast<std::size_t>(b) * x.S + t) * x.G + group) * x.n + place];
        const int own = (t - documents.first_token[t]) / x.l_sel;
        if (block < 0 || block > own || !seen.insert(block).second) continue;
        if (x.forced || (block > 0 && block < own - 1))
          lists[documents.document_blocks[t] + block].emplace_back(t, place);
      }
    }
    int entry = set * stretch * x.n;
    want_offsets.push_back(entry);
    for (const auto& list : lists) {
      for (const auto& [t, place] : list) {
        want_tokens[entry] = t;
        want_places[entry++] = place;
      }
      want_offsets.push_back(entry);
    }
  }
  want_offsets.resize(offsets.size(), kUntouched);
  if (!x.places) want_places.assign(tokens.size(), kUntouched);
  std::string what;
  if (x.launches && launched != x.launches) what += std::to_string(launched) + " launches ";
  if (offsets != want_offsets) what += "offsets ";
  if (tokens != want_tokens) what += "tokens ";
  if (places != want_places) what += "places ";
  if (std::any_of(workspace.begin() + static_cast<std::ptrdiff_t>(work), workspace.end(),
                  [](int i) { return i != kUntouched; }))
    what += "behind the workspace ";
  return what;
}

TEST(EmulatedInverse, Lengths) {
  int seed = 0;
  for (const int S : {1, 63, 64, 65, 255, 257, 700})
    for (const int n : {3, 5, 16, 64})
      for (const Table table : {Table::any, Table::few_blocks, Table::one_block}) {
        emulation::set_order(++seed);
        EXPECT_EQ(differences({.B = S < 300 ? 2 : 1, .S = S, .n = n, .places = seed % 2 == 0, .table = table}), "")
            << "S " << S << " n " << n;
      }
}
TEST(EmulatedInverse, Chunk) {
  EXPECT_EQ(differences({.S = 1500, .n = 16, .begin = 300, .end = 1111}), "");
  EXPECT_EQ(differences({.S = 1500, .G = 1, .n = 7, .l_sel = 16, .begin = 512, .end = 1500}), "");
}
TEST(EmulatedInverse, ListsOfEveryStretch) {
  int seed = 0;
  for (const int stretch : {64, 200, 256, 900, 2000})
    for (const bool packed : {false, true}) {
      emulation::set_order(++seed);
      const std::vector<int> boundaries = packed ? std::vector<int>{0, 3, 400, 400, 1500} : std::vector<int>();
      Problem x{
          .S = 1500, .n = 7, .l_sel = stretch == 200 ? 2 : 64, .boundaries = boundaries, .begin = 128, .end = 1411};
      x.stretch = stretch;
      x.places = seed % 2 == 0;
      EXPECT_EQ(differences(x), "") << stretch;
      for (int begin = x.begin; begin < x.end; begin += stretch) x.unless.push_back(begin / stretch % 3 == 1);
      EXPECT_EQ(differences(x), "") << stretch;
    }
  EXPECT_EQ(differences({.B = 3, .S = 500, .n = 5, .stretch = 128}), "");
}
TEST(EmulatedInverse, WithoutForcedBlocks) {
  for (const int n : {3, 16})
    for (const Table table : {Table::any, Table::few_blocks}) {
      EXPECT_EQ(differences({.B = 2, .S = 700, .n = n, .l_sel = 16, .forced = false, .table = table}), "");
      EXPECT_EQ(differences({.n = n, .l_sel = 8, .boundaries = {0, 3, 150, 150, 400}, .forced = false}), "");
    }
  for (const int l_sel : {16, 2})  // one launch, three
    EXPECT_EQ(differences({.S = 1500,
                           .n = 7,
                           .l_sel = l_sel,
                           .begin = 128,
                           .end = 1411,
                           .stretch = 256,
                           .forced = false,
                           .launches = l_sel == 16 ? 1 : 3}),
              "");
}
TEST(EmulatedInverse, Packed) {
  for (const auto& boundaries :
       std::vector<std::vector<int>>{{0, 0, 3, 4, 90, 200}, {0, 20, 20, 84, 700, 701, 1300, 1300}, {0, 1}})
    for (const int l_sel : {32, 2}) EXPECT_EQ(differences({.l_sel = l_sel, .boundaries = boundaries}), "");
}
// Small problems take one launch, others three: 3872 and 4236, 4096 and 4225 words of bits, and few are 4096; below,
// 65,520 and 66,560 numbers, and few are 65,536; then 512 and 513 lists, and few are 512.
TEST(EmulatedInverse, BothSidesOfSmall) {
  int seed = 0;
  for (const auto& [S, l_sel, launches] :
       std::vector<std::array<int, 3>>{{352, 1, 1}, {353, 1, 3}, {2048, 32, 1}, {2049, 32, 3}})
    for (const Table table : {Table::any, Table::few_blocks}) {
      emulation::set_order(++seed);
      Problem x{.S = S, .G = 1, .n = 3, .l_sel = l_sel, .places = seed % 3 == 0, .table = table, .launches = launches};
      EXPECT_EQ(differences(x), "") << S;
    }
}
TEST(EmulatedInverse, BothSidesOfSmallByNumbers) {
  for (const int n : {63, 64})
    for (const bool places : {false, true})
      EXPECT_EQ(
          differences(
              {.S = 1040, .G = 1, .n = n, .places = places, .table = Table::few_blocks, .launches = n == 63 ? 1 : 3}),
          "")
          << n;
}
TEST(EmulatedInverse, SmallOfManyLists) {
  EXPECT_EQ(differences({.B = 9, .S = 130, .G = 16, .n = 3, .l_sel = 9, .launches = 1}), "");
  EXPECT_EQ(differences({.S = 512, .G = 2, .n = 3, .l_sel = 1, .begin = 256, .end = 512, .launches = 1}), "");
  EXPECT_EQ(differences({.S = 513, .G = 2, .n = 3, .l_sel = 1, .begin = 257, .end = 513, .launches = 3}), "");
}
TEST(EmulatedInverse, ChunkOfManyLists) {
  EXPECT_EQ(differences({.S = 1500, .n = 16, .l_sel = 2, .begin = 300, .end = 1111}), "");
  EXPECT_EQ(differences({.S = 2500, .G = 1, .n = 16, .l_sel = 2, .begin = 2400, .end = 2450}), "");
}
TEST(EmulatedInverse, MoreBlocksThanAWindow) {
  EXPECT_EQ(differences({.S = 5000, .G = 1, .n = 5, .l_sel = 2, .launches = 3}), "");
}
TEST(EmulatedInverse, MoreListsThanAScan) { EXPECT_EQ(differences({.S = 4200, .G = 2, .n = 5, .l_sel = 2}), ""); }

}  // namespace
}  // namespace nsa::kernels
