// Names for the finding codes of codes.def, so that no suite spells one out.
#pragma once

#include <string_view>
#include <vector>

namespace harness {
struct Code;
}

namespace suites {
// All finding codes of the suites; include harness/codes.hpp to look at one.
[[nodiscard]] std::vector<harness::Code> finding_codes();
}  // namespace suites

namespace suites::codes {

#define CODE(constant, id, ...) inline constexpr std::string_view constant = id;
#define TIMED_CODE CODE
#include "suites/codes.def"
#undef TIMED_CODE
#undef CODE

}  // namespace suites::codes
