// What this project reads that others write: each reader with a corpus of its own.
#pragma once

#include <filesystem>
#include <vector>

#include "fuzz/driver.hpp"

namespace fuzz {

// `source`: the root of the source tree; a target's corpus is fixtures/fuzz/NAME and the files of that kind that stand
// elsewhere in the tree. `scratch`: a folder for inputs that are read from a file.
[[nodiscard]] std::vector<Target> targets(const std::filesystem::path& source, const std::filesystem::path& scratch);

}  // namespace fuzz
