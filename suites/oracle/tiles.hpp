// Comparison with the fp64 reference tile by tile: 64 rows of one head. A largest error says nothing of a result that
// is 2 % off everywhere (one value may be that far off by rounding); the root mean square over a tile does, and a tile
// is small enough that one head, one length's tail or one stretch of rows that is wrong stands out.
#pragma once

#include "suites/oracle/compare.hpp"

namespace suites::oracle {

inline constexpr std::int64_t kTileRows = 64;

// Of [B,S,H,D] (or [B,S,H]): all figures of the tile that is worst against its bound.
struct TileVerdict {
  bool missing = false, shapes_agree = true;
  std::int64_t batch = 0, row = 0, head = 0;  // the tile's first row
  double error = 0;                           // RMS of value - reference over the tile; NaN when a value is none
  double naive_error = 0;                     // the same of the naive computation
  double scale = 0;                           // RMS of the reference over the tile
  // Twice the naive error, and what roundings inside a kernel may add; more for a tile of few values, whose RMS
  // scatters, and of few rows of dQ (below).
  double bound = 0;
  std::string where;  // oracle::extent_of_error, where it is not good

  [[nodiscard]] bool good() const;
  [[nodiscard]] harness::Json evidence() const;
};
// `storage`: the dtype that the computation rounds to (gates are fp32 beside bf16). `of_queries`: the gradient of
// queries. Where a row's terms cancel (KeptIn16Bits, parity/lengths.cpp) the row as a whole is off by one random
// number, in 16 bits. A head's naive error is another such number, so the heads' average counts, and that of a tile
// of one row nearly three times as much.
[[nodiscard]] TileVerdict judge_tiles(const Candidate& candidate, at::ScalarType storage, bool of_queries = false);

// Records it: kGraphBreak or kOutputContract for what is missing or misshapen, else kGradientBudget or kOutputBudget.
bool expect_good(harness::Context& context, const TileVerdict& verdict, const Subjects& what);

}  // namespace suites::oracle
