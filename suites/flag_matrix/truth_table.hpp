// What the NSA_* variables must mean, written out by hand. Nothing is computed as the product computes it: rows are
// rows, and the routing rule is the text of the specification in the order of its words.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "nsa/route.hpp"

namespace suites::flag_truth {

// NSA_USE_FA2, _WIN, _CMP: '-' unset, '0', '1'. The 27 settings.
struct Fa2Row {
  char use, win, cmp;
  bool all_effective, win_effective, cmp_effective;
  [[nodiscard]] nsa::Environment environment() const;
};
[[nodiscard]] const std::array<Fa2Row, 27>& fa2_table();

// One setting of the matrix: a variable, a value and what the effective flags must then say.
struct Setting {
  std::string name, value;
  std::function<bool(const nsa::EffectiveFlags&)> in_force;
  [[nodiscard]] std::string text() const { return name + "=" + value; }
};
[[nodiscard]] const std::vector<Setting>& settings();
// In the order of the arguments; two settings of one variable cannot be combined.
[[nodiscard]] nsa::Environment together(const std::vector<const Setting*>& chosen);
// Settings that contradict one another and must be refused.
[[nodiscard]] bool contradictory(const nsa::Environment& environment);

// "1" and "0" as the value of a boolean variable; both false when it is unset.
[[nodiscard]] bool on(const nsa::Environment& environment, const std::string& name);
[[nodiscard]] bool off(const nsa::Environment& environment, const std::string& name);
// The branch that is forced, "" when none is.
[[nodiscard]] std::string forced_branch(const nsa::Environment& environment);

// Which way each attention must take.
struct Ways {
  std::string compressed, selected, window;
};
[[nodiscard]] Ways expected_ways(const nsa::Environment& environment, const nsa::Call& call);

// Which way the norms of a model of width `dim` must take: "cuda" or "aten".
[[nodiscard]] std::string expected_norm(const nsa::Environment& environment, const nsa::Call& call, std::int64_t dim);

// Whether the MLP must be one node of autograd.
[[nodiscard]] bool expects_joined_mlp(const nsa::Environment& environment, const nsa::Call& call);

// Whether a layer's projections must be one product.
[[nodiscard]] bool expects_one_product(const nsa::Environment& environment, const nsa::Call& call);

// Where a branch asks for FlashAttention-2 and does not get it: words of which the route's reason must hold all of one
// set; any rule that refuses may be the one that is named. Empty when it is not asked for, or taken.
[[nodiscard]] std::vector<std::vector<std::string>> refusal_words(const nsa::Environment& environment,
                                                                  const nsa::Call& call, nsa::Op op);

// Every field of the effective flags of a legal environment (booleans as 0/1, numbers in their shortest form): its
// value, and the setting that it comes from ("default" when none decides it).
struct Field {
  std::string value, origin;
  bool in_own_words = false;  // the product explains itself behind `origin`
};
[[nodiscard]] std::map<std::string, Field> expected_fields(const nsa::Environment& environment);
// The variables that these tables know. One that is in the product's flag table and not here has no witness.
[[nodiscard]] const std::vector<std::string>& known_variables();

}  // namespace suites::flag_truth
