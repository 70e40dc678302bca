#include "nsa/train/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/files.hpp"

namespace nsa::train {

namespace {

std::int64_t size_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw FileError("cannot look at", path, errno);
  return status.st_size;
}

}  // namespace

FileLost::FileLost(const std::filesystem::path& path, std::string_view how)
    : FileError(fmt::format("{}: {} while the run was going on", path.string(), how), path) {}

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw FileError("cannot open", path_, errno);
  size_ = size_of(fd_, path_);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view line) {
  check();
  const std::int64_t before = size_of(fd_, path_);
  if (const int error = base::write_fully(fd_, line.data(), line.size()); error != 0) {
    if (::ftruncate(fd_, before) != 0) throw FileError("cannot write, nor cut off half a line of", path_, errno);
    throw FileError("cannot write", path_, error);
  }
  size_ = before + static_cast<std::int64_t>(line.size());
}

void AppendFile::check() const {
  if (const std::string how = base::taken_away(fd_, path_); !how.empty()) throw FileLost(path_, how);
  if (size_of(fd_, path_) < size_) throw FileLost(path_, "cut");
}

void AppendFile::sync() {
  check();
  if (::fsync(fd_) != 0) throw FileError("cannot sync", path_, errno);
}

std::string read_text(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw FileError("cannot open", file, errno);
  std::string text;
  char buffer[1 << 14];
  ssize_t count = 0;
  while ((count = ::read(fd, buffer, sizeof buffer)) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      ::close(fd);
      throw FileError("cannot read", file, error);
    }
    text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(fd);
  return text;
}

}  // namespace nsa::train
