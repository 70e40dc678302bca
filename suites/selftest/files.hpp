// What the runs of a self-test leave.
#pragma once

#include <filesystem>
#include <string>

#include "suites/selftest/score.hpp"

namespace suites::selftest {

// Of the run that left `folder` and ended with `exit_code`. What cannot be read is in Evidence::trouble.
[[nodiscard]] Evidence read_evidence(const std::filesystem::path& folder, int exit_code);

}  // namespace suites::selftest
