// From a journal to everything that a user reads, and to the exit code: the same path for a run that just ended and for
// the `report` verb on an old one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "reports/status.hpp"

namespace harness {

struct PublishOptions {
  std::optional<std::filesystem::path> summary_file;  // report.md is appended to it
  bool quiet = false;                                 // print the summary line only
  std::string color = "auto";
};

// Reads folder/events.jsonl, writes the report files beside it and prints the console report. Throws
// reports::JournalError for a journal that is missing or not one, UsageError for a bad summary file. Files that cannot
// be written are told on standard error and make the exit code `infrastructure`; the rest is still done.
[[nodiscard]] reports::ExitCode publish(const std::filesystem::path& folder, const PublishOptions& options);

}  // namespace harness
