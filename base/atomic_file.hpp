// A file that appears whole or not at all: a kill, a full disk or a power cut leaves what was there before.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "base/fd.hpp"
#include "base/files.hpp"

namespace base {

// Written as "<name>.tmp" beside its place, synced, renamed, its folder synced. Whatever ends the writing before
// commit() leaves the old file as it was; the temporary one is removed. Neither is written through: a link or a pipe by
// the temporary name is an error, and a link in the file's place is replaced.
class AtomicFile {
 public:
  static constexpr std::string_view kTemporary = ".tmp";
  enum class Folder { any, own };  // own: one that is a link is an error, as open_own() has it

  explicit AtomicFile(std::filesystem::path target, Folder folder = Folder::any);  // throws FileError, as all of these
  // In this open folder, whatever has got its name meanwhile; it stays the caller's, who keeps it open. `target` is
  // told in errors, and its last part is the name.
  AtomicFile(int folder, std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Not synced, it may be lost or empty after a power cut: for what can be made again.
  void commit(bool synced = true);

 private:
  void open();

  std::filesystem::path target_, temporary_;
  Fd own_folder_;
  int folder_;
  Fd file_;
  bool is_there_ = false;  // the temporary one
};

// All of a file at once.
void write_whole(const std::filesystem::path& target, std::string_view text,
                 AtomicFile::Folder folder = AtomicFile::Folder::any);

}  // namespace base
