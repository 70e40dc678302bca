// Writing so that a kill, a full disk or a power cut leaves what was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace nsa::train {

// A file or folder that cannot be made, written or synced: what was tried, the path and the system's reason.
class FileError : public std::runtime_error {
 public:
  FileError(std::string_view what, const std::filesystem::path& path, int error);  // error: of errno

 protected:
  using std::runtime_error::runtime_error;
};

// What this process writes to is no more what others see there: deleted, moved, replaced or cut behind its back.
class FileLost : public FileError {
 public:
  FileLost(const std::filesystem::path& path, std::string_view how);  // how: "replaced"
};

// A file that appears whole or not at all: written as "<name>.tmp" beside it, synced, renamed, its folder synced.
// Whatever ends the writing before commit() leaves the old file as it was; the temporary one is removed.
class AtomicFile {
 public:
  static constexpr std::string_view kTemporary = ".tmp";

  explicit AtomicFile(std::filesystem::path target);  // throws FileError, as all of these
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
};

// A file that only grows, by whole lines: what could not be written completely is cut off again. append() and sync()
// throw FileLost as check() does, and write nothing then.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);  // made when missing
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void append(std::string_view line);
  void sync();         // what was appended survives a power cut
  void check() const;  // throws FileLost unless the path still leads to this file, with all that was appended

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::int64_t size_ = 0;  // what it must have at least
};

void sync_folder(const std::filesystem::path& folder);
[[nodiscard]] std::string read_text(const std::filesystem::path& file);  // the whole file; throws FileError

}  // namespace nsa::train
