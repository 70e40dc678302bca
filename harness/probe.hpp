// Asks a short-lived worker what the machine offers, because this process must touch neither torch nor CUDA.
#pragma once

#include <filesystem>

#include "harness/program.hpp"

namespace harness {

// Never throws for a worker that dies or hangs: then the GPU is unusable, and why_not says what happened.
// `executable`: whose worker is asked; empty: this program's own.
[[nodiscard]] DeviceProbe probe_in_worker(double limit_s, const std::filesystem::path& executable = {});

}  // namespace harness
