// Appends events to events.jsonl, each with one write() before anybody acts on it, so that a killed run keeps all it
// said. Also the guard of its own promises: an event that the reader would refuse is refused here, before it is
// written; and a run is judged by the bytes that it wrote itself, or not at all.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
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

// The journal is no longer what was written: replaced, deleted, cut or written to by somebody else.
class JournalLost : public InfrastructureError {
 public:
  using InfrastructureError::InfrastructureError;
};

class JournalWriter {
 public:
  static constexpr std::uintmax_t kReserveBytes = 1 << 20;

  // Creates `folder`/events.jsonl, which must not exist. Throws UsageError when that is impossible, InfrastructureError
  // when the disk is full.
  explicit JournalWriter(const std::filesystem::path& folder);
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // Adds "t" and "seq". Throws std::invalid_argument for an event that readers would refuse (nothing is
  // written), InfrastructureError when it cannot be written in full (what was written of the line is cut off
  // again), and as check() does.
  void append(const Json& event);

  // Goes on where a child process of this one ended that wrote through the same descriptor; a torn last line is cut
  // off. Returns the case that has begun and not ended. Throws JournalLost when the file is not this one, or no
  // journal.
  std::optional<std::string> adopt();

  [[nodiscard]] bool empty() const { return seq_ == 0; }
  // Throws JournalLost unless the file of this name is still the one that was written, as long as it was written.
  void check() const;
  // The run as the disk holds it, byte for byte what was written. Throws JournalLost.
  [[nodiscard]] reports::Run read_back() const;
  // The run as it was told, without the disk: what is left when the journal is lost.
  [[nodiscard]] reports::Run told() const;

  // Gives up the space that was set aside at the start, so that the end of the run and its reports fit on a full disk.
  void release_reserve();

 private:
  std::filesystem::path file_, reserve_;
  int fd_ = -1;
  off_t size_ = 0;
  bool torn_ = false;  // part of a line that could not be written is still there
  std::uint64_t hash_, seq_ = 0;
  reports::RunBuilder guard_;
};

// One line of JSON: invalid UTF-8 replaced, numbers that JSON cannot hold as their words (reports/json.hpp).
[[nodiscard]] std::string to_line(const Json& event);

}  // namespace harness
