// Comparison with an oracle by the root mean square: the error of a result against the error that the oracle's own code
// makes in the result's precision. A bound that is a multiple of a *typical* error sees what is off by little
// everywhere; row by row it also sees what is off in one place. NaN and infinity pass nowhere.
#pragma once

#include <limits>
#include <string>

#include "suites/oracle/compare.hpp"

namespace suites::oracle {

struct RmsLaw {
  // Times the naive computation's RMS error, of the whole tensor and of one row. The RMS of few values scatters: for N
  // of them the factor is (1 + 4 / sqrt(N)) as large. A right model measures 0.9 to 1.5, and 2 where all that is left
  // is the rounding of angles (nsa/model in fp64); five is a mistake.
  double factor = 3, row_factor = 6;
  // Plus this much of the oracle's RMS: what one rounding of the result costs, so that an error of the naive
  // computation that happens to be small (or is none, for a copy) accuses nobody.
  double floor = 0;
  // Of how many independent roundings the tensor, and a row of it, is made at most. A weight's gradient is a sum of one
  // product a token: of two tokens, a row's errors are two numbers, however many values it has; and where all of a
  // token comes through a narrow place (a gate's three logits), all rows share them.
  double independent = std::numeric_limits<double>::infinity();
};
// The law for results of this storage type.
[[nodiscard]] RmsLaw rms_law(at::ScalarType storage);

struct RmsVerdict {
  bool missing = false, shapes_agree = true;
  double error = 0, naive_error = 0, scale = 0, bound = 0;  // RMS over the whole tensor; scale is the oracle's
  bool rows_good = true;
  std::int64_t row = -1;  // the first that is over its bound, or the worst where none is; -1: no values
  double row_error = 0, row_bound = 0;
  std::string where;  // oracle::extent_of_error, where it is not good

  [[nodiscard]] bool good() const;
  [[nodiscard]] double ratio() const;  // error / bound, of the whole or of the worst row, whichever is more
  [[nodiscard]] harness::Json evidence() const;
};
// `row_dims`: the leading dimensions that count rows; [B,S,..] has 2, a weight 1, a scalar 0.
[[nodiscard]] RmsVerdict judge_rms(const Candidate& candidate, const RmsLaw& law, std::int64_t row_dims);

}  // namespace suites::oracle
