#include "base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

namespace base {

namespace fs = std::filesystem;

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
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const int within = open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (within < 0) {  // a link is no folder
    struct stat there {};
    const int error = errno;
    errno = error == ENOTDIR && lstat(folder.c_str(), &there) == 0 && S_ISLNK(there.st_mode) ? ELOOP : error;
    return -1;
  }
  // O_NONBLOCK: a pipe is refused, and its reader not waited for.
  const int fd = openat(within, file.filename().c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  const int error = errno;
  close(within);
  errno = error;
  struct stat opened {};
  if (fd < 0 || (fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode))) return fd;
  close(fd);
  errno = EINVAL;
  return -1;
}

}  // namespace base
