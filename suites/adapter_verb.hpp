// `nsa-validate adapter check|new FILE`: what a user does before a run with --implementation FILE.
#pragma once

#include <optional>

namespace suites {

// check: what the adapter lacks or contradicts itself in, told by its own interpreter (exit code 0, 2 for mistakes, 4
// where it cannot be loaded). new: a skeleton with comments, which passes the check; an existing file is refused.
// nullopt: argv is another verb's.
[[nodiscard]] std::optional<int> adapter_verb(int argc, char** argv);

}  // namespace suites
