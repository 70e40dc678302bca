// What the mutants of the sources (suites/faults/sources/) need beside the other faults: those that are known to change
// nothing, who noticed them first, and which checks notice nothing at all. Pure: no process, no file.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "suites/selftest/score.hpp"

namespace suites::selftest {

inline constexpr const char* kEquivalentSchema = "nsa-validate/selftest-equivalent";
inline constexpr const char* kEquivalentVersion = "1.0.0";

// Mutants that change nothing that anybody could notice: name -> why, by hand.
using Equivalents = std::map<std::string, std::string>;
// Throws BaselineError for what is damaged or foreign, and for a reason that is none. `name` for messages.
[[nodiscard]] Equivalents parse_equivalents(const std::string& text, const std::string& name);
// One that is known to change nothing did not survive, it is equivalent. What was noticed stays what it is.
void mark(Trial& trial, const Equivalents& known);
// Marked so, and noticed all the same: the reason is wrong.
[[nodiscard]] std::vector<std::string> wrongly_marked(std::span<const Trial> trials, const Equivalents& known);
// Marked so, and in the catalogue no more.
[[nodiscard]] std::vector<std::string> marked_in_vain(std::span<const std::string> catalogue, const Equivalents& known);

// The suite whose case had the first finding, over the mutants of the sources: with their median time to detection.
[[nodiscard]] std::vector<Score> by_first_suite(std::span<const Trial> trials);
// The kind of mutation, which is the last but one part of a mutant's name ("sdpa-rows-boundary-4787f1").
[[nodiscard]] std::vector<Score> by_kind(std::span<const Trial> trials);

// Of all faults that ran: how many each code was raised by, and which cases ran and noticed none.
struct Noticed {
  std::map<std::string, std::size_t> codes;  // of mutants of the sources alone
  std::map<std::string, std::size_t> cases;
  std::vector<std::string> silent_cases;
  std::vector<std::string> silent_suites;
};
[[nodiscard]] Noticed noticed(std::span<const Trial> trials);

}  // namespace suites::selftest
