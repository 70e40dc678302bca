#include "harness/guardian.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "harness/interrupts.hpp"
#include "harness/journal_writer.hpp"
#include "harness/process.hpp"

namespace harness {

namespace {

[[noreturn]] void fail(const char* what) {
  throw InfrastructureError(
      fmt::format("--isolation none: cannot start the run's process: {}: {}", what, std::strerror(errno)));
}

[[noreturn]] void be_the_run(const std::function<reports::ExitCode()>& work, int word, const sigset_t& signals) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  const auto code = static_cast<unsigned char>(work());
  std::fflush(nullptr);
  (void)!write(word, &code, 1);
  std::exit(code);  // what libraries and profilers do at the end of a process is done
}

}  // namespace

Watched run_watched(const std::function<reports::ExitCode()>& work) {
  sigset_t signals;
  sigprocmask(SIG_SETMASK, nullptr, &signals);
  Interrupts interrupts;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  const Fd said(ends[0]);
  Fd word(ends[1]);
  std::fflush(nullptr);  // what is not written yet would be written twice
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) be_the_run(work, word.get(), signals);
  word.reset();

  Watched result;
  const Fd ended(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  pollfd fds[] = {{ended.get(), POLLIN, 0}, {interrupts.fd(), POLLIN, 0}};
  while (ended.get() >= 0 && (fds[0].revents & POLLIN) == 0) {
    poll(fds, std::size(fds), -1);
    if (!result.interrupted) {
      result.interrupted = interrupts.arrived();
      if (result.interrupted) kill(child, *result.interrupted);
    }
    (void)interrupts.arrived();
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.by_signal = WIFSIGNALED(status);
  result.how = result.by_signal ? fmt::format("died by {}", signal_name(WTERMSIG(status)))
                                : fmt::format("exited with status {}", WEXITSTATUS(status));
  unsigned char code = 0;
  if (::read(said.get(), &code, 1) == 1 && !result.by_signal && WEXITSTATUS(status) == code)
    result.code = static_cast<reports::ExitCode>(code);
  return result;
}

}  // namespace harness
