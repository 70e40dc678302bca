// Several processes that train one model: what one of them does differently shows in what all of them compute.
#include "suites/causes/clues.hpp"
#include "suites/codes.hpp"

namespace suites::cause_table {

using namespace codes;

Rules ranks() {
  return {
      {.id = "rank-reads-other-data",
       .what = "The ranks {ranks} read rows that are no rows of the step, or from another place in the data",
       .weight = 46,
       .clue = {.codes = {kRankData}, .evidence = {{"ranks", "*"}}},
       .explains = {{.codes = {kRankData, kRankRows, kRankDied, kRankHangsInside, kRankHangsOutside, kRankGradients,
                               kRankNorm, kRankBlocks, kRankLoss, kRankRun, kRankResume, kRankEnded}}}},
      {.id = "rank-rows",
       .weight = 45,
       .clue = {{kRankRows}},
       .explains = {{.codes = {kRankDied, kRankHangsInside, kRankHangsOutside, kRankGradients, kRankNorm, kRankBlocks,
                               kRankLoss, kRankRun, kRankResume, kRankEnded}}}},
      {.id = "rank-not-finite",
       .what = "The ranks {ranks} alone have a value that is not finite: the gradient of {parameter}",
       .weight = 44,
       .clue = {.codes = {kRankNotFinite}, .evidence = {{"ranks", "*"}, {"parameter", "*"}}},
       .explains = {{.codes = {kRankNotFinite, kRankNotTold, kRankRun, kRankEnded}}}},
      {.id = "rank-gradients-as-if",
       .what = "The gradients of several ranks are what they would be if {as_if}",
       .weight = 43,
       .clue = {.codes = {kRankGradients}, .evidence = {{"as_if", "*"}}},
       .explains = {{.codes = {kRankGradients, kRankNorm, kRankUpdate, kRankLoss, kRankRun, kRankResume}}}},
      {.id = "rank-norm-as-if",
       .what = "The norm by which ranks clip is what it would be if {as_if}",
       .weight = 42,
       .clue = {.codes = {kRankNorm}, .evidence = {{"as_if", "*"}}},
       .explains = {{.codes = {kRankNorm, kRankUpdate, kRanksDrift, kRankRun, kRankResume}}}},
      {.id = "rank-skips-parameter",
       .weight = 41,
       .clue = {{kRankSkipsParameter}},
       .explains = {{.codes = {kRankHangsInside, kRankHangsOutside, kRankGradients, kRankReductions, kRankRun}}}},
      {.id = "ranks-drift",
       .weight = 40,
       .clue = {{kRanksDrift}},
       .explains = {{.codes = {kRankLoss, kRankRun, kRankResume}}}},
      {.id = "rank-gradients",
       .weight = 39,
       .clue = {{kRankGradients}},
       .explains = {{.codes = {kRankNorm, kRankLoss, kRankRun, kRankResume}}}},
  };
}

}  // namespace suites::cause_table
