#include "harness/session.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/stacks.hpp"
#include "harness/worker.hpp"

namespace harness {

using base::steady_seconds;
using reports::Status;

namespace {

constexpr double kGrace = 1.0;            // between SIGTERM and SIGKILL
constexpr double kExitGrace = 10.0;       // between the worker's last word and its end
constexpr double kStacksGrace = 3.0;      // for a worker that is asked for its stacks
constexpr double kFirstWord = 0.5;        // for each of its threads, until one begins to write
constexpr std::size_t kStackLines = 120;  // in a finding; all of them are in the file
constexpr std::size_t kStackLineBytes = 300;
constexpr std::size_t kStacksBytes = 8 << 20;  // of the file, which the worker can write as it likes
constexpr const char* kSelf = "/proc/self/exe";

bool readable(int fd, double seconds) {
  pollfd poll_fd = {fd, POLLIN, 0};
  return poll(&poll_fd, 1, static_cast<int>(seconds * 1000)) == 1;
}

// Of this machine, as it is for a worker and all that it started. Valid as long as `process`.
LoadReader load_for(const Process& process) {
  base::LoadSources sources;
  sources.own_cpu_s = [&process] { return process.cpu_seconds(); };
  sources.all_tasks = [&process] {
    std::vector<std::filesystem::path> folders;
    for (const pid_t pid : process.tree()) folders.emplace_back(fmt::format("/proc/{}/task", pid));
    return folders;
  };
  return [meter = base::LoadMeter(sources)] { return meter.read(); };
}

std::string stacks_in(const std::filesystem::path& file) try {
  return base::read_head(file, kStacksBytes);
} catch (const std::exception&) {
  return "";
}

// By the words of a worker that died of an exception that nobody caught.
bool ended_by_bad_alloc(const std::vector<std::string>& last_lines) {
  return std::any_of(last_lines.begin(), last_lines.end(), [](const std::string& line) {
    return line.starts_with("terminate called after throwing an instance of ") &&
           (line.find("std::bad_alloc'") != std::string::npos || line.find("OutOfMemoryError'") != std::string::npos);
  });
}

}  // namespace

std::unique_ptr<Process> Session::start_worker() {
  return std::make_unique<Process>(kSelf, std::vector<std::string>{kSelf, kWorkerVerb});
}

Session::Session(Parts parts, const WorkOrder& order, std::span<const PlannedCase> cases)
    : parts_(std::move(parts)),
      order_(order),
      cases_(cases),
      feed_(parts_.recorder, order.suite, cases, order.seed, order.worker),
      log_name_(fmt::format("logs/worker-{}.log", order.worker)),
      log_(order.folder / log_name_, parts_.limits.log_bytes),
      started_at_(steady_seconds()) {
  parts_.process->give(to_text(order));
  watchdog_.begin({parts_.limits.start_s, parts_.limits.start_s}, started_at_);
}

Session::Result Session::run() {
  while (state_ == State::running) {
    wait_for_something();
    read_output();  // before the events, so that what a case printed is there when it ends
    read_events();
    parts_.recorder.progress().tick();
    if (state_ == State::running) {
      if (const auto signal = parts_.interrupts.arrived()) {
        stop();
        feed_.cancel({Status::cancelled, "interrupted", signal_name(*signal)});
      }
    }
    if (state_ == State::running) watch();
    if (state_ == State::running && readable(parts_.process->pid_fd(), 0)) on_exit();
  }
  std::error_code ignored;  // most workers have none
  std::filesystem::remove(waiting_file(order_), ignored);
  result_.ended = feed_.ended();
  result_.started = hello_;
  result_.interrupted = parts_.interrupts.arrived();
  return result_;
}

void Session::wait_for_something() {
  const double step = std::clamp(parts_.limits.hang_s / 20, 0.02, 0.25);
  pollfd fds[] = {{parts_.process->output_fd(), POLLIN, 0},
                  {parts_.process->event_fd(), POLLIN, 0},
                  {parts_.process->pid_fd(), POLLIN, 0},
                  {parts_.interrupts.fd(), POLLIN, 0}};
  poll(fds, std::size(fds), static_cast<int>(step * 1000));
}

void Session::read_output() {
  std::string bytes;
  read_available(parts_.process->output_fd(), bytes);
  log_.add(bytes);
}

bool Session::read_events() {
  std::string bytes;
  read_available(parts_.process->event_fd(), bytes);
  reader_.feed(bytes);
  try {
    std::string line;
    while (state_ == State::running && reader_.next(line)) accept(line);
  } catch (const ProtocolViolation& error) {
    violation(error.what());
  }
  return !bytes.empty();
}

void Session::accept(const std::string& line) {
  Json event;
  try {
    event = Json::parse(line);
  } catch (const Json::exception&) {
    throw ProtocolViolation(fmt::format("a line that is not JSON: {:.200}", line));
  }
  const std::string kind = event.is_object() && event.contains("event") && event["event"].is_string()
                               ? event["event"].get<std::string>()
                               : throw ProtocolViolation(fmt::format("a line that is not an event: {:.200}", line));
  watchdog_.heard(steady_seconds());
  if (kind == "progress") return;
  if (kind == "hello" && !hello_) return note_hello(event);
  if (kind == "bye" && feed_.ended() > 0) {
    if (const PlannedCase* in_flight = parts_.recorder.in_flight(); in_flight != nullptr)
      throw ProtocolViolation(fmt::format("says that it is done in the middle of case '{}'", in_flight->id));
    bye_ = true;
    return watchdog_.begin({kExitGrace, kExitGrace}, steady_seconds());
  }
  const std::size_t ended = feed_.ended();
  feed_.accept(event);
  if (kind == "case_begin" || kind == "retry") {
    const double own = std::chrono::duration<double>(cases_[ended].work.timeout).count();
    const double timeout = parts_.limits.timeout_s > 0 ? parts_.limits.timeout_s : own;
    const double waiting = kind == "retry" ? parts_.limits.calm_s : 0;
    watchdog_.begin({parts_.limits.hang_s, timeout + waiting}, steady_seconds());
    load_ = {};
    told_of_more_time_ = false;
  } else if (kind == "case_end") {
    watchdog_.begin({parts_.limits.hang_s, WatchLimits::kBusyFactor * parts_.limits.hang_s}, steady_seconds());
    told_of_more_time_ = false;
    if (parts_.fail_fast && !parts_.recorder.last_passed()) stop();
  }
}

void Session::note_hello(const Json&) {
  hello_ = true;
  parts_.recorder.event({{"event", "worker_begin"},
                         {"worker", order_.worker},
                         {"pid", parts_.process->pid()},
                         {"suite", order_.suite},
                         {"start_s", steady_seconds() - started_at_}});
  watchdog_.begin({parts_.limits.hang_s, WatchLimits::kBusyFactor * parts_.limits.hang_s}, steady_seconds());
}

std::string Session::where() const {
  const Recorder& recorder = parts_.recorder;
  if (recorder.in_flight() == nullptr) return feed_.finished() ? "after its last case" : "before the case had begun";
  const std::string phase = recorder.phase().empty() ? "" : fmt::format(" in phase '{}'", recorder.phase());
  return fmt::format("{:.1f} s into the case{}", recorder.elapsed_s(), phase);
}

Json Session::evidence() const {
  Json found = {{"worker", order_.worker},
                {"phase", parts_.recorder.phase()},
                {"log", log_name_},
                {"last_lines", log_.last_lines()}};
  if (watchdog_.stood_still_s() > 0) found["stood_still_s"] = watchdog_.stood_still_s();  // not counted
  return found;
}

void Session::ask_for_stacks() const {
  const pid_t process = parts_.process->pid();
  const std::filesystem::path file = stacks_file(order_);
  const double deadline = steady_seconds() + kStacksGrace;
  const auto over = [&] { return steady_seconds() >= deadline || readable(parts_.process->pid_fd(), 0.02); };
  // The main thread first. Where that is stuck in the kernel, another one tells.
  for (const pid_t thread : base::thread_ids(process)) {
    if (syscall(SYS_tgkill, process, thread, base::stacks_signal()) != 0) continue;
    for (const double turn = steady_seconds() + kFirstWord; steady_seconds() < turn && stacks_in(file).empty();)
      if (over()) return;
    if (!stacks_in(file).empty()) break;
  }
  while (!stacks_in(file).ends_with(base::kEndOfStacks) && !over()) {
  }
}

std::string Session::add_stacks(Json& evidence) const {
  const std::filesystem::path file = stacks_file(order_);
  std::string text = base::readable_stacks(stacks_in(file));
  if (!text.empty()) {
    const Fd fd(base::open_own(file, O_WRONLY | O_CREAT | O_TRUNC));
    if (fd.get() >= 0 && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()))
      evidence["stacks_file"] = file.lexically_relative(order_.folder).string();
  } else if (!parts_.process->reaped()) {  // it did not answer: stopped, or in the kernel
    text = base::threads_of(parts_.process->pid());
  }
  Json lines = Json::array();
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (lines.size() == kStackLines) {
      lines.push_back("...");
      break;
    }
    lines.push_back(line.size() > kStackLineBytes ? line.substr(0, kStackLineBytes) + "..." : line);
  }
  if (!lines.empty()) evidence["stacks"] = lines;
  // Of a worker that hangs, another thread than its main one may tell, and be the first.
  if (!parts_.process->reaped() && !text.starts_with(fmt::format("thread {} ", parts_.process->pid()))) return "";
  const std::string function = base::top_function(text);
  return function.empty() ? "" : fmt::format(", in {:.200}", function);
}

