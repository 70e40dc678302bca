#include "harness/worker.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "base/files.hpp"
#include "base/stacks.hpp"
#include "base/text.hpp"
#include "harness/journal_writer.hpp"
#include "harness/process.hpp"
#include "harness/worker_context.hpp"
#include "harness/worker_log.hpp"

namespace harness {

namespace {

constexpr std::size_t kMaxMessage = 4000;  // bytes of an exception's text; torch appends whole backtraces

std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : typeid(error).name();
}

constexpr const char* kUnhealthyReason = "unhealthy";

struct Outcome {
  reports::Status status = reports::Status::pass;
  std::string reason_code, reason;
};

// By type, and by the words of LibTorch's allocators, whose types the harness does not see.
bool says_out_of_memory(const std::exception& error) {
  const std::string_view what = error.what();
  const auto* of_system = dynamic_cast<const std::system_error*>(&error);
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         (of_system != nullptr && of_system->code() == std::errc::not_enough_memory) ||
         what.find("can't allocate memory") != std::string_view::npos ||
         what.find("out of memory") != std::string_view::npos;
}

// What a sticky error of a device makes the next call say is seldom that error: an illegal access comes back as a
// library's failure to launch something. So the process is asked what is wrong with it, and that stands first.
Outcome run_guarded(const Program& program, const Case& work, WorkerContext& context) {
  const auto threw = [&](std::string_view code, const std::string& type, std::string message) {
    if (message.size() > kMaxMessage) message = message.substr(0, kMaxMessage) + " [cut]";
    const std::string illness = program.health ? program.health() : "";
    const bool besides = !illness.empty() && message.find(illness) == std::string::npos;
    const std::string said = (besides ? illness + "; it showed as: " : "") + base::first_line(message);
    Json evidence = {{"type", type}, {"what", message}, {"said", said}, {"phase", context.last_phase()}};
    if (!illness.empty()) evidence["health"] = illness;
    context.finding(code, fmt::format("{}: {}{}", type, besides ? illness + "; it showed as: " : "", message),
                    evidence);
    return Outcome{reports::Status::error, code == codes::kOutOfMemory ? "out_of_memory" : "exception", said};
  };
  try {
    work.run(context);
    return {};
  } catch (const Skipped& skipped) {
    return {reports::Status::skip, skipped.reason_code, skipped.reason};
  } catch (const Inconclusive& open) {
    return {reports::Status::inconclusive, open.reason_code, open.reason};
  } catch (const std::exception& error) {
    return threw(says_out_of_memory(error) ? codes::kOutOfMemory : codes::kException, type_name(error), error.what());
  } catch (...) {
    return threw(codes::kException, "an exception that is not a std::exception", "no text");
  }
}

void plant_faults(const Program& program, const WorkOrder& order) {
  for (const std::string& name : order.faults) {
    for (const Fault& fault : program.faults)
      if (fault.name == name) fault.plant({order.folder, order.run_id});
  }
}

std::vector<Case> ordered_cases(const Program& program, const Settings& settings, const WorkOrder& order) {
  std::vector<Case> found;
  for (const Suite& suite : program.suites) {
    if (suite.name != order.suite) continue;
    const std::vector<Case> all = suite.cases(settings);
    for (const std::string& id : order.cases) {
      for (const Case& work : all)
        if (case_id(suite.name, work) == id) found.push_back(work);
    }
  }
  if (found.size() != order.cases.size())
    throw std::logic_error(
        fmt::format("suite '{}' enumerates other cases in the worker than in the supervisor: cases() "
                    "must depend on the settings only",
                    order.suite));
  return found;
}

// Whether it became calm within `seconds`.
bool wait_for_calm(WorkerContext& context, const LoadSource& source, double seconds) {
  constexpr int kLooks = 5;
  constexpr auto kPause = std::chrono::milliseconds(100);
  context.phase("waiting for a calm machine");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end) {
    const LoadReader load = source();
    for (int i = 0; i < kLooks; ++i) {
      std::this_thread::sleep_for(kPause);
      context.progress();
    }
    if (load().calm()) return true;
  }
  return false;
}

// A case whose only fault are times that others disturbed is run once more, on a calmer machine if there is one.
Outcome run_case(const Program& program, const Settings& settings, const WorkOrder& order, const CodeTable& codes,
                 const Case& work, const std::string& id, const EventSink& sink) {
  const LoadSource source = program.load ? program.load : measure_load;
  Json first_attempt;
  while (true) {
    WorkerContext context(order, settings, codes, id, sink, source);
    if (!first_attempt.is_null()) context.fact("first_attempt", first_attempt);
    Outcome outcome = run_guarded(program, work, context);
    if (const std::string illness = program.health ? program.health() : ""; !illness.empty()) {
      context.finding(codes::kUnhealthy, illness, {{"health", illness}});
      return {reports::Status::crash, kUnhealthyReason, illness};
    }
    if (outcome.status == reports::Status::pass && context.undecided()) {
      if (first_attempt.is_null()) {
        sink({{"event", "retry"}, {"case", id}, {"reason", context.what_was_withheld()}});
        const bool calm = wait_for_calm(context, source, settings.real("run.calm_s"));
        first_attempt = {{"withheld", context.withheld()}, {"then_calm", calm}};
        continue;
      }
      outcome = {reports::Status::inconclusive, "machine_busy",
                 fmt::format("timed twice on a busy machine, and not judged: {}; repeat it on a calm one",
                             context.what_was_withheld())};
    }
    context.tell_load(outcome.status);
    return outcome;
  }
}

}  // namespace

