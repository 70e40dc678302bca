// The verb `run` (and `dry-run`, `--show-config`).
#pragma once

#include "harness/command_line.hpp"
#include "harness/plan.hpp"
#include "reports/status.hpp"

namespace harness {

// Settings from declarations, --config files and overrides, in this order. Throws UsageError.
[[nodiscard]] Settings make_settings(const Program& program, const CommandLine& line);
// Sets `run.device` to cpu or cuda, by a short-lived worker that looks, because the plan depends on it. Throws
// InfrastructureError when a GPU was asked for and none is usable.
DeviceProbe settle_device(Settings& settings, const CommandLine& line);
[[nodiscard]] Selection selection_of(const CommandLine& line);
// The plan that the selecting options describe; what the program says against the settings is thrown as UsageError.
[[nodiscard]] Plan make_plan(const Program& program, const Settings& settings, const CommandLine& line);

[[nodiscard]] reports::ExitCode run(const Program& program, const CommandLine& line);
[[nodiscard]] reports::ExitCode dry_run(const Program& program, const CommandLine& line);
[[nodiscard]] reports::ExitCode show_config(const Program& program, const CommandLine& line);

}  // namespace harness
