// Environment variables of other people's software: those that slow a run down or change its numbers, thread counts,
// the settings of torch's CUDA allocator, and variables that somebody pinned. The NSA_* variables: flags.hpp.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "suites/machine/inspection.hpp"

namespace suites::machine {

using Variables = std::map<std::string, std::string>;  // only those that are set
// From the "environment" of a run's provenance, which the harness recorded.
[[nodiscard]] Variables variables_of(const Json& provenance);

// Debugging aids that are still on, arithmetic that is not what the checks assume, and misspelt allocator settings.
[[nodiscard]] Inspection judge_variables(const Variables& variables);
// OMP_NUM_THREADS and its like against the cores that may be used, and `threads`, what torch made of it (0: unknown).
[[nodiscard]] Inspection judge_threads(const Variables& variables, int usable_cores, int threads);

// PYTORCH_CUDA_ALLOC_CONF as torch 2.11 reads it (PYTORCH_ALLOC_CONF when that is not set).
struct AllocatorSettings {
  std::string text, variable;                // as set, and where; "" when nothing is set
  std::map<std::string, std::string> known;  // key -> value
  std::vector<std::string> unknown;          // keys that torch would refuse or ignore
  [[nodiscard]] bool expandable_segments() const;
};
[[nodiscard]] AllocatorSettings allocator_settings(const Variables& variables);

// Pins: "NAME=value", "NAME=" for unset. Of a flag's effective field "fa2_win=true". Every pin that does not hold is
// one line of one finding. `fields`: what the flags mean together.
struct PinnedFacts {
  Variables variables;                        // NSA_* included
  std::vector<std::string> recorded;          // variables that may be pinned besides NSA_*: others nobody has looked at
  std::map<std::string, std::string> fields;  // "fa2_win" -> "true"
};
// What pins are judged by: the recorded variables and the NSA_* of `environment`, resolved.
[[nodiscard]] PinnedFacts pinned_facts(const Json& provenance, const Variables& environment);
// Throws harness::UsageError for a bad pin.
[[nodiscard]] Inspection judge_pins(const std::vector<std::string>& pins, const PinnedFacts& facts);
// A pin that can never be judged (no '=', a name that nobody looks at): the reason, "" for a good one.
[[nodiscard]] std::string bad_pin(const std::string& pin, const PinnedFacts& facts);

}  // namespace suites::machine
