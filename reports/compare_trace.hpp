// Where two runs part, bit by bit: the first step and stage of a case whose hash is another. A case that traces has the
// facts "trace/0", "trace/1", ...: {stage: hash} in the order of computation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/model.hpp"

namespace reports {

struct TracedCase {
  std::string id;
  std::int64_t steps = 0, hashes = 0;  // the same in both before they part
  struct Parting {
    std::int64_t step = 0;
    std::string stage;   // "" where a whole step is missing
    std::string what;    // "3f… and 91…", "only the first run has it"
    std::string before;  // the last stage that was the same, "" for none
  };
  std::optional<Parting> parting;  // none: the same bits to the end
};

// Of the cases that trace in both runs, in the order of the first. Throws std::invalid_argument, with the case and the
// fact, for a trace that is none.
[[nodiscard]] std::vector<TracedCase> compare_traces(const Run& a, const Run& b);
[[nodiscard]] std::string to_text(const std::vector<TracedCase>& cases);

}  // namespace reports