std::string Session::add_waiting(Json& evidence) const try {
  std::string whom = base::read_head(waiting_file(order_), kMaxWaiting);
  whom.resize(std::min(whom.size(), whom.find('\0')));
  if (whom.empty()) return "";
  evidence["waited_for"] = whom;
  return "; it waited for " + whom;
} catch (const std::exception&) {  // it never waited for anybody
  return "";
}

void Session::violation(const std::string& what) {
  feed_.blame({std::string(codes::kProtocol), std::nullopt,
               fmt::format("worker {} broke the protocol {}: {}", order_.worker, where(), what), evidence()},
              {Status::error, "protocol", "the worker wrote something that is not an event of its case"});
  stop();
}

void Session::watch() {
  const double now = steady_seconds();
  if (now < next_look_) return;
  next_look_ = now + base::HangClock::look_s(parts_.limits.hang_s);
  parts_.recorder.check_journal();  // a case that is silent for long must not hide that it runs for nothing
  const bool in_flight = parts_.recorder.in_flight() != nullptr;
  if (in_flight && !load_) load_ = parts_.load ? parts_.load() : load_for(*parts_.process);
  const double stood_still = watchdog_.stood_still_s();
  const WatchVerdict verdict = watchdog_.look(now, parts_.process->cpu_seconds());
  if (watchdog_.stood_still_s() > stood_still && in_flight)
    parts_.recorder.tell({{"event", "fact"},
                          {"case", parts_.recorder.in_flight()->id},
                          {"key", "stood_still"},
                          {"value", {{"seconds", watchdog_.stood_still_s()}, {"counts_as_hang", false}}}});
  if (verdict == WatchVerdict::fine) return;
  if (bye_) return stop();
  if (!hello_) {
    result_.not_started = {
        std::string(codes::kWorkerStart), std::nullopt,
        fmt::format("worker {} did not say hello within {:g} s", order_.worker, parts_.limits.start_s), evidence()};
    return stop();
  }
  const bool timeout = verdict == WatchVerdict::timeout && in_flight;
  std::string what = "no progress and no CPU time";
  if (verdict != WatchVerdict::idle) what = "busy, no progress";
  if (timeout) what = "still running at its absolute limit";
  if (verdict != WatchVerdict::idle && in_flight) {
    const base::Load load = load_();
    if (has_more_time(now, load)) return;
    if (load.slowdown() > WatchLimits::kPatience) return give_up(what, load);
  }
  ask_for_stacks();
  Json facts = evidence();
  if (told_of_more_time_) facts["load"] = to_json(load_());
  const std::string function = add_stacks(facts);
  const std::string message =
      fmt::format("{}: silent for {:.1f} s, {}{} (worker {}, killed){}", what, watchdog_.silent_s(now), where(),
                  function, order_.worker, add_waiting(facts));
  feed_.blame({std::string(timeout ? codes::kTimeout : codes::kHang), std::nullopt, message, facts},
              {Status::hang, timeout ? "timeout" : "hang", what});
  stop();
}

