// The subset of JSON Schema draft-07 that the project's schemas use. A keyword outside the subset is an error and not
// ignored, so that a schema cannot ask for something that is never checked.
#pragma once

#include <string>
#include <vector>

#include "reports/json.hpp"

namespace reports::schema {

// Every violation as "/suites/0/name: what is wrong"; empty when `value` is valid.
// Throws std::invalid_argument for a schema outside the subset, wherever it stands.
[[nodiscard]] std::vector<std::string> violations(const Json& schema, const Json& value);

}  // namespace reports::schema
