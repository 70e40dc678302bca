// The score that is kept in the tree (fixtures/selftest/): what became of each fault, so that a check that got worse is
// noticed. Only what says something else than before counts; times are not kept.
#pragma once

#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "suites/selftest/score.hpp"

namespace suites::selftest {

inline constexpr const char* kBaselineSchema = "nsa-validate/selftest-baseline";
inline constexpr const char* kBaselineVersion = "1.0.0";

struct Baseline {
  struct Row {
    Outcome outcome = Outcome::broken;
    bool cause_first = false;
  };
  std::string level, device;
  std::map<std::string, Row> faults;
};

// What is wrong with the file, by its name. `incompatible`: another major of the schema, level or device.
class BaselineError : public std::runtime_error {
 public:
  BaselineError(const std::string& what, bool other) : std::runtime_error(what), incompatible(other) {}
  bool incompatible;
};

// Throws BaselineError for what is damaged, empty, foreign or of another major. `name` for messages.
[[nodiscard]] Baseline parse_baseline(const std::string& text, const std::string& name);
// Throws BaselineError for one of another level or device.
void check_fits(const Baseline& baseline, const std::string& level, const std::string& device, const std::string& name);
[[nodiscard]] std::string to_text(const Baseline& baseline);
[[nodiscard]] Baseline baseline_of(std::span<const Trial> trials, const std::string& level, const std::string& device);
// `old` with the rows of those that were tried now; all other rows stay.
[[nodiscard]] Baseline with_rows_of(Baseline old, std::span<const Trial> trials);

struct Comparison {
  std::vector<std::string> lost;        // was caught, and is not any more
  std::vector<std::string> cause_lost;  // its cause was right first, and is not
  std::vector<std::string> gone;        // is not in the catalogue any more
  std::vector<std::string> gained;      // was not caught, and is
  std::vector<std::string> fresh;       // the baseline does not know it
  [[nodiscard]] bool worse() const { return !lost.empty() || !cause_lost.empty() || !gone.empty(); }
};
// Of the faults that were tried; `catalogue`: names of all that there are. A run that is broken is nobody's drop.
[[nodiscard]] Comparison compare(const Baseline& baseline, std::span<const Trial> trials,
                                 std::span<const std::string> catalogue);

}  // namespace suites::selftest
