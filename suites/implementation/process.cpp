#include "suites/implementation/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <system_error>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

constexpr double kTurn = 1000;                    // milliseconds
constexpr std::size_t kLongestAnswer = 16 << 20;  // bytes
constexpr std::size_t kGulp = 1 << 20;            // read of a pipe that somebody else still fills
constexpr std::chrono::seconds kTimeToDie{2};     // between closing its pipe and being gone

harness::Fd checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return harness::Fd(fd);
}

struct Pipe {
  harness::Fd read, write;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    read = harness::Fd(ends[0]);
    write = harness::Fd(ends[1]);
  }
};

// Each end of a pipe is a file of its own: the other one goes on blocking.
harness::Fd without_blocking(harness::Fd fd) {
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

std::string how_it_died(int status) {
  if (WIFSIGNALED(status)) return "killed by " + harness::signal_name(WTERMSIG(status));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

std::string unfinished(const std::string& answer) {
  return answer.empty() ? "" : fmt::format(", in the middle of its answer: {}", readable(answer, kShownBytes));
}

}  // namespace

struct Process::Ends {
  harness::Fd answers, output;
};

Process::Process(const Command& command) try {
  Pipe requests, answers, output;
  requests_ = without_blocking(std::move(requests.write));
  requests_read_end_ = std::move(requests.read);
  answers_ = without_blocking(std::move(answers.read));
  output_ = without_blocking(std::move(output.read));
  stop_ = checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");

  Program program;
  program.argv = {command.python, "-u", command.host.string(), command.adapter.string()};
  program.environment = {fmt::format("NSA_ADAPTER_FDS={},{},{}", kFirstPassed, kFirstPassed + 1, kFirstPassed + 2),
                         "PYTHONFAULTHANDLER=1"};  // where it was when a signal killed it, among its last words
  program.output = output.write.get();
  program.passed = {requests_read_end_.get(), answers.write.get(), command.arena};
  Ends ends{std::move(answers.write), std::move(output.write)};
  std::promise<pid_t> started;
  std::future<pid_t> pid = started.get_future();
  keeper_ = std::thread(&Process::keep, this, std::move(ends), std::move(program), std::move(started));
  try {
    pid_ = pid.get();
    pid_fd_ = checked(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)), "pidfd_open");
  } catch (...) {
    end();
    throw;
  }
} catch (const std::system_error& error) {
  throw ImplementationError("start", fmt::format("Python cannot be started: {}", error.what()));
}

Process::~Process() { end(); }

// The thread that is the child's parent: it must not end before the child.
void Process::keep(Ends ends, const Program& program, std::promise<pid_t> started) {
  try {
    const pid_t pid = spawn(program);
    ends.answers.reset();  // ours would keep the pipes open after the child is gone
    ends.output.reset();
    started.set_value(pid);
  } catch (...) {
    started.set_exception(std::current_exception());
    return;
  }
  drain();
}

void Process::drain() {
  bool stopped = false;
  for (bool open = true; !stopped;) {
    pollfd fds[] = {{stop_.get(), POLLIN, 0}, {open ? output_.get() : -1, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    stopped = fds[0].revents != 0;       // the group is dead: what it has written is here
    open = open && gulp();
  }
}

bool Process::gulp() {
  const std::lock_guard lock(output_mutex_);
  std::string chunk;
  const bool open = harness::read_available(output_.get(), chunk, kGulp);
  tail_.add(chunk);
  return open;
}

// What was written before an answer may still be in the pipe when the answer is here.
std::string Process::last_words() {
  gulp();
  return tail_.text();
}

void Process::end() {
  if (pid_ > 0 && !death_) {
    const bool by_itself = !running();
    kill(-pid_, SIGKILL);  // before its leader is collected: until then nobody else's group has the number
    int status = 0;
    rusage usage{};
    while (wait4(pid_, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    death_ = {how_it_died(status), ""};
    // The most that it held is a bound: until it was Python it was this process, and that counts.
    if (by_itself && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      death_->why = "; " + kill_watch_.look(pid_, usage.ru_maxrss * 1024).why;
  }
  if (!keeper_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  keeper_.join();
}

bool Process::running() const {
  pollfd end = {pid_fd_.get(), POLLIN, 0};
  return !death_ && poll(&end, 1, 0) == 0;
}

std::string Process::exchange(std::string_view line, Seconds patience) {
  if (death_) fail_dead(" before it was asked");
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
  send(std::string(line) + "\n", deadline, patience);
  return receive(deadline, patience);
}

// `fd` comes first: what a process has said before it died is still to be read.
Process::Seen Process::wait_for(int fd, short events, Clock::time_point deadline) const {
  for (;;) {
    const double left = std::chrono::duration<double, std::milli>(deadline - Clock::now()).count();
    pollfd fds[] = {{fd, events, 0}, {pid_fd_.get(), POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(std::clamp(std::ceil(left), 0.0, kTurn)));
    if (ready < 0) continue;  // EINTR
    if (ready == 0 && waiting_) waiting_();
    if (fds[0].revents != 0) return Seen::ready;
    if (fds[1].revents != 0) return Seen::ended;
    if (left <= 0) return Seen::late;
  }
}

void Process::send(std::string_view text, Clock::time_point deadline, Seconds patience) {
  while (!text.empty()) {
    const ssize_t n = write(requests_.get(), text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) fail("crashed", fmt::format("its pipe cannot be written to: {}", std::strerror(errno)));
    const Seen seen = wait_for(requests_.get(), POLLOUT, deadline);
    if (seen == Seen::ended) fail_dead(" before it had read the request");
    if (seen == Seen::late) fail("silent", fmt::format("it has not read the request within {:g} s", patience.count()));
  }
}

std::string Process::receive(Clock::time_point deadline, Seconds patience) {
  std::string answer;
  for (;;) {
    const Seen seen = wait_for(answers_.get(), POLLIN, deadline);
    if (seen == Seen::ended) fail_dead(unfinished(answer));
    if (seen == Seen::late)
      fail("silent", fmt::format("no answer within {:g} s{}", patience.count(), unfinished(answer)));
    const std::size_t before = answer.size();
    const bool open = harness::read_available(answers_.get(), answer);
    if (const std::size_t line_end = answer.find('\n', before); line_end != std::string::npos) {
      const std::string more = answer.substr(line_end + 1);
      if (!more.empty()) fail("protocol", "more than one line in answer to one: " + readable(more, kShownBytes));
      answer.resize(line_end);
      return answer;
    }
    if (!open) {  // it is about to die, or has gone mad
      if (wait_for(-1, 0, Clock::now() + kTimeToDie) == Seen::ended) fail_dead(unfinished(answer));
      fail("protocol", "it has closed its pipe of answers" + unfinished(answer));
    }
    if (answer.size() > kLongestAnswer)
      fail("protocol",
           fmt::format("an answer of more than {} bytes: {}", kLongestAnswer, readable(answer, kShownBytes)));
  }
}

void Process::fail(const char* kind, const std::string& message) {
  end();
  throw ImplementationError(kind, message, "", last_words());
}

void Process::fail_dead(const std::string& when) {
  end();
  fail("crashed", death_->how + when + death_->why);
}

}  // namespace suites::implementation
