#include "base/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/files.hpp"
#include "base/text.hpp"

namespace base {

namespace {

constexpr const char* kProcess = ", process ";

// Locks of the open file and not of the process (F_OFD_*): nothing that this process opens or closes elsewhere gives
// them up, and they can be asked for without being taken.
struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string content(int fd) {
  std::array<char, 256> text{};
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  const std::string who(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  return who.empty() ? "another process" : first_line(who);
}

// A process that is killed while it starts another leaves the lock to that one until it has started: a moment only.
bool holder_is_gone(int fd) {
  const std::string who = content(fd);
  const std::size_t at = who.rfind(kProcess);
  const pid_t pid = at == std::string::npos ? 0 : std::atoi(who.c_str() + at + std::strlen(kProcess));
  return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

// Calls `try_it` until it gives true, or somebody who lives has the lock.
template <typename Try>
bool patiently(int fd, const Try& try_it) {
  for (int i = 0; i < 100; ++i) {
    if (try_it()) return true;
    const int error = errno;
    if ((error != EAGAIN && error != EACCES) || !holder_is_gone(fd)) {
      errno = error;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  errno = EAGAIN;
  return false;
}

// A link leads to a file that is not the run's, and what is no file is none of it either. O_NONBLOCK: opening a pipe
// waits for nobody.
constexpr int kHow = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

std::string foreign(const std::filesystem::path& file) {
  struct stat there {};
  if (lstat(file.c_str(), &there) != 0 || S_ISREG(there.st_mode)) return "";
  return fmt::format("{} is {}, a run makes a file there; move it away, or give another folder", file.string(),
                     S_ISLNK(there.st_mode) ? "a link" : "no regular file");
}

bool is_regular(int fd) {
  struct stat there {};
  return fstat(fd, &there) == 0 && S_ISREG(there.st_mode);
}

bool is_free(int fd) {
  struct flock lock = whole_file();
  const bool told = fcntl(fd, F_OFD_GETLK, &lock) == 0;
  errno = EAGAIN;
  return !told || lock.l_type == F_UNLCK;
}

bool take(int fd) {
  struct flock lock = whole_file();
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

}  // namespace

std::optional<std::string> FolderLock::holder(const std::filesystem::path& file) {
  const Fd fd(open(file.c_str(), kHow));
  if (fd.get() < 0 || !is_regular(fd.get()) || patiently(fd.get(), [&] { return is_free(fd.get()); }))
    return std::nullopt;
  return content(fd.get());
}

FolderLock::FolderLock(std::filesystem::path file, const std::string& who)
    : file_(std::move(file)), fd_(open(file_.c_str(), kHow | O_CREAT, 0644)) {
  error_ = fd_.get() < 0 ? errno : 0;
  if (why_ = foreign(file_); !why_.empty() || (fd_.get() >= 0 && !is_regular(fd_.get()))) {
    state_ = State::foreign;
  } else if (fd_.get() < 0) {
    state_ = State::unwritable;
    why_ = std::strerror(error_);
  } else if (!patiently(fd_.get(), [&] { return take(fd_.get()); })) {
    error_ = errno;
    state_ = error_ == EAGAIN || error_ == EACCES ? State::busy : State::unlockable;
    why_ = state_ == State::busy ? content(fd_.get()) : std::strerror(error_);
  } else {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    const std::string text = fmt::format("{}{}{} on {}\n", who, kProcess, getpid(), host.data());
    // On a full disk nobody is told who it is; the lock holds all the same.
    (void)!ftruncate(fd_.get(), 0);
    (void)!pwrite(fd_.get(), text.data(), text.size(), 0);
  }
}

std::string FolderLock::lost() const { return taken_away(fd_.get(), file_); }

}  // namespace base
