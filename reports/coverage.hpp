// What a run's level claims and what it leaves open. Private to reports/; assess() puts it into the Assessment.
#pragma once

#include <string>
#include <vector>

#include "reports/model.hpp"

namespace reports {

// "ready for the standard level", ...: never more than the level above the one that ran, and less when only a part of
// the level was selected.
[[nodiscard]] std::string scope(const Run& run, Verdict verdict);

// The cases without a result, grouped by suite and reason, then what this level never covers.
[[nodiscard]] std::vector<std::string> not_tested(const Run& run);

}  // namespace reports
