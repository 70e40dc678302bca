#include "harness/interrupts.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include "harness/journal_writer.hpp"

namespace harness {

namespace {

// What `nohup` asks for. (Held back, an ignored signal would arrive all the same.)
bool is_ignored_hangup(int signal) {
  struct sigaction now {};
  return signal == SIGHUP && sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

Interrupts::Interrupts() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU})
    if (!is_ignored_hangup(signal)) sigaddset(&set, signal);
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

}  // namespace harness
