// From a run to everything that a user reads, and to the exit code: the same path for a run that just ended and for the
// `report` verb on an old one.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "harness/process.hpp"
#include "reports/causes.hpp"

namespace harness {

struct PublishOptions {
  std::optional<std::filesystem::path> folder;        // where the report files go; absent: nowhere
  std::optional<std::filesystem::path> summary_file;  // report.md is appended to it
  bool quiet = false;                                 // print the summary line only
  std::string color = "auto";
  bool streams = false;  // a stream that is lost by the end is a loss of the run: its report files say so
};

// Finds the likely causes by the program's table, writes the report files and prints the console report. What cannot be
// written is a finding of the run, NSA-X009: told in all that is written after it and on every stream that is left,
// with exit code `infrastructure` where that is worse. The rest is still done.
[[nodiscard]] reports::ExitCode publish(reports::Run run, std::span<const reports::CauseRule> causes,
                                        const PublishOptions& options);

// Says before a run what would go wrong after it. Throws UsageError when the file cannot be opened or is one that the
// run itself writes in `folder`, by whatever name or link, or a pipe that nobody reads; InfrastructureError when
// nothing can be written to it. Changes nothing. Keep what it returns until the file was written: the reader of a pipe
// would see its end before.
[[nodiscard]] Fd check_summary_file(const std::filesystem::path& file, const std::filesystem::path& folder);

}  // namespace harness
