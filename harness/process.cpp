#include "harness/process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

#include "base/proc.hpp"
#include "harness/journal_writer.hpp"
#include "harness/spawn_attributes.hpp"

namespace harness {

namespace {

[[noreturn]] void fail(const char* what) {
  throw InfrastructureError(fmt::format("cannot start a process: {}: {}", what, std::strerror(errno)));
}

struct Pipe {
  Fd read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
    read = Fd(ends[0]);
    write = Fd(ends[1]);
    fcntl(read.get(), F_SETFL, O_NONBLOCK);
  }
};

// dup2 onto the same number would leave close-on-exec set, so descriptors are first moved out of the way.
Fd above_standard(Fd fd) {
  const int copy = fcntl(fd.get(), F_DUPFD_CLOEXEC, 10);
  if (copy < 0) fail("fcntl");
  return Fd(copy);
}

using Processes = std::map<pid_t, base::ProcessStat>;

Processes all_processes() {
  Processes processes;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return processes;
  while (const dirent* entry = readdir(folder)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    if (const auto stat = base::process_stat(pid)) processes.emplace(pid, *stat);
  }
  closedir(folder);
  return processes;
}

bool descends_from(const Processes& processes, pid_t pid, pid_t ancestor) {
  for (int depth = 0; depth < 64 && pid > 1; ++depth) {
    if (pid == ancestor) return true;
    const auto at = processes.find(pid);
    if (at == processes.end()) return false;
    pid = at->second.parent;
  }
  return false;
}

}  // namespace

Process::Process(const std::string& executable, const std::vector<std::string>& argv,
                 const std::vector<std::string>& environment) {
  Pipe input, output, events;
  fcntl(input.read.get(), F_SETFL, 0);  // the child waits for it
  Fd in = above_standard(std::move(input.read));
  const Fd out = above_standard(std::move(output.write));
  const Fd event = above_standard(std::move(events.write));
  SpawnAttributes spawn;
  posix_spawn_file_actions_adddup2(&spawn.actions, in.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, out.get(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, event.get(), kEventFd);
  std::vector<char*> words, variables;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  for (const std::string& variable : environment) variables.push_back(const_cast<char*>(variable.c_str()));
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) variables.push_back(*entry);
  variables.push_back(nullptr);
  if (const int error =
          posix_spawnp(&pid_, executable.c_str(), &spawn.actions, &spawn.attributes, words.data(), variables.data());
      error != 0) {
    errno = error;
    fail(executable.c_str());
  }
  input_ = std::move(input.write);
  input_end_ = std::move(in);
  output_ = std::move(output.read);
  events_ = std::move(events.read);
  pid_fd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (pid_fd_.get() < 0) {
    const int error = errno;
    reap();
    errno = error;
    fail("pidfd_open");
  }
}

Process::~Process() {
  if (!reaped_) reap();
}

void Process::give(const std::string& input) {
  if (!input.empty() && fcntl(input_.get(), F_SETPIPE_SZ, static_cast<int>(input.size())) < 0) fail("its input");
  for (std::size_t done = 0; done < input.size();) {
    const ssize_t n = write(input_.get(), input.data() + done, input.size() - done);
    if (n < 0 && errno != EINTR) fail("its input");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  input_.reset();
  input_end_.reset();
}

void Process::signal_group(int signal) const {
  if (!reaped_) kill(-pid_, signal);
}

Exit Process::reap() {
  signal_group(SIGKILL);
  int status = 0;
  rusage usage{};
  while (wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return {WIFSIGNALED(status), WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), seconds(usage.ru_utime),
          seconds(usage.ru_stime), usage.ru_maxrss};
}

double Process::cpu_seconds() const {
  const auto processes = all_processes();
  double sum = 0;
  for (const auto& [pid, stat] : processes)
    if (descends_from(processes, pid, pid_)) sum += stat.cpu_s + stat.ended_cpu_s;
  return sum;
}

std::vector<pid_t> Process::tree() const {
  const auto processes = all_processes();
  std::vector<pid_t> tree;
  for (const auto& [pid, stat] : processes)
    if (descends_from(processes, pid, pid_)) tree.push_back(pid);
  return tree;
}

bool read_available(int fd, std::string& buffer, std::size_t limit) {
  char chunk[1 << 16];
  for (std::size_t done = 0; done < limit;) {
    const ssize_t n = read(fd, chunk, sizeof chunk);
    if (n == 0) return false;
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    buffer.append(chunk, static_cast<std::size_t>(n));
    done += static_cast<std::size_t>(n);
  }
  return true;
}

std::optional<std::string> output_of(const std::vector<std::string>& argv, double seconds) try {
  Process process(argv.at(0), argv);
  process.give("");
  std::string output;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (bool open = true; open;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd fds[] = {{process.output_fd(), POLLIN, 0}};
    if (left.count() <= 0 || poll(fds, 1, static_cast<int>(left.count())) == 0) return std::nullopt;
    open = read_available(process.output_fd(), output);
  }
  pollfd end = {process.pid_fd(), POLLIN, 0};
  if (poll(&end, 1, 1000) != 1) return std::nullopt;
  const Exit exit = process.reap();
  return !exit.by_signal && exit.value == 0 ? std::optional(output) : std::nullopt;
} catch (const InfrastructureError&) {
  return std::nullopt;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  const char* words = sigdescr_np(signal);
  return name != nullptr ? fmt::format("SIG{} ({})", name, words) : fmt::format("signal {}", signal);
}

}  // namespace harness