bool Session::has_more_time(double now, const base::Load& load) {
  if (watchdog_.beyond(now, std::min(load.slowdown(), WatchLimits::kPatience))) return false;
  if (!told_of_more_time_)
    parts_.recorder.tell({{"event", "fact"},
                          {"case", parts_.recorder.in_flight()->id},
                          {"key", "more_time"},
                          {"value", {{"after_s", parts_.recorder.elapsed_s()}, {"load", to_json(load)}}}});
  told_of_more_time_ = true;
  return true;
}

void Session::give_up(const std::string& what, const base::Load& load) {
  ask_for_stacks();
  Json facts = evidence();
  add_stacks(facts);
  facts["load"] = to_json(load);
  parts_.recorder.tell(
      {{"event", "fact"}, {"case", parts_.recorder.in_flight()->id}, {"key", "given_up"}, {"value", facts}});
  feed_.cancel({Status::inconclusive, "machine_busy",
                fmt::format("{}, {:g} times the usual, {}, and not judged: {}; repeat it on a calm machine", what,
                            WatchLimits::kPatience, where(), load.describe())});
  stop();
}

void Session::stop() {
  state_ = State::done;
  parts_.process->signal_group(SIGTERM);
  // The pipes are drained meanwhile: a worker that blocks in a write cannot act on SIGTERM in its own way.
  const double deadline = steady_seconds() + kGrace;
  while (!readable(parts_.process->pid_fd(), 0.02) && steady_seconds() < deadline) {
    std::string ignored;
    read_available(parts_.process->output_fd(), ignored);
    read_available(parts_.process->event_fd(), ignored);
  }
  const Exit exit = parts_.process->reap();
  if (!hello_) return;
  parts_.recorder.event({{"event", "worker_end"},
                         {"worker", order_.worker},
                         {"how", "killed"},
                         {"value", exit.value},
                         {"max_rss_kib", exit.max_rss_kib},
                         {"cpu_s", exit.user_s + exit.system_s}});
}

