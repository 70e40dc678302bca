#include "nsa/train/run/signals.hpp"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/stop_signals.hpp"

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

constexpr std::array kIgnored = {SIGXFSZ, SIGPIPE};
std::array<std::pair<int, struct sigaction>, base::kStopSignals.size() + kIgnored.size()> found;

}  // namespace

StopSignals::StopSignals(std::optional<pid_t> starter) : starter_(starter) {
  first_signal = 0;
  asked = false;
  std::size_t next = 0;
  const auto handle = [&](int signal, void (*handler)(int)) {
    auto& [which, was] = found[next++];
    which = signal;
    sigaction(signal, nullptr, &was);
    if (base::stays_ignored(signal)) return;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  };
  for (const int signal : base::kStopSignals) handle(signal, note);
  for (const int signal : kIgnored) handle(signal, SIG_IGN);
}

StopSignals::~StopSignals() {
  for (const auto& [signal, was] : found) sigaction(signal, &was, nullptr);
}

std::optional<int> StopSignals::arrived() const {
  const int signal = first_signal;
  return signal == 0 ? std::nullopt : std::optional<int>(signal);
}

bool StopSignals::starter_died() const {
  if (arrived() != SIGUSR1 || !starter_) return false;
  // An orphan has another parent; but the kernel sends the signal when the first thread of the starter has ended, and
  // the rest of it may need a moment more.
  for (int looks = 0; looks < 50 && ::getppid() == *starter_; ++looks)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return ::getppid() != *starter_;
}

std::string StopSignals::reason() const {
  const auto signal = arrived();
  return !signal ? "" : starter_died() ? "starter_died" : std::string("SIG") + sigabbrev_np(*signal);
}

}  // namespace nsa::train
