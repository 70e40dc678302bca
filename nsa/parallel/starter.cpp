#include "nsa/parallel/starter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/clock.hpp"
#include "base/proc.hpp"

extern char** environ;

namespace nsa::parallel {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// This process's variables with those of the rank in place of them: NAME=VALUE.
std::vector<std::string> variables_of(const RankProgram& program) {
  std::vector<std::string> all;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string text = *one;
    if (!program.environment.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : program.environment) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// In the child, between fork and exec: only what a signal handler may do, as other threads of the parent may hold
// locks.
[[noreturn]] void become(char* const* argv, char* const* variables, const RankProgram& program, pid_t parent,
                         int on_orphaned, int report) {
  ::setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int signal = 1; signal < 32; ++signal) {
    struct sigaction is {};
    if (::sigaction(signal, nullptr, &is) == 0 && is.sa_handler != SIG_IGN && is.sa_handler != SIG_DFL)
      ::signal(signal, SIG_DFL);
  }
  int error = 0;
  if (::prctl(PR_SET_PDEATHSIG, on_orphaned) != 0) error = errno;
  if (error == 0 && ::getppid() != parent) ::_exit(128 + SIGTERM);  // the starter died before the line above
  if (error == 0 && program.output >= 0 && ::dup2(program.output, STDOUT_FILENO) < 0) error = errno;
  if (error == 0 && program.error >= 0 && ::dup2(program.error, STDERR_FILENO) < 0) error = errno;
  if (error == 0) {
    ::execve(argv[0], argv, variables);
    error = errno;
  }
  (void)!::write(report, &error, sizeof error);
  ::_exit(127);
}

// Throws std::system_error with what the child could not do.
pid_t start(const RankProgram& program, int on_orphaned) {
  std::vector<std::string> arguments = program.argv, variables = variables_of(program);
  const auto argv = pointers(arguments), environment = pointers(variables);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) become(argv.data(), environment.data(), program, parent, on_orphaned, report[1]);
  const int fork_error = errno;
  ::close(report[1]);
  int error = 0;
  const bool failed = child > 0 && ::read(report[0], &error, sizeof error) == static_cast<ssize_t>(sizeof error);
  ::close(report[0]);
  if (child < 0) throw std::system_error(fork_error, std::generic_category(), "fork");
  if (failed) {
    ::waitpid(child, nullptr, 0);
    throw std::system_error(error, std::generic_category(), fmt::format("cannot run {}", program.argv.at(0)));
  }
  return child;
}

}  // namespace

bool is_stopped(pid_t pid) {
  const auto stat = base::process_stat(pid);
  return stat && stat->state == 'T';
}

std::string describe(const RankEnd& end) {
  const std::string who = fmt::format("rank {} (pid {})", end.rank, end.pid);
  if (!end.by_signal) return fmt::format("{} ended with exit code {} after {:.1f} s", who, end.value, end.after_s);
  const char* name = sigabbrev_np(end.value);
  return fmt::format("{} was killed by {}{}{} after {:.1f} s", who, name == nullptr ? "signal " : "SIG",
                     name == nullptr ? std::to_string(end.value) : name,
                     end.ended_by_us ? " (by its starter)"
                     : end.passed_on ? " (passed on by its starter)"
                                     : "",
                     end.after_s);
}

Ranks::Ranks(const std::vector<RankProgram>& programs, int on_orphaned) : began_(Clock::now()) {
  ranks_.reserve(programs.size());
  try {
    for (const RankProgram& program : programs) {
      const pid_t pid = start(program, on_orphaned);
      ranks_.push_back({pid, -1, false});
      ranks_.back().fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
      if (ranks_.back().fd < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open");
      (void)::fcntl(ranks_.back().fd, F_SETFD, FD_CLOEXEC);
    }
  } catch (...) {
    kill();
    while (wait(std::chrono::seconds(10))) {
    }
    throw;
  }
}

Ranks::~Ranks() {
  kill();
  while (alive() > 0 && wait(std::chrono::seconds(10))) {
  }
}

std::optional<RankEnd> Ranks::wait(milliseconds longest) {
  std::vector<pollfd> fds;
  for (const One& one : ranks_)
    if (one.pid != 0) fds.push_back({one.fd, POLLIN, 0});
  if (fds.empty()) return std::nullopt;
  if (::poll(fds.data(), fds.size(), static_cast<int>(longest.count())) < 0 && errno != EINTR)
    throw std::system_error(errno, std::generic_category(), "poll");
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    One& one = ranks_[rank];
    if (one.pid == 0) continue;
    siginfo_t info{};
    // Looked at before it is reaped: until then nobody else can get its number, and its group can be ended safely.
    if (::waitid(P_PID, static_cast<id_t>(one.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      continue;
    ::kill(-one.pid, SIGKILL);  // what it started and left
    ::waitpid(one.pid, nullptr, 0);
    ::close(one.fd);
    RankEnd end;
    end.rank = static_cast<int>(rank);
    end.pid = one.pid;
    end.by_signal = info.si_code != CLD_EXITED;
    end.value = info.si_status;
    end.ended_by_us = one.killed && end.by_signal && end.value == SIGKILL;
    end.passed_on = end.by_signal && passed_on_.contains(end.value);
    end.after_s = base::seconds_since(began_);
    one = {};
    return end;
  }
  return std::nullopt;
}

void Ranks::signal(int number) {
  passed_on_.insert(number);
  for (const One& one : ranks_)
    if (one.pid != 0) ::kill(one.pid, number);
}

void Ranks::kill(bool only_stopped) {
  for (One& one : ranks_) {
    if (one.pid == 0 || (only_stopped && !is_stopped(one.pid))) continue;
    one.killed = true;
    ::kill(-one.pid, SIGKILL);
    ::kill(one.pid, SIGKILL);  // before it had its group
  }
}

std::size_t Ranks::alive() const {
  return static_cast<std::size_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const One& one) { return one.pid != 0; }));
}

std::vector<pid_t> Ranks::pids() const {
  std::vector<pid_t> all;
  all.reserve(ranks_.size());
  for (const One& one : ranks_) all.push_back(one.pid);
  return all;
}

std::vector<RankEnd> watch(Ranks& ranks, const WatchOptions& options) {
  constexpr milliseconds kLook{50}, kForStopped{3'000};
  std::vector<RankEnd> ends;
  std::optional<Clock::time_point> kill_at;
  while (ranks.alive() > 0) {
    if (options.signal_to_pass_on)
      // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the loop's condition has seen it
      while (const auto signal = options.signal_to_pass_on()) ranks.signal(*signal);
    if (kill_at && Clock::now() >= *kill_at) ranks.kill();
    if (kill_at && Clock::now() >= *kill_at - options.grace + kForStopped) ranks.kill(/*only_stopped=*/true);
    const auto end = ranks.wait(kLook);
    if (!end) continue;
    ends.push_back(*end);
    if (options.ended) options.ended(*end);
    if (!kill_at && !end->well()) kill_at = Clock::now() + options.grace;
  }
  return ends;
}

}  // namespace nsa::parallel
