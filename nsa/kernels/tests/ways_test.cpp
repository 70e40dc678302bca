// Which way the device takes for the selected branch (selected/ways.hpp), emulated, against the same count by sets.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "nsa/kernels/selected/ways.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

constexpr int kUntouched = -7;
constexpr Limits kLimits;

struct Problem {
  int B = 1, S = 2000, h = 6, G = 2, n = 6, l_sel = 16;
  int first = 256, chunk = 320;
  bool by_own = false;
  int renewed = 1;  // a row is a new one once in so many tokens, on average
  std::vector<int> boundaries = {};
};

std::vector<int> table_of(const Problem& x, const Documents& documents) {
  std::mt19937 random(1);
  std::vector<int> blocks;
  const std::size_t row = static_cast<std::size_t>(x.G) * x.n;
  for (int b = 0; b < x.B; ++b)
    for (int t = 0; t < x.S; ++t) {
      const int last = (t - documents.first_token[t]) / x.l_sel;
      const bool renewed = t == 0 || random() % x.renewed == 0;
      for (std::size_t i = 0; i < row; ++i)
        blocks.push_back(renewed ? static_cast<int>(random() % (last + 3)) - 1 : blocks[blocks.size() - row]);
    }
  return blocks;
}

AttentionForward problem_of(const Problem& x, const Documents& documents, const std::vector<int>& blocks) {
  AttentionForward p;
  p.blocks = blocks.data();
  p.geometry.n = x.n;
  p.geometry.l_sel = x.l_sel;
  p.B = x.B, p.S = x.S, p.Hq = x.h * x.G, p.G = x.G;
  p.selection.J = static_cast<int>(documents.starts.size());
  if (!x.boundaries.empty()) {
    p.selection.document_blocks = documents.document_blocks.data();
    p.packed.first_token = documents.first_token.data();
  }
  return p;
}

std::vector<int> ways_of(const Problem& x, const AttentionForward& p) {
  hopper::Ways ways{x.first, x.chunk, nullptr, x.by_own};
  std::vector<int> jointly(static_cast<std::size_t>(ways.chunks(x.S)) + 1, kUntouched);
  ways.jointly = jointly.data();
  hopper::choose_ways(p, ways, kLimits, nullptr);
  EXPECT_EQ(jointly.back(), kUntouched);
  jointly.pop_back();
  return jointly;
}

std::vector<int> wanted_ways(const Problem& x, const Documents& documents, const std::vector<int>& blocks) {
  std::vector<int> ways;
  for (int chunk = x.first; chunk < x.S; chunk += x.chunk) {
    const int begin = x.by_own ? chunk : chunk - (x.first / 2 + 63) / 64 * 64;
    const int end = x.by_own ? std::min(chunk + x.chunk, x.S) : chunk, tiles = (end - begin + 63) / 64 * x.h;
    double joint = 0, parts = 0;
    for (int sample = 0; sample < hopper::kSampledTiles; ++sample) {
      const int tile = static_cast<int>((sample + 0.5) * tiles * x.B * x.G / hopper::kSampledTiles);
      const int b = tile / tiles / x.G, group = tile / tiles % x.G, first_row = begin * x.h + tile % tiles * 64;
      std::set<int> walked;
      for (int row = first_row; row < first_row + 64; ++row) {
        const int t = row / x.h;
        if (t >= end) break;
        std::set<int> own;
        for (int i = 0; i < x.n; ++i) {
          const int number = blocks[((static_cast<std::size_t>(b) * x.S + t) * x.G + group) * x.n + i];
          if (number >= 0 && number * x.l_sel <= t - documents.first_token[t])
            own.insert(documents.document_blocks[t] + number);
        }
        parts += static_cast<double>(own.size()) / 64 *
                 static_cast<double>(x.by_own ? kLimits.merged_part_cost : kLimits.part_cost);
        walked.insert(own.begin(), own.end());
      }
      joint += static_cast<double>(kLimits.joint_start_cost) +
               static_cast<double>(walked.size()) * static_cast<double>(kLimits.joint_tile_cost);
    }
    ways.push_back(joint < parts);
  }
  return ways;
}

TEST(EmulatedWays, AreTheCheaperOnes) {
  int seed = 0, jointly = 0, by_parts = 0;
  for (Problem x : {Problem{},
                    {.B = 3, .S = 1500, .h = 1},
                    {.S = 1300, .h = 16, .G = 1, .n = 16},
                    {.S = 257, .h = 5},
                    {.B = 5, .S = 700, .G = 4, .l_sel = 8, .first = 64, .chunk = 128},
                    {.S = 1210, .boundaries = {0, 7, 300, 300, 301, 900, 1210}},
                    {.S = 1300, .h = 5, .first = 0, .by_own = true},
                    {.B = 2, .S = 700, .h = 16, .first = 0, .chunk = 704, .by_own = true}})
    for (const int renewed : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 1000}) {
      x.renewed = renewed;
      emulation::set_order(++seed);
      const Documents documents(x.boundaries.empty() ? std::vector<int>{0, x.S} : x.boundaries, {.l_sel = x.l_sel});
      const std::vector<int> blocks = table_of(x, documents);
      const std::vector<int> ways = ways_of(x, problem_of(x, documents, blocks));
      EXPECT_EQ(ways, wanted_ways(x, documents, blocks)) << "h " << x.h << " renewed " << renewed;
      for (const int way : ways) ++(way ? jointly : by_parts);
    }
  EXPECT_GT(jointly, 50);
  EXPECT_GT(by_parts, 50);
}

// What comes later changes no way, and so no bit, before.
TEST(EmulatedWays, DependOnEarlierQueriesAlone) {
  const Problem x{.S = 1600, .renewed = 8};
  const Documents documents({0, x.S}, {.l_sel = x.l_sel});
  const std::vector<int> blocks = table_of(x, documents), alike = table_of({.S = x.S, .renewed = 4000}, documents);
  const std::vector<int> random = table_of({.S = x.S}, documents);
  const std::vector<int> ways = ways_of(x, problem_of(x, documents, blocks));
  for (std::size_t chunk = 0; chunk < ways.size(); ++chunk)
    for (const auto& other : {alike, random}) {
      const std::ptrdiff_t begin = (x.first + static_cast<int>(chunk) * x.chunk) * x.G * x.n;
      std::vector<int> changed(blocks);
      std::copy(other.begin() + begin, other.end(), changed.begin() + begin);
      const std::vector<int> now = ways_of(x, problem_of(x, documents, changed));
      EXPECT_TRUE(std::equal(ways.begin(), ways.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, now.begin()))
          << chunk;
    }
}

}  // namespace
}  // namespace nsa::kernels
