#include "base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "base/fd.hpp"

namespace base {

namespace fs = std::filesystem;

FileError::FileError(std::string_view what, const fs::path& path, int error)
    : std::runtime_error(fmt::format("{} {}: {}", what, path.string(), std::strerror(error))),
      path_(path),
      error_(error) {}

std::string read_head(const fs::path& file, std::size_t most) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::status_known(status) || status.type() == fs::file_type::not_found)
    throw fs::filesystem_error("", file, error);
  if (!fs::is_regular_file(status))
    throw fs::filesystem_error("", file, std::make_error_code(std::errc::not_supported));
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw fs::filesystem_error("", file, std::error_code(errno, std::generic_category()));
  const auto size = fs::file_size(file, error);
  std::string text(error ? most : std::min<std::uintmax_t>(size, most), '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw fs::filesystem_error("", file, std::error_code(errno, std::generic_category()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

std::string taken_away(int fd, const fs::path& file) {
  struct stat own {
  }, there{};
  if (::fstat(fd, &own) != 0) return std::strerror(errno);
  if (::stat(file.c_str(), &there) != 0)
    return errno == ENOENT || errno == ENOTDIR ? "deleted or moved away" : std::strerror(errno);
  return own.st_dev == there.st_dev && own.st_ino == there.st_ino ? "" : "replaced";
}

int open_own(const fs::path& file, int flags) {
  Fd folder(open_own_folder(file.has_parent_path() ? file.parent_path() : fs::path("."), O_PATH));
  if (folder.get() < 0) return -1;
  const int fd = open_within(folder.get(), file.filename(), flags, 0644);
  const int error = errno;
  folder.reset();
  errno = error;
  return fd;
}

int open_own_folder(const fs::path& folder, int flags) {
  const int fd = open(folder.c_str(), flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd >= 0) return fd;
  struct stat there {};  // a link is no folder
  const int error = errno;
  errno = error == ENOTDIR && lstat(folder.c_str(), &there) == 0 && S_ISLNK(there.st_mode) ? ELOOP : error;
  return -1;
}

int open_within(int folder, const fs::path& name, int flags, unsigned mode) {
  // O_NONBLOCK: a pipe is refused, and its reader not waited for.
  const int fd = openat(folder, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
  struct stat opened {};
  if (fd < 0 || (fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

int write_fully(int fd, const void* data, std::size_t bytes) {
  constexpr std::size_t kMost = 64 << 20;  // a signal or a full disk is noticed in between
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, next, std::min(bytes, kMost));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return 0;
}

}  // namespace base
