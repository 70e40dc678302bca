// What the runs of a self-test leave, and what it writes itself.
#pragma once

#include <filesystem>
#include <string>

#include "suites/selftest/score.hpp"

namespace suites::selftest {

// Of the run that left `folder` and ended with `exit_code`. What cannot be read is in Evidence::trouble.
[[nodiscard]] Evidence read_evidence(const std::filesystem::path& folder, int exit_code);

// Beside its place first, then moved: nobody reads half of it. Throws std::runtime_error with the system's reason.
void write_atomically(const std::filesystem::path& file, const std::string& text);

}  // namespace suites::selftest
