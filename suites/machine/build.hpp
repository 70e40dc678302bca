// Is the program that runs the one that somebody thinks it is: built from the sources beside it,
// with a given commit in?
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "suites/machine/inspection.hpp"

namespace suites::machine {

// The id compiled in against the hash of the sources: "build" of a run's provenance.
[[nodiscard]] Inspection judge_build(const Json& build);

// What `git` prints for these words, nothing when it fails.
using Git = std::function<std::optional<std::string>(const std::vector<std::string>&)>;
[[nodiscard]] Git git_in(const std::filesystem::path& folder);
// The checkout must contain `commit` (any name that git understands), and the binary must be built from that checkout
// as it is. `build` as above.
[[nodiscard]] Inspection judge_fix(const std::string& commit, const Json& build, const Git& git);

}  // namespace suites::machine
