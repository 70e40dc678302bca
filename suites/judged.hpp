// The implementation that a run judges in the place of our own functions, as its settings name it (implementation/).
#pragma once

#include <memory>

#include "harness/settings.hpp"
#include "reports/json.hpp"
#include "suites/implementation/client.hpp"

namespace suites {

// Null where the settings name none. Nothing is started yet.
[[nodiscard]] std::shared_ptr<implementation::Client> implementation_of(const harness::Settings& settings);

// Starts it and lets it describe itself: what a report says of it, or null where the settings name none; "claims"
// is the description itself. Throws harness::UsageError for a file that is not there and a description that
// contradicts itself, harness::InfrastructureError for a Python that cannot be started, a torch or an adapter that
// cannot be loaded.
[[nodiscard]] reports::Json described_implementation(const harness::Settings& settings);

}  // namespace suites
