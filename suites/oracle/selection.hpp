// Is a choice of blocks justified by the scores? Two right answers may differ where scores tie within rounding, so a
// choice is never compared with another choice: it is judged against the fp64 scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "harness/context.hpp"
#include "nsa/config.hpp"

namespace suites::oracle {

struct SelectionVerdict {
  std::int64_t queries = 0;      // judged
  std::int64_t differing = 0;    // chose other blocks than the reference
  std::int64_t unjustified = 0;  // of them (or beyond): broke a rule, or preferred a clearly lower score
  double widest_tie = 0;         // largest excused gap in score
  std::string first_fault;       // in words, of the first unjustified query
  harness::Json first = harness::Json::object();  // its position, choice, reference choice and scores

  [[nodiscard]] bool good() const { return unjustified == 0; }
};

struct SelectionArgs {
  at::Tensor chosen;     // [B,S,G,n] int32, what is judged
  at::Tensor reference;  // [B,S,G,n] int32
  at::Tensor scores;     // [B,S,G,N_sel] fp64, importance
  nsa::Geometry geometry;
  double tie = 1e-5;                 // gap, relative to the row's largest score, within which two scores tie
  std::int64_t first = 1, last = 2;  // forced: so many first blocks, and so many last ones up to the query's own
  bool by_scores = true;             // false: by others, which nobody here knows; the rest of the rules is judged
};
// The rules for query t of one document: exactly min(n, t/l'+1) distinct blocks, ascending, then -1; none after t; the
// forced ones among them, as far as n reaches; and no block that was left out has a clearly higher score than a chosen
// one that is not forced.
[[nodiscard]] SelectionVerdict judge_selection(const SelectionArgs& args);

// bool [B,S,G]: the queries whose choice no rounding changes. All candidates fit, or the last block that is taken leads
// the best one that is left out by more than `margin` of its own score. scores [B,S,G,N_sel], of one document.
[[nodiscard]] at::Tensor decided(const at::Tensor& scores, const nsa::Geometry& geometry, double margin);

// The mistake in equations 8 to 11 by which one document's queries q [B,S,Hq,Dk] and compressed keys [B,N_c,G,Dk] give
// the choice [B,S,G,n], in words without a full stop ("the largest head of a group decides, not their sum"); "" where
// none that is known does. Looked for only where a choice is not justified.
[[nodiscard]] std::string mistake_in_choice(const at::Tensor& chosen, const at::Tensor& q, const at::Tensor& k_cmp,
                                            const nsa::Geometry& geometry);

}  // namespace suites::oracle
