// The command line of nsa-train, as typed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nsa/config.hpp"

namespace nsa::train {

enum class DeviceChoice { automatic, cpu, cuda };

struct Options {
  std::filesystem::path config, out;
  std::optional<std::int64_t> steps;  // absent: train.steps
  std::vector<Override> overrides;    // --set, and the options that are short for one
  bool resume = false, force = false, quiet = false;
  std::optional<std::int64_t> nproc;  // ranks to start on this machine
  DeviceChoice device = DeviceChoice::automatic;
};

// nullopt when the line asked for --help or --version, which then stands on stdout. Throws UsageError.
[[nodiscard]] std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace nsa::train
