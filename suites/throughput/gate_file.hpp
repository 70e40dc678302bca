// Which floor a training step is held against: the one that was set (--set, --config), else that of the GPU in use.
//
// configs/gates/NAME.yaml belongs to every GPU whose name holds NAME ("h200": "NVIDIA H200"; the longest NAME wins);
// default.yaml to all others and to the CPU. Each file is a file of settings as --config takes it, with the origin of
// its floor in a comment. `throughput.gate_model` names the model that a floor was measured with; for another model the
// floor of default.yaml holds.
#pragma once

#include <filesystem>
#include <string>

#include "harness/settings.hpp"

namespace suites::throughput_cases {

struct Floor {
  double tok_s = 0;
  std::string origin;  // "configs/gates/h200.yaml (for NVIDIA H200)", "--set", ...
};
// `gpu`: the device's name, "" for the CPU. `gates`: the folder. Throws harness::UsageError for a file that cannot be
// used, and when there is no default.yaml.
[[nodiscard]] Floor choose_floor(const harness::Settings& settings, const std::string& gpu, const std::string& model,
                                 const std::filesystem::path& gates);

}  // namespace suites::throughput_cases
