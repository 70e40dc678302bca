#include "nsa/train/run/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace nsa::train {

namespace {

// What a handler may touch.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) ::_exit(128 + signal);
}

struct Handled {
  int signal;
  void (*handler)(int);
  struct sigaction before;
};
std::array<Handled, 4> handled = {
    {{SIGINT, note, {}}, {SIGTERM, note, {}}, {SIGXFSZ, SIG_IGN, {}}, {SIGPIPE, SIG_IGN, {}}}};

}  // namespace

StopSignals::StopSignals() {
  first_signal = 0;
  for (auto& one : handled) {
    struct sigaction action {};
    action.sa_handler = one.handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(one.signal, &action, &one.before);
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
