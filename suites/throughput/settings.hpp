// The keys that throughput declares; a file of gates sets them for a GPU (gate_file.hpp).
#pragma once

#include <vector>

#include "harness/settings.hpp"

namespace suites {
[[nodiscard]] std::vector<harness::SettingSpec> throughput_settings();
}
