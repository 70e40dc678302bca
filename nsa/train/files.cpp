#include "nsa/train/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/files.hpp"

namespace nsa::train {

namespace {

std::int64_t size_of(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw FileError("cannot look at", path, errno);
  return status.st_size;
}

constexpr std::size_t kLargestWrite = 64 << 20;  // a signal or a full disk is noticed in between

void write_fully(int fd, const void* data, std::size_t bytes, const std::filesystem::path& path) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, next, std::min(bytes, kLargestWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw FileError("cannot write", path, written < 0 ? errno : ENOSPC);
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

}  // namespace

FileError::FileError(std::string_view what, const std::filesystem::path& path, int error)
    : std::runtime_error(fmt::format("{} {}: {}", what, path.string(), std::strerror(error))) {}

FileLost::FileLost(const std::filesystem::path& path, std::string_view how)
    : FileError(fmt::format("{}: {} while the run was going on", path.string(), how)) {}

AtomicFile::AtomicFile(std::filesystem::path target)
    : target_(std::move(target)), temporary_(target_.string() + std::string(kTemporary)) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) throw FileError("cannot create", temporary_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) { write_fully(fd_, data, bytes, temporary_); }

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) throw FileError("cannot sync", temporary_, errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw FileError("cannot rename to", target_, errno);
  ::close(fd_);
  fd_ = -1;
  sync_folder(target_.has_parent_path() ? target_.parent_path() : ".");
}

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw FileError("cannot open", path_, errno);
  size_ = size_of(fd_, path_);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view line) {
  check();
  const std::int64_t before = size_of(fd_, path_);
  try {
    write_fully(fd_, line.data(), line.size(), path_);
  } catch (const FileError&) {
    if (::ftruncate(fd_, before) != 0) throw FileError("cannot write, nor cut off half a line of", path_, errno);
    throw;
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

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw FileError("cannot open", folder, errno);
  const int error = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;  // EINVAL: a file system that has no such thing
  ::close(fd);
  if (error != 0) throw FileError("cannot sync", folder, error);
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
