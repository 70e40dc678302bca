// Writing so that a kill, a full disk or a power cut leaves what was there before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/atomic_file.hpp"

namespace nsa::train {

using base::AtomicFile;
using base::FileError;

// What this process writes to is no more what others see there: deleted, moved, replaced or cut behind its back.
class FileLost : public FileError {
 public:
  FileLost(const std::filesystem::path& path, std::string_view how);  // how: "replaced"
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

[[nodiscard]] std::string read_text(const std::filesystem::path& file);  // the whole file; throws FileError

}  // namespace nsa::train
