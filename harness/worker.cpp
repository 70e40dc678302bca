#include "harness/worker.hpp"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
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

#include "base/stacks.hpp"
#include "harness/journal_writer.hpp"
#include "harness/process.hpp"
#include "harness/worker_log.hpp"

namespace harness {

namespace {

constexpr std::size_t kMaxMessage = 4000;  // bytes of an exception's text; torch appends whole backtraces
constexpr auto kProgressInterval = std::chrono::milliseconds(50);

class WorkerContext : public Context {
 public:
  WorkerContext(const WorkOrder& order, const Settings& settings, const CodeTable& codes, std::string id,
                const EventSink& sink)
      : order_(order), settings_(settings), codes_(codes), id_(std::move(id)), sink_(sink) {}

  [[nodiscard]] const Settings& settings() const override { return settings_; }
  [[nodiscard]] bool cuda() const override { return order_.cuda; }
  [[nodiscard]] std::filesystem::path run_folder() const override { return order_.folder; }
  [[nodiscard]] std::string run_id() const override { return order_.run_id; }
  [[nodiscard]] const Json& planned_provenance() const override { return order_.provenance; }
  [[nodiscard]] std::uint64_t seed(std::string_view purpose, int trial) const override {
    return derive_seed(order_.seed, id_, purpose, trial);
  }

  void phase(std::string_view name) override { tell("phase", {{"name", name}}); }
  void metric(std::string_view name, double value, std::string_view unit) override {
    tell("metric", {{"name", name}, {"value", reports::number(value)}, {"unit", unit}});
  }
  void fact(std::string_view key, const Json& value) override { tell("fact", {{"key", key}, {"value", value}}); }
  void artifact(const std::filesystem::path& relative) override { tell("artifact", {{"path", relative.string()}}); }
  void finding(std::string_view code, std::string_view message, const Json& evidence) override {
    tell_finding(code, {{"code", code}, {"message", message}, {"evidence", evidence}});
  }
  void finding(std::string_view code, reports::Severity severity, std::string_view message,
               const Json& evidence) override {
    tell_finding(
        code,
        {{"code", code}, {"severity", reports::to_string(severity)}, {"message", message}, {"evidence", evidence}});
  }
  // Cases call this in their inner loops, from any thread; a heartbeat every now and then is enough.
  void progress() override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    auto last = last_progress_.load(std::memory_order_relaxed);
    if (now - last < std::chrono::nanoseconds(kProgressInterval).count()) return;
    if (last_progress_.compare_exchange_strong(last, now)) tell("progress", Json::object());
  }

 protected:
  void check(std::string_view name, bool pass, const Json& measured, std::string_view comparator, const Json& bound,
             std::string_view unit) override {
    tell("check", {{"name", name},
                   {"pass", pass},
                   {"measured", measured},
                   {"comparator", comparator},
                   {"bound", bound},
                   {"unit", unit}});
  }

 private:
  void tell_finding(std::string_view code, const Json& fields) {
    if (codes_.find(code) == nullptr)
      throw std::logic_error(fmt::format("the case raised the finding code '{}', which is in no table", code));
    tell("finding", fields);
  }
  void tell(const char* kind, const Json& fields) {
    Json event = {{"event", kind}, {"case", id_}};
    event.update(fields);
    sink_(event);
  }

  const WorkOrder& order_;
  const Settings& settings_;
  const CodeTable& codes_;
  const std::string id_;
  const EventSink& sink_;
  std::atomic<std::chrono::steady_clock::rep> last_progress_{0};
};

std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : typeid(error).name();
}

struct Outcome {
  reports::Status status = reports::Status::pass;
  std::string reason_code, reason;
};

// By type, and by the words of LibTorch's allocators, whose types the harness does not see.
bool says_out_of_memory(const std::exception& error) {
  const std::string_view what = error.what();
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         what.find("can't allocate memory") != std::string_view::npos ||
         what.find("out of memory") != std::string_view::npos;
}

Outcome run_guarded(const Case& work, WorkerContext& context) {
  const auto threw = [&context](std::string_view code, const std::string& type, std::string message) {
    if (message.size() > kMaxMessage) message = message.substr(0, kMaxMessage) + " [cut]";
    context.finding(code, fmt::format("{}: {}", type, message), {{"type", type}, {"what", message}});
    return Outcome{reports::Status::error, code == codes::kOutOfMemory ? "out_of_memory" : "exception",
                   message.substr(0, message.find('\n'))};
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

}  // namespace

void run_cases(const Program& program, const Settings& settings, const WorkOrder& order, const EventSink& sink) {
  const CodeTable codes(program.codes);
  const std::vector<Case> cases = ordered_cases(program, settings, order);
  plant_faults(program, order);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::string& id = order.cases[i];
    sink({{"event", "case_begin"}, {"case", id}, {"seed", derive_seed(order.seed, id, "case", 0)}});
    WorkerContext context(order, settings, codes, id, sink);
    Outcome outcome = run_guarded(cases[i], context);
    const std::string illness = program.health ? program.health() : "";
    if (!illness.empty()) {
      context.finding(codes::kUnhealthy, illness, {{"health", illness}});
      outcome = {reports::Status::crash, "unhealthy", illness};
    }
    sink({{"event", "case_end"},
          {"case", id},
          {"status", reports::to_string(outcome.status)},
          {"reason_code", outcome.reason_code},
          {"reason", outcome.reason}});
    if (!illness.empty()) return;
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

}  // namespace

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
  if (!order.probe) base::write_stacks_to(stacks_file(order));
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
  std::fflush(nullptr);
  _exit(0);
} catch (const std::exception& error) {
  std::cerr << "worker: " << error.what() << std::endl;
  return 2;
}

}  // namespace harness
