// How a process of the program ends: every exception becomes one message and one exit code, and output that did not
// arrive is accounted for.
#pragma once

#include <functional>

#include "reports/status.hpp"

namespace harness {

// The code of `work`, or that of what it threw, which is told. Never throws.
[[nodiscard]] reports::ExitCode explained(const std::function<reports::ExitCode()>& work);

// `code`, or a worse one when something that was printed did not arrive.
[[nodiscard]] reports::ExitCode account_for_streams(reports::ExitCode code);

}  // namespace harness
