// The declared keys of preflight, which `doctor` reads as well. No torch call.
#pragma once

#include <vector>

#include "harness/settings.hpp"

namespace suites {

[[nodiscard]] std::vector<harness::SettingSpec> preflight_settings();

}  // namespace suites
