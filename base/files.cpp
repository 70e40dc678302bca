#include "base/files.hpp"

#include <sys/stat.h>

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

}  // namespace base
