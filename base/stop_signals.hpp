// The signals that ask a program to stop in good order: SIGINT, SIGTERM, SIGHUP (the terminal or connection is
// gone; not under nohup), SIGUSR1 (a batch system's word that the time is almost up) and SIGXCPU (the limit on CPU
// time is near).
#pragma once

#include <signal.h>

#include <array>

namespace base {

inline constexpr std::array kStopSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};

// What `nohup` asks for: the signal stays ignored. (Held back, an ignored one would arrive all the same.)
[[nodiscard]] inline bool stays_ignored(int signal) {
  struct sigaction now {};
  return signal == SIGHUP && sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace base
