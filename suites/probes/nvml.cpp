#include "suites/probes/nvml.hpp"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace suites::probes {

namespace {

// The parts of NVML's stable binary interface that are asked for (nvml.h, API version 11 and newer).
using Result = int;
constexpr Result kSuccess = 0, kInsufficientSize = 7;
constexpr int kClockSm = 1, kClockMemory = 2;
constexpr auto kUnknownBytes = ~std::uint64_t{0};
struct Utilization {
  unsigned gpu, memory;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct Memory {
  unsigned long long total, free, used;
};

constexpr int kUncorrected = 1, kVolatile = 0, kAggregate = 1, kCore = 0;
constexpr unsigned kNameLength = 96;

struct ThrottleBit {
  std::uint64_t bit;
  const char* word;
};
// Idle (0x1) and application clock settings (0x2) are choices, not throttling.
constexpr std::array kThrottleBits = {
    ThrottleBit{0x04, "sw_power_cap"},        ThrottleBit{0x08, "hw_slowdown"},
    ThrottleBit{0x10, "sync_boost"},          ThrottleBit{0x20, "sw_thermal_slowdown"},
    ThrottleBit{0x40, "hw_thermal_slowdown"}, ThrottleBit{0x80, "hw_power_brake"},
    ThrottleBit{0x100, "display_clocks"}};

}  // namespace

template <typename Function>
Function* Nvml::find(const char* symbol) const {
  return available() ? reinterpret_cast<Function*>(lookup_(symbol)) : nullptr;
}

Nvml Nvml::load() {
  // Kept open for the life of the process: the driver's library does not like to be unloaded.
  static void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Nvml(nullptr);
  return Nvml([](const char* symbol) { return dlsym(library, symbol); });
}

Nvml::Nvml(Lookup lookup) : lookup_(std::move(lookup)) {
  if (!lookup_) {
    why_not_ = "libnvidia-ml.so.1 was not found: no NVIDIA driver";
    return;
  }
  const auto init = find<Result()>("nvmlInit_v2");
  const Result result = init == nullptr ? -1 : init();
  if (result == kSuccess) return;
  const auto words = find<const char*(Result)>("nvmlErrorString");
  why_not_ = init == nullptr    ? "libnvidia-ml.so.1 lacks nvmlInit_v2: a driver too old"
             : words == nullptr ? "nvmlInit_v2 failed with " + std::to_string(result)
                                : std::string("nvmlInit_v2: ") + words(result);
}

Nvml::Nvml(Nvml&& other) noexcept
    : lookup_(std::exchange(other.lookup_, nullptr)), why_not_(std::exchange(other.why_not_, "moved from")) {}

Nvml::~Nvml() {
  if (const auto shutdown = find<Result()>("nvmlShutdown")) shutdown();
}

std::optional<std::string> Nvml::driver_version() const {
  std::array<char, 96> text{};
  const auto ask = find<Result(char*, unsigned)>("nvmlSystemGetDriverVersion");
  if (ask == nullptr || ask(text.data(), text.size()) != kSuccess) return std::nullopt;
  return std::string(text.data());
}

std::uint32_t Nvml::device_count() const {
  unsigned count = 0;
  const auto ask = find<Result(unsigned*)>("nvmlDeviceGetCount_v2");
  return ask != nullptr && ask(&count) == kSuccess ? count : 0;
}

std::optional<Nvml::Device> Nvml::device(std::uint32_t index) const {
  Device device = nullptr;
  const auto ask = find<Result(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  if (ask == nullptr || ask(index, &device) != kSuccess) return std::nullopt;
  return device;
}

std::optional<Nvml::Device> Nvml::device(const std::string& bus_id) const {
  Device device = nullptr;
  const auto ask = find<Result(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
  if (ask == nullptr || ask(bus_id.c_str(), &device) != kSuccess) return std::nullopt;
  return device;
}

std::optional<std::vector<GpuProcess>> Nvml::processes(Device device) const {
  const auto ask = find<Result(Device, unsigned*, ProcessInfo*)>("nvmlDeviceGetComputeRunningProcesses_v3");
  if (ask == nullptr) return std::nullopt;
  std::vector<ProcessInfo> rows(16);
  auto count = static_cast<unsigned>(rows.size());
  Result result = ask(device, &count, rows.data());
  // More may have started since the driver said how many there are.
  for (int attempt = 0; result == kInsufficientSize && attempt < 4; ++attempt) {
    rows.resize(count + 16);
    count = static_cast<unsigned>(rows.size());
    result = ask(device, &count, rows.data());
  }
  if (result != kSuccess) return std::nullopt;
  std::vector<GpuProcess> processes;
  for (unsigned i = 0; i < count && i < rows.size(); ++i) {
    GpuProcess process{rows[i].pid, std::nullopt};
    if (rows[i].used_bytes != kUnknownBytes) process.used_bytes = rows[i].used_bytes;
    processes.push_back(process);
  }
  return processes;
}

std::optional<double> Nvml::utilisation(Device device) const {
  Utilization rates{};
  const auto ask = find<Result(Device, Utilization*)>("nvmlDeviceGetUtilizationRates");
  if (ask == nullptr || ask(device, &rates) != kSuccess) return std::nullopt;
  return rates.gpu;
}

std::optional<GpuMemory> Nvml::memory(Device device) const {
  Memory memory{};
  const auto ask = find<Result(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
  if (ask == nullptr || ask(device, &memory) != kSuccess) return std::nullopt;
  return GpuMemory{memory.total, memory.free, memory.used};
}

std::optional<GpuClocks> Nvml::clocks(Device device) const {
  using Ask = Result(Device, int, unsigned*);
  const auto now = find<Ask>("nvmlDeviceGetClockInfo");
  const auto most = find<Ask>("nvmlDeviceGetMaxClockInfo");
  GpuClocks clocks;
  if (now == nullptr || now(device, kClockSm, &clocks.sm_mhz) != kSuccess ||
      now(device, kClockMemory, &clocks.memory_mhz) != kSuccess || most == nullptr ||
      most(device, kClockSm, &clocks.sm_max_mhz) != kSuccess) {
    return std::nullopt;
  }
  return clocks;
}

std::optional<std::uint64_t> Nvml::throttle_reasons(Device device) const {
  unsigned long long reasons = 0;
  const auto ask = find<Result(Device, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
  if (ask == nullptr || ask(device, &reasons) != kSuccess) return std::nullopt;
  return reasons;
}

std::optional<std::string> Nvml::name(Device device) const {
  std::array<char, kNameLength> text{};
  const auto ask = find<Result(Device, char*, unsigned)>("nvmlDeviceGetName");
  if (ask == nullptr || ask(device, text.data(), text.size()) != kSuccess) return std::nullopt;
  return std::string(text.data());
}

std::optional<std::string> Nvml::uuid(Device device) const {
  std::array<char, kNameLength> text{};
  const auto ask = find<Result(Device, char*, unsigned)>("nvmlDeviceGetUUID");
  if (ask == nullptr || ask(device, text.data(), text.size()) != kSuccess) return std::nullopt;
  return std::string(text.data());
}

std::optional<std::uint32_t> Nvml::temperature(Device device) const {
  unsigned celsius = 0;
  const auto ask = find<Result(Device, int, unsigned*)>("nvmlDeviceGetTemperature");
  if (ask == nullptr || ask(device, kCore, &celsius) != kSuccess) return std::nullopt;
  return celsius;
}

std::optional<GpuPower> Nvml::power(Device device) const {
  const auto watts = [&](const char* symbol) -> std::optional<double> {
    unsigned milliwatts = 0;
    const auto ask = find<Result(Device, unsigned*)>(symbol);
    if (ask == nullptr || ask(device, &milliwatts) != kSuccess) return std::nullopt;
    return milliwatts / 1000.0;
  };
  const auto draw = watts("nvmlDeviceGetPowerUsage"), limit = watts("nvmlDeviceGetEnforcedPowerLimit"),
             normal = watts("nvmlDeviceGetPowerManagementDefaultLimit");
  if (!draw || !limit || !normal) return std::nullopt;
  return GpuPower{*draw, *limit, *normal};
}

std::optional<GpuErrors> Nvml::errors(Device device) const {
  const auto count = find<Result(Device, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  unsigned long long now = 0, ever = 0;
  if (count == nullptr || count(device, kUncorrected, kVolatile, &now) != kSuccess ||
      count(device, kUncorrected, kAggregate, &ever) != kSuccess) {
    return std::nullopt;
  }
  GpuErrors errors{now, ever, false, false};
  const auto rows = find<Result(Device, unsigned*, unsigned*, unsigned*, unsigned*)>("nvmlDeviceGetRemappedRows");
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (rows != nullptr && rows(device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
    errors.rows_pending = pending != 0;
    errors.rows_failed = failed != 0;
  }
  return errors;
}

std::vector<std::string> throttle_words(std::uint64_t reasons) {
  std::vector<std::string> words;
  for (const auto& [bit, word] : kThrottleBits) {
    if ((reasons & bit) != 0) words.emplace_back(word);
  }
  return words;
}

}  // namespace suites::probes
