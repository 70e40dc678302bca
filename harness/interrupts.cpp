#include "harness/interrupts.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include "base/stop_signals.hpp"
#include "harness/journal_writer.hpp"

namespace harness {

Interrupts::Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : base::kStopSignals)
    if (!base::stays_ignored(signal)) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, &before_);
  fd_ = Fd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (fd_.get() < 0) throw InfrastructureError("signalfd is not available");
}

Interrupts::~Interrupts() {
  (void)arrived();  // one that waits would strike as soon as it is let through
  sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> Interrupts::arrived() {
  signalfd_siginfo info{};
  while (read(fd_.get(), &info, sizeof info) == sizeof info) {
    if (!signal_) signal_ = static_cast<int>(info.ssi_signo);
  }
  return signal_;
}

reports::ExitCode interruption_by(int signal) {
  return signal == SIGINT ? reports::ExitCode::interrupted : reports::ExitCode::terminated;
}

}  // namespace harness
