// What the harness cannot know, told by suites/: device, torch, flags, configuration.
#pragma once

#include <string>

#include "harness/program.hpp"

namespace suites {

inline constexpr const char* kProgramName = "nsa-validate";

// In a worker only: is there a usable GPU (a kernel runs and its result comes back right), and what are GPU, driver,
// runtime and torch?
[[nodiscard]] harness::DeviceProbe probe_device();
// In the supervisor, no torch and no CUDA: every NSA_* flag with effective value and origin, the resolved configuration
// ("config": {file, resolved: {"model.dim": "768", ...}, hash}).
[[nodiscard]] harness::Json provenance(const harness::Settings& settings);
// Flags and configuration must make sense before anything is planned. Throws harness::UsageError.
void validate(const harness::Settings& settings);
// Empty when the CUDA context (if there is one) still works.
[[nodiscard]] std::string device_health();

}  // namespace suites
