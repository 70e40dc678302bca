// From a run to everything that a user reads, and to the exit code: the same path for a run that just ended and for the
// `report` verb on an old one.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "reports/causes.hpp"

namespace harness {

struct PublishOptions {
  std::optional<std::filesystem::path> folder;        // where the report files go; absent: nowhere
  std::optional<std::filesystem::path> summary_file;  // report.md is appended to it
  bool quiet = false;                                 // print the summary line only
  std::string color = "auto";
};

// Finds the likely causes by the program's table, writes the report files and prints the console report. What cannot be
// written is told on every stream that is left and makes the exit code `infrastructure`, where that is worse; the rest
// is still done.
[[nodiscard]] reports::ExitCode publish(reports::Run run, std::span<const reports::CauseRule> causes,
                                        const PublishOptions& options);

// Says before a run what would go wrong after it. Throws UsageError when the file cannot be opened or is one that the
// run itself writes in `folder`, by whatever name or link; InfrastructureError when nothing can be written to it.
// Changes nothing.
void check_summary_file(const std::filesystem::path& file, const std::filesystem::path& folder);

}  // namespace harness