void run_cases(const Program& program, const Settings& settings, const WorkOrder& order, const EventSink& sink) {
  const CodeTable codes(program.codes);
  const std::vector<Case> cases = ordered_cases(program, settings, order);
  plant_faults(program, order);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string& id = order.cases[i];
    sink({{"event", "case_begin"}, {"case", id}, {"seed", derive_seed(order.seed, id, "case", 0)}});
    const Outcome outcome = run_case(program, settings, order, codes, cases[i], id, sink);
    sink({{"event", "case_end"},
          {"case", id},
          {"status", reports::to_string(outcome.status)},
          {"reason_code", outcome.reason_code},
          {"reason", outcome.reason}});
    if (outcome.reason_code == kUnhealthyReason) return;
  }
}

namespace {

// One line, one write (when it fits into the pipe), one thread at a time.
class PipeSink {
 public:
  explicit PipeSink(int fd) : fd_(fd) {}
  void operator()(const Json& event) {
    const std::string line = to_line(event);
    if (line.size() >= kMaxLine)
      throw std::length_error(fmt::format("an event ('{}') of {} bytes; allowed are {}: write an artifact instead",
                                          event.value("event", ""), line.size(), kMaxLine));
    const std::lock_guard lock(mutex_);
    for (std::size_t done = 0; done < line.size();) {
      const ssize_t n = write(fd_, line.data() + done, line.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) _exit(2);  // the supervisor is gone; nobody is left to tell
      done += static_cast<std::size_t>(n);
    }
  }

 private:
  int fd_;
  std::mutex mutex_;
};

// A worker must not outlive its supervisor, however that dies.
void die_with(pid_t supervisor) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != supervisor) _exit(2);
}

void print_heading(const std::string& id) {
  std::fflush(stdout);
  const std::string line = WorkerLog::heading(id);
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

Json probe(const Program& program) {
  const DeviceProbe found = program.probe_device ? program.probe_device() : DeviceProbe{false, "not probed", {}};
  return {{"event", "device"},
          {"cuda_usable", found.cuda_usable},
          {"why_not", found.why_not},
          {"provenance", found.provenance}};
}

std::vector<std::function<void()>>& endings() {
  static std::vector<std::function<void()>> all;
  return all;
}

struct Waiting {
  std::mutex mutex;
  std::filesystem::path file;  // "": this is no worker
  Fd fd;                       // from the first word on
};
Waiting& waiting() {
  static Waiting all;
  return all;
}

}  // namespace

void waits_for(std::string_view whom) {
  Waiting& told = waiting();
  const std::lock_guard lock(told.mutex);
  if (told.file.empty()) return;
  if (told.fd.get() < 0) told.fd = Fd(base::open_own(told.file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC));
  char text[kMaxWaiting] = {};
  whom.copy(text, sizeof text - 1);
  if (told.fd.get() >= 0) (void)!pwrite(told.fd.get(), text, sizeof text, 0);  // evidence, and no result, is lost then
}

void at_worker_end(std::function<void()> call) { endings().push_back(std::move(call)); }

int worker_main(const Program& program) try {
  const std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  const WorkOrder order = parse_order(text);
  die_with(order.supervisor);
  prctl(PR_SET_NAME, program.name.c_str());  // instead of "exe", for ps, top and the stacks
  if (fcntl(Process::kEventFd, F_SETFD, FD_CLOEXEC) != 0)
    throw UsageError(fmt::format("{} is started by the program itself", kWorkerVerb));
  setvbuf(stdout, nullptr, _IOLBF, 0);  // what was printed before a crash is evidence
  PipeSink pipe(Process::kEventFd);
  const EventSink sink = [&pipe](const Json& event) {
    if (event.at("event") == "case_begin") print_heading(event.at("case").get<std::string>());
    pipe(event);
  };
  if (!order.probe) {
    base::write_stacks_to(stacks_file(order));
    waiting().file = waiting_file(order);
  }
  sink({{"event", "hello"}, {"pid", getpid()}});
  if (order.probe) {
    sink(probe(program));
  } else {
    Settings settings(all_setting_specs(program));
    apply_settings(settings, order.settings);
    run_cases(program, settings, order, sink);
  }
  sink({{"event", "bye"}});
  // Nothing is left to do, and taking LibTorch and CUDA down in order would cost 0.1 s a suite. (Profilers that write
  // at the end of a process want --isolation none.)
  for (const auto& call : endings()) call();
  std::fflush(nullptr);
  _exit(0);
} catch (const std::exception& error) {
  std::cerr << "worker: " << error.what() << std::endl;
  return 2;
}

}  // namespace harness
