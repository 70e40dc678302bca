// What `doctor` says of NSA's own: build, flags, variables, host, GPUs and who holds them, data, and whether the
// planned training step fits. The judgements are preflight's (machine/). No torch, no CUDA context: what only they can
// tell has been asked of a worker, and is missing when LibTorch cannot be loaded.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "harness/program.hpp"
#include "suites/machine/memory_plan.hpp"
#include "suites/probes/nvml.hpp"

namespace suites {

// The stored memory law of a step on a device (preflight/memory.cpp); reading laws needs LibTorch.
using LawOf =
    std::function<std::optional<machine::FittedLaw>(const machine::PlannedStep& step, const std::string& device)>;

// For Program::diagnose. Without `law_of` the memory estimate is a lower count.
[[nodiscard]] harness::Diagnosis diagnose(const harness::Settings& settings, const harness::Json& provenance,
                                          const harness::DeviceProbe& probe, const LawOf& law_of = nullptr);

// The part about GPUs, for a driver library that a test may fake.
[[nodiscard]] harness::Diagnosis diagnose_gpus(const probes::Nvml& nvml);
// What an inspection becomes: one good row, or a row for each judgement that does not hold, graver
// than a warning or not.
[[nodiscard]] std::vector<harness::Diagnosis::Row> rows_of(const machine::Inspection& inspection);

}  // namespace suites
