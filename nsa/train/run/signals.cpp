#include "nsa/train/run/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace nsa::train {

namespace {

// What a handler may touch.
std::atomic<int> first_signal{0};
std::atomic<bool> asked{false};  // by SIGINT or SIGTERM, which somebody sends
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

// A connection that ends may send SIGHUP twice, SIGXCPU comes every second: neither is impatience.
void note(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if ((signal == SIGINT || signal == SIGTERM) && asked.exchange(true)) ::_exit(128 + signal);
}

struct Handled {
  int signal;
  void (*handler)(int);
  struct sigaction before;
};
std::array<Handled, 7> handled = {{{SIGINT, note, {}},
                                   {SIGTERM, note, {}},
                                   {SIGHUP, note, {}},
                                   {SIGUSR1, note, {}},
                                   {SIGXCPU, note, {}},
                                   {SIGXFSZ, SIG_IGN, {}},
                                   {SIGPIPE, SIG_IGN, {}}}};

}  // namespace

StopSignals::StopSignals() {
  first_signal = 0;
  asked = false;
  for (auto& one : handled) {
    struct sigaction action {};
    action.sa_handler = one.handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(one.signal, &action, &one.before);
    if (one.signal == SIGHUP && one.before.sa_handler == SIG_IGN)  // what `nohup` asks for
      sigaction(one.signal, &one.before, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (auto& one : handled) sigaction(one.signal, &one.before, nullptr);
}

std::optional<int> StopSignals::arrived() const {
  const int signal = first_signal;
  return signal == 0 ? std::nullopt : std::optional<int>(signal);
}

}  // namespace nsa::train