void Session::on_exit() {
  // All that it said before it died counts.
  while (state_ == State::running && read_events()) {
  }
  if (state_ != State::running) return;
  state_ = State::done;
  read_output();
  const Exit exit = parts_.process->reap();
  const std::string how = exit.by_signal ? fmt::format("died by {}", signal_name(exit.value))
                                         : fmt::format("exited with status {}", exit.value);
  Json facts = evidence();
  facts.update({{exit.by_signal ? "signal" : "exit_status", exit.value}, {"max_rss_kib", exit.max_rss_kib}});
  std::string_view code = codes::kCrash;
  std::string why;
  if (exit.by_signal && exit.value == SIGKILL) {  // not by us: then this is not asked
    const Kill kill = kill_watch_.look(parts_.process->pid(), exit.max_rss_kib * 1024);
    code = kill.out_of_memory ? codes::kOutOfMemory : codes::kKilled;
    facts.update(kill.evidence);
    why = "; " + kill.why;
  } else if (exit.by_signal && exit.value == SIGABRT && ended_by_bad_alloc(log_.last_lines())) {
    code = codes::kOutOfMemory;
  }
  // Whoever was asked meanwhile can send a signal, and nothing tells who has sent one.
  if (exit.by_signal && code != codes::kOutOfMemory)
    if (const std::string waited = add_waiting(facts); !waited.empty())
      why = waited + ", and may have been ended by it" + why;
  if (!hello_) {
    result_.not_started = {std::string(codes::kWorkerStart), std::nullopt,
                           fmt::format("worker {} {} before it said hello{}", order_.worker, how, why), facts};
    return;
  }
  const std::string message = fmt::format("worker {} {} {}{}{}", order_.worker, how, where(), add_stacks(facts), why);
  if (exit.by_signal && (bye_ || feed_.finished())) {  // no case is to blame
    parts_.recorder.finding({std::string(code), reports::Severity::warn, message, facts});
  } else if (exit.by_signal) {
    feed_.blame({std::string(code), std::nullopt, message, facts},
                {Status::crash, code == codes::kOutOfMemory ? "out_of_memory" : "signal", how});
  } else if (!reader_.partial().empty()) {
    feed_.blame({std::string(codes::kProtocol), std::nullopt,
                 fmt::format("{}, in the middle of an event: {:.200}", message, reader_.partial()), facts},
                {Status::crash, "half_an_event", how});
  } else if (!bye_) {
    feed_.blame({std::string(codes::kVanished), std::nullopt, message, facts}, {Status::crash, "vanished", how});
  }
  parts_.recorder.event({{"event", "worker_end"},
                         {"worker", order_.worker},
                         {"how", exit.by_signal ? "signal" : "exit"},
                         {"value", exit.value},
                         {"max_rss_kib", exit.max_rss_kib},
                         {"cpu_s", exit.user_s + exit.system_s}});
}

Session::Result run_in_process(const Program& program, const Settings& settings, const WorkOrder& order,
                               std::span<const PlannedCase> cases, Recorder& recorder) {
  CaseFeed feed(recorder, order.suite, cases, order.seed, order.worker);
  recorder.event({{"event", "worker_begin"}, {"worker", order.worker}, {"pid", getpid()}, {"suite", order.suite}});
  run_cases(program, settings, order, [&](const Json& event) {
    if (event.at("event") != "progress") feed.accept(event);
    recorder.progress().tick();
  });
  recorder.event({{"event", "worker_end"}, {"worker", order.worker}, {"how", "exit"}, {"value", 0}});
  return {feed.ended(), true, std::nullopt};
}

}  // namespace harness
