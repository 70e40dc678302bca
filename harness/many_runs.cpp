#include "harness/many_runs.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <list>

#include "base/clock.hpp"
#include "base/environment.hpp"
#include "harness/interrupts.hpp"
#include "harness/process.hpp"

namespace harness {

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTickMs = 250;
constexpr double kMostPassed = 2;  // seconds between two looks; what is beyond, this process or the machine stood still

class Running {
 public:
  Running(const std::string& executable, const Job& job, std::size_t number)
      : number_(number),
        name_(job.name),
        process_(executable, job.argv, {fmt::format("{}={}", kStarterVariable, getpid())}),
        log_(job.log, std::ios::binary) {
    process_.give("");
  }

  [[nodiscard]] std::size_t number() const { return number_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  void passed(double seconds) { counted_ += seconds; }
  [[nodiscard]] double counted() const { return counted_; }  // towards the limit
  [[nodiscard]] pollfd end() const { return {process_.pid_fd(), POLLIN, 0}; }
  [[nodiscard]] pollfd output() const { return {open_ ? process_.output_fd() : -1, POLLIN, 0}; }

  // A log that cannot be written costs no result.
  void read() {
    std::string text;
    open_ = read_available(process_.output_fd(), text);
    log_.write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  void kill() const { process_.signal_group(SIGKILL); }
  Ended reap() {
    const Exit exit = process_.reap();
    if (open_) read();
    return {exit.by_signal ? 128 + exit.value : exit.value, "", base::seconds_since(begin_)};
  }

 private:
  std::size_t number_;
  std::string name_;
  Process process_;
  std::ofstream log_;
  Clock::time_point begin_ = Clock::now();
  double counted_ = 0;
  bool open_ = true;
};

}  // namespace

int run_all(const std::string& executable, std::span<const Job> jobs, const Limits& limits,
            const std::function<void(std::size_t, const Ended&)>& ended,
            const std::function<void(const std::vector<std::string>&)>& tick) {
  Interrupts interrupts;
  std::list<Running> running;
  std::size_t next = 0;
  Clock::time_point looked = Clock::now();
  while (next < jobs.size() || !running.empty()) {
    while (next < jobs.size() && running.size() < limits.at_once) {
      const std::size_t number = next++;
      try {
        running.emplace_back(executable, jobs[number], number);
      } catch (const std::exception& error) {
        ended(number, {0, error.what(), 0});
      }
    }
    std::vector<pollfd> waits = {{interrupts.fd(), POLLIN, 0}};
    std::vector<std::string> names;
    for (const Running& one : running) {
      waits.push_back(one.end());
      waits.push_back(one.output());
      names.push_back(one.name());
    }
    tick(names);
    (void)poll(waits.data(), waits.size(), kTickMs);
    if (const auto signal = interrupts.arrived()) return *signal;  // the processes are killed with their groups
    const double passed = std::min(base::seconds_since(looked), kMostPassed);
    looked = Clock::now();
    std::size_t at = 1;
    for (auto one = running.begin(); one != running.end(); at += 2) {
      if (waits[at + 1].revents != 0) one->read();
      one->passed(passed);
      const bool over = one->counted() > limits.seconds;
      if (waits[at].revents == 0 && !over) {
        ++one;
        continue;
      }
      if (over) one->kill();
      Ended result = one->reap();
      result.overran = over;
      if (over) result.trouble = fmt::format("still running after {:.0f} s, and killed", limits.seconds);
      ended(one->number(), result);
      one = running.erase(one);
    }
  }
  return 0;
}

void end_with_starter() {
  const auto told = base::variable(kStarterVariable);
  if (!told) return;
  const auto starter = static_cast<pid_t>(std::strtol(told->c_str(), nullptr, 10));
  unsetenv(kStarterVariable);                                 // it is this process's, not that of what this one starts
  if (getppid() != starter && kill(starter, 0) == 0) return;  // a script stands between, and is waited for
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != starter) _exit(128 + SIGTERM);
}

}  // namespace harness
