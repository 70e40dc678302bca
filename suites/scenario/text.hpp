// A scenario's result as text and as JSON.
#pragma once

#include "suites/scenario/judge.hpp"

namespace suites::scenario {

inline constexpr const char* kResultSchema = "nsa-validate/scenario-result";
inline constexpr const char* kResultVersion = "1.0.0";

// Verdict, causes in order, facts one by one, then how it ends. `comparison`: that of all attempts, "" for one alone.
[[nodiscard]] std::string text_of(const Scenario& scenario, const std::vector<Ran>& ran, const Result& result,
                                  const std::string& comparison);
[[nodiscard]] Json json_of(const Scenario& scenario, const std::vector<Ran>& ran, const Result& result);

}  // namespace suites::scenario
