#include "suites/probes/utilisation.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.hpp"
#include "suites/probes/nvml.hpp"
#include "suites/probes/statistics.hpp"

namespace suites::probes {

namespace {

using Clock = std::chrono::steady_clock;

double seconds(const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

unsigned usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  return count > 0 ? static_cast<unsigned>(count) : std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

double Utilisation::cpu_percent_of_core() const { return 100 * cpu_s / wall_s; }
double Utilisation::cpu_percent_of_machine() const { return cpu_percent_of_core() / cores; }

std::optional<double> Utilisation::gpu_percent_median() const {
  if (gpu_percent.empty()) return std::nullopt;
  return median(gpu_percent);
}

std::optional<double> Utilisation::sm_mhz_median() const {
  if (sm_mhz.empty()) return std::nullopt;
  return median(sm_mhz);
}

reports::Json Utilisation::to_json() const {
  reports::Json json = {{"wall_s", reports::number(wall_s)},
                        {"cpu_percent_of_core", reports::number(cpu_percent_of_core())},
                        {"cpu_percent_of_machine", reports::number(cpu_percent_of_machine())},
                        {"cores", cores}};
  if (const auto gpu = gpu_percent_median()) {
    json["gpu_percent"] = reports::number(*gpu);
    json["gpu_samples"] = gpu_percent.size();
  } else {
    json["gpu_unknown_because"] = gpu_unknown_because;
  }
  if (!sm_mhz.empty()) {
    json["sm_mhz"] = {{"min", *std::min_element(sm_mhz.begin(), sm_mhz.end())},
                      {"median", reports::number(median(sm_mhz))},
                      {"max_of_gpu", sm_max_mhz}};
    json["throttled_by"] = throttled_by;
  }
  return json;
}

struct UtilisationSampler::State {
  Nvml nvml;
  std::optional<Nvml::Device> device;
  Clock::time_point begin = Clock::now();
  double cpu_begin = cpu_seconds();
  Utilisation figures;
  std::set<std::string> throttled;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::thread thread;

  explicit State(bool gpu) : nvml(gpu ? Nvml::load() : Nvml(nullptr)) {}

  void sample() {
    if (const auto percent = nvml.utilisation(*device)) figures.gpu_percent.push_back(*percent);
    if (const auto clocks = nvml.clocks(*device)) {
      figures.sm_mhz.push_back(clocks->sm_mhz);
      figures.sm_max_mhz = clocks->sm_max_mhz;
    }
    if (const auto reasons = nvml.throttle_reasons(*device)) {
      for (std::string& word : throttle_words(*reasons)) throttled.insert(std::move(word));
    }
  }

  // The driver's figure covers the period before the question, so the first one is asked after a wait.
  void loop(std::chrono::milliseconds period) {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, period, [this] { return stopping; })) sample();
  }
};

UtilisationSampler::UtilisationSampler(const std::string& bus_id, int period_ms)
    : state_(std::make_unique<State>(!bus_id.empty())) {
  State& state = *state_;
  state.figures.cores = usable_cores();
  if (bus_id.empty()) {
    state.figures.gpu_unknown_because = "not asked";
  } else if (!state.nvml.available()) {
    state.figures.gpu_unknown_because = state.nvml.why_not();
  } else if (state.device = state.nvml.device(bus_id); !state.device) {
    state.figures.gpu_unknown_because = "NVML knows no GPU at " + bus_id;
  } else {
    state.figures.gpu_unknown_because = "no sample: NVML refused the question, or the time was too short";
    state.thread = std::thread([&state, period_ms] { state.loop(std::chrono::milliseconds(period_ms)); });
  }
}

UtilisationSampler::~UtilisationSampler() { stop(); }

Utilisation UtilisationSampler::stop() {
  State& state = *state_;
  if (state.stopping) return state.figures;
  state.figures.wall_s = base::seconds_since(state.begin);
  state.figures.cpu_s = cpu_seconds() - state.cpu_begin;
  {
    const std::lock_guard lock(state.mutex);
    state.stopping = true;
  }
  state.wake.notify_all();
  if (state.thread.joinable()) state.thread.join();
  state.figures.throttled_by.assign(state.throttled.begin(), state.throttled.end());
  return state.figures;
}

}  // namespace suites::probes
