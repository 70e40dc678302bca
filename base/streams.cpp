#include "base/streams.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace base {

namespace {

// A disk without a free block. Others than root leave the reserved ones alone.
bool on_full_disk(int fd) {
  struct stat file {};
  struct statvfs disk {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode) || fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0) return false;
  return (geteuid() == 0 ? disk.f_bfree : disk.f_bavail) == 0;
}

}  // namespace

void guard_streams() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  int fd = -1;
  while ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd >= 0) close(fd);
}

void write_to(std::FILE* stream, std::string_view text) { (void)!std::fwrite(text.data(), 1, text.size(), stream); }

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return text;
  const std::size_t before = text.find_last_of('\n', end);
  return text.substr(before == std::string::npos ? 0 : before + 1);
}

void tell(std::string_view line) {
  std::fflush(stdout);  // in the order in which it was said, where both are one file
  const std::string text = fmt::format("{}\n", line);
  if (!lost(stderr)) write_to(stderr, text);
  if (lost(stderr)) write_to(stdout, text);
}

void complain(std::string_view what, std::string_view who) { tell(fmt::format("{}error: {}", who, what)); }

std::optional<std::string> unwritable(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) return std::strerror(EBADF);
  if (write(fd, "", 0) < 0 && errno != EAGAIN && errno != EINTR) return std::strerror(errno);
  pollfd reader = {fd, POLLOUT, 0};
  if (poll(&reader, 1, 0) == 1 && (reader.revents & POLLERR) != 0) return std::strerror(EPIPE);
  if (on_full_disk(fd)) return std::strerror(ENOSPC);
  return std::nullopt;
}

std::optional<std::string> lost(std::FILE* stream) {
  errno = 0;
  if (std::fflush(stream) == 0 && std::ferror(stream) == 0) return std::nullopt;
  const int error = errno;
  if (auto why = unwritable(fileno(stream))) return why;
  return std::strerror(error != 0 ? error : EIO);
}

}  // namespace base
