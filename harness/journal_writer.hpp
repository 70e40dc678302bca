// Appends events to events.jsonl, each with one write() before anybody acts on it, so that a killed run keeps all it
// said. Also the guard of its own promise: an event that the reader would refuse is refused here, before it is written.
#pragma once

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "reports/journal.hpp"

namespace harness {

using reports::Json;

// The machine's fault, not the product's and not the user's: disk full, a worker that cannot be started. Exit code 4.
class InfrastructureError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class JournalWriter {
 public:
  // Creates `folder`/events.jsonl, which must not exist. Throws UsageError when that is impossible.
  explicit JournalWriter(const std::filesystem::path& folder);
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // Adds "t" and "seq". Throws std::invalid_argument for an event that readers would refuse (nothing is written) and
  // InfrastructureError when it cannot be written in full (what was written of the line is cut off again).
  void append(const Json& event);

  // Gives up the space that was set aside at the start, so that the end of the run and its reports fit on a full disk.
  void release_reserve();

 private:
  std::filesystem::path file_, reserve_;
  int fd_ = -1;
  long long size_ = 0;
  std::uint64_t seq_ = 0;
  reports::RunBuilder guard_;
};

// RFC 3339, UTC, milliseconds.
[[nodiscard]] std::string timestamp(std::chrono::system_clock::time_point time);
// One line of JSON: invalid UTF-8 replaced, numbers that JSON cannot hold as their words (reports/json.hpp).
[[nodiscard]] std::string to_line(const Json& event);

}  // namespace harness
