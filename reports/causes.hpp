// From the findings of a whole run to what most likely caused them: a declared table of causes, and one pure function
// that applies it. One defect shows in many cases; the table says which findings point at it (a clue), which cases must
// be clean for it, what speaks against it, and which findings only follow from it.
//
// A rule speaks when its clues have findings, all its `clean` cases ran without one, and nothing excludes it. The rules
// that speak are taken by weight. One whose findings all follow from those before it is dropped. A finding that no rule
// speaks for is a cause of its own, in the words of its code, so there is never none.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/model.hpp"

namespace reports {

// Which findings are meant. All that is said must hold. Globs as in fnmatch(3).
struct Clue {
  std::vector<std::string_view> codes;  // any of them; empty: every code
  std::string_view cases = "*";         // glob of the case's id; findings of the whole run have the id ""
  // Keys of the evidence and globs of their values (text, or JSON on one line). "!glob": any other value.
  std::vector<std::pair<std::string_view, std::string_view>> evidence = {};
  enum class Values { any, finite, non_finite } values = Values::any;  // whether the finding tells of NaN or infinity
};

struct CauseRule {
  std::string_view id;  // "nan-of-empty-rows"
  // The cause, one sentence without a full stop. {key} is the evidence of the finding that leads; every key that stands
  // here must be in the clue's evidence, so that it is there.
  // Empty: in the words of the leading finding's code.
  std::string_view what = {};
  int weight = 0;  // the likelier and the earlier in the order of computation, the more; a finding alone has 10
  Clue clue = {};
  std::vector<Clue> with = {};               // each must have a finding too
  std::vector<std::string_view> clean = {};  // globs: at least one case that passed, and no failing finding
  std::vector<Clue> excluded_by = {};        // by any of these findings
  std::vector<Clue> explains = {};           // findings that follow from it, besides the clue's own
  std::string_view next = {};                // what to do; empty: the leading finding's
};

// Fills run.causes from the failing findings, the likeliest first, and Finding::follows_from of those that only follow
// from one. Each failing finding belongs to one cause.
void find_causes(Run& run, std::span<const CauseRule> rules);

// What is wrong with a table, one line each: an id twice, an unknown code, a key of `what` that the clue does not ask
// for, a weight that a code alone has. `known`: all codes.
[[nodiscard]] std::vector<std::string> flaws(std::span<const CauseRule> rules, std::span<const std::string_view> known);

}  // namespace reports
