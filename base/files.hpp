// Files and folders that may be anything: read within bounds, written to only where they are the caller's own, and
// whether an open one is still where it was opened. Whole files: atomic_file.hpp.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace base {

// A file or folder that cannot be made, written or synced: what was tried, the path and the system's reason.
class FileError : public std::runtime_error {
 public:
  FileError(std::string_view what, const std::filesystem::path& path, int error);  // error: of errno
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int error() const { return error_; }  // 0: no call failed

 protected:
  FileError(const std::string& text, const std::filesystem::path& path) : std::runtime_error(text), path_(path) {}

 private:
  std::filesystem::path path_;
  int error_ = 0;
};

// The first `most` bytes of a regular file, all of it where it is shorter. Throws std::system_error with the system's
// reason and the path; what is no regular file (a folder, a device, a pipe) is std::errc::not_supported.
[[nodiscard]] std::string read_head(const std::filesystem::path& file, std::size_t most);

// What has become of the file `file`, which was opened as `fd`: "" while the name leads to that very file; else
// "deleted or moved away", "replaced", or the system's reason. What is written to `fd` then is lost to all who look for
// it there, and no write tells.
[[nodiscard]] std::string taken_away(int fd, const std::filesystem::path& file);

// Opens a regular file with open(2)'s `flags`, made with mode 0644 under O_CREAT. Neither the file nor the folder that
// it stands in may be a link, which would lead to what is somebody else's. -1 with errno; ELOOP: there is such a link.
[[nodiscard]] int open_own(const std::filesystem::path& file, int flags);
// Its two steps. The folder, with `flags` O_PATH, or O_RDONLY for one that is to be synced.
[[nodiscard]] int open_own_folder(const std::filesystem::path& folder, int flags);
[[nodiscard]] int open_within(int folder, const std::filesystem::path& name, int flags, unsigned mode);

// Writes all of it, whatever the system takes at a time and whichever signal comes between. 0, or errno of what it
// could not write.
[[nodiscard]] int write_fully(int fd, const void* data, std::size_t bytes);

}  // namespace base
