// A self-test as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "suites/selftest/baseline.hpp"
#include "suites/selftest/mutants.hpp"
#include "suites/selftest/score.hpp"

namespace suites::selftest {

inline constexpr const char* kSchema = "nsa-validate/selftest";
inline constexpr const char* kSchemaVersion = "1.0.0";

struct Clean {  // the runs without a fault
  std::size_t runs = 0, alarmed = 0;
  std::vector<std::string> alarms;  // what was said, each once
  std::vector<std::string> broken;  // runs that say nothing
};

struct Result {
  std::string level, device;
  bool whole_catalogue = true;  // no fault was left out by name
  Json run = Json::object();    // id, argv, times, build
  std::vector<Trial> trials;
  CodeScores codes;
  Equivalents equivalents;
  std::vector<std::string> marked_in_vain;
  Clean clean;
  std::optional<Comparison> comparison;
  std::string baseline;  // its file
  int exit_code = 0;
};

// "caught       future-leak        NSA-N005, cause first, 3.2 s"
[[nodiscard]] std::string line_of(const Trial& trial);
// The tables, what was missed with its command, false alarms, codes, baseline.
[[nodiscard]] std::string text_of(const Result& result);
[[nodiscard]] Json json_of(const Result& result);

}  // namespace suites::selftest
