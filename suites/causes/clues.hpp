// What the rooms of the table share: its parts, and which findings follow from what.
#pragma once

#include <initializer_list>
#include <vector>

#include "reports/causes.hpp"

namespace suites::cause_table {

using reports::CauseRule;
using reports::Clue;
using Clues = std::vector<Clue>;
using Rules = std::vector<CauseRule>;

[[nodiscard]] Rules set_up();      // the program, its inputs, memory, crashes
[[nodiscard]] Rules non_finite();  // NaN and infinity
[[nodiscard]] Rules operations();  // the seven functions, alone
[[nodiscard]] Rules mistakes();    // what the oracle gives with one mistake made on purpose
[[nodiscard]] Rules stages();      // the model's stages, flags, gradients, decoding
[[nodiscard]] Rules initial_values();
[[nodiscard]] Rules training();
[[nodiscard]] Rules ranks();  // several processes that train one model
[[nodiscard]] Rules speed();

constexpr auto kFinite = Clue::Values::finite;
constexpr auto kNonFinite = Clue::Values::non_finite;

[[nodiscard]] Clues together(std::initializer_list<Clues> parts);
[[nodiscard]] Clues of_a_nan();         // it spreads: every check that compares something with it fails
[[nodiscard]] Clues of_wrong_values();  // a wrong value goes on through everything that is computed from it
[[nodiscard]] Clues of_wrong_gradients();
[[nodiscard]] Clues of_training();
[[nodiscard]] Clues of_decoding();

}  // namespace suites::cause_table
