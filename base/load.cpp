#include "base/load.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "base/clock.hpp"
#include "base/parse_number.hpp"

namespace base {

namespace fs = std::filesystem;

namespace {

constexpr double kOthers = 0.25;   // cores; less is what any idle machine does
constexpr double kWaited = 0.10;   // of the time in which own threads could run
constexpr double kWaiting = 0.02;  // threads: who hardly ever runs loses nothing by waiting long for it
constexpr double kStolen = 0.10;   // of the CPUs' time
constexpr double kFull = 0.90;     // of the CPUs' time: own threads share a core with somebody, if only its other half

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double cpu_seconds() {
  double sum = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    sum += seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return sum;
}

std::vector<int> allowed_cpus() {
  // Machines may have more CPUs than a cpu_set_t holds.
  for (int size = CPU_SETSIZE; size <= 1 << 16; size *= 2) {
    std::vector<cpu_set_t> set(static_cast<std::size_t>(size / CPU_SETSIZE));
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < size; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set.data())) cpus.push_back(cpu);
    return cpus;
  }
  return {};
}

// "cpu7" -> 7; nothing for "cpu", the sum of all, and for other lines.
std::optional<int> cpu_number(const std::string& word) {
  return word.starts_with("cpu") ? parse_number<int>(std::string_view(word).substr(3)) : std::nullopt;
}

}  // namespace

std::optional<double> Load::waited_share() const {
  if (!waiting) return std::nullopt;
  return *waiting > 0 ? *waiting / (own_cores + *waiting) : 0;
}

bool Load::busy() const {
  if (!known || !(others_cores >= kOthers)) return false;
  const bool waits = waiting && *waiting >= kWaiting && waited_share().value_or(0) >= kWaited;
  return waits || steal_share >= kStolen || own_cores + others_cores >= kFull * cores;
}

double Load::slowdown() const {
  if (!busy()) return 1;
  const auto share = waited_share();
  if (!share) return std::numeric_limits<double>::infinity();
  // Of the time that went by, the part in which something of ours could run.
  const double active = std::min(1.0, own_cores + *waiting);
  return 1 / ((1 - *share * active) * (1 - steal_share));
}

bool Load::calm() const { return !known || others_cores < kOthers; }

std::string Load::describe() const {
  if (!known) return "the machine's load is unknown: " + why_unknown;
  std::string text = fmt::format("other processes used {:.1f} of {} cores", others_cores, cores);
  if (const auto share = waited_share()) text += fmt::format(", threads waited {:.0f} % of their time", 100 * *share);
  if (steal_share >= kStolen) text += fmt::format(", the host took {:.0f} % of the CPUs away", 100 * steal_share);
  return text;
}

LoadMeter::LoadMeter(LoadSources sources) : sources_(std::move(sources)) {
  if (sources_.cpus.empty()) sources_.cpus = allowed_cpus();
  if (!sources_.clock) sources_.clock = steady_seconds;
  if (!sources_.own_cpu_s) sources_.own_cpu_s = cpu_seconds;
  begin_ = take();
}

double LoadMeter::elapsed_s() const { return sources_.clock() - begin_.time; }

LoadMeter::Reading LoadMeter::take() const {
  return {sources_.clock(), sources_.own_cpu_s(), read_cpus(), read_delays()};
}

// user nice system idle iowait irq softirq steal guest guest_nice, in ticks; guests are in user and nice already.
std::optional<LoadMeter::Cpus> LoadMeter::read_cpus() const {
  static const double tick_s = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ifstream file(sources_.stat);
  Cpus sum;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    const auto number = cpu_number(name);
    if (!number || std::find(sources_.cpus.begin(), sources_.cpus.end(), *number) == sources_.cpus.end()) continue;
    ++sum.count;
    double ticks = 0;
    for (int field = 0; field < 8 && words >> ticks; ++field) {
      const bool idle = field == 3 || field == 4;
      sum.all_s += ticks * tick_s;
      if (!idle) sum.busy_s += ticks * tick_s;
      if (field == 7) sum.steal_s += ticks * tick_s;
    }
  }
  if (sum.count == 0) return std::nullopt;
  return sum;
}

// "run_ns delay_ns slices" for each thread; a kernel that does not count says 0 0 0, also to the thread that asks.
std::optional<std::map<pid_t, std::uint64_t>> LoadMeter::read_delays() const {
  std::map<pid_t, std::uint64_t> delays;
  bool counted = false;
  for (const fs::path& tasks : sources_.all_tasks ? sources_.all_tasks() : std::vector{sources_.tasks}) {
    std::error_code error;
    for (fs::directory_iterator task(tasks, error), end; !error && task != end; task.increment(error)) {
      std::ifstream file(task->path() / "schedstat");
      std::uint64_t run = 0, delay = 0, slices = 0;
      if (!(file >> run >> delay >> slices)) continue;  // it has ended
      delays[static_cast<pid_t>(std::atoi(task->path().filename().c_str()))] = delay;
      counted = counted || slices > 0;
    }
  }
  if (!counted) return std::nullopt;
  return delays;
}

Load LoadMeter::read() const {
  if (const double rest = kShortest_s - elapsed_s(); rest > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(rest));
  const Reading now = take();
  Load load;
  load.wall_s = now.time - begin_.time;
  if (!begin_.cpus || !now.cpus) {
    load.why_unknown = fmt::format("{} does not tell what the CPUs do", sources_.stat.string());
    return load;
  }
  load.cores = now.cpus->count;
  const double busy_s = now.cpus->busy_s - begin_.cpus->busy_s, all_s = now.cpus->all_s - begin_.cpus->all_s,
               own_s = now.own_cpu_s - begin_.own_cpu_s;
  if (!(load.wall_s > 0) || !(all_s > 0) || now.cpus->count != begin_.cpus->count) {
    load.why_unknown = fmt::format("the counts in {} stand still", sources_.stat.string());
    return load;
  }
  load.known = true;
  load.why_unknown.clear();
  load.own_cores = own_s / load.wall_s;
  load.others_cores = std::max(0.0, busy_s - own_s) / load.wall_s;
  load.steal_share = (now.cpus->steal_s - begin_.cpus->steal_s) / all_s;
  if (begin_.delays && now.delays) {
    std::uint64_t waited_ns = 0;
    for (const auto& [thread, delay] : *now.delays) {
      const auto before = begin_.delays->find(thread);
      const bool same = before != begin_.delays->end() && before->second <= delay;  // else a new one of that number
      waited_ns += same ? delay - before->second : delay;
    }
    load.waiting = 1e-9 * static_cast<double>(waited_ns) / load.wall_s;
  }
  return load;
}

}  // namespace base
