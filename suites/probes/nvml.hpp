// NVML, the driver's management library: who uses a GPU and how fast it is running. Loaded at run time from the driver
// (libnvidia-ml.so.1), so that the program starts on a machine without a GPU; it creates no CUDA context.
//
// Every question is answered with nullopt when the library, the driver or a container's permissions do not allow it:
// an unknown figure is never 0.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace suites::probes {

struct GpuProcess {
  std::uint32_t pid = 0;
  std::optional<std::uint64_t> used_bytes;  // absent: the driver does not tell (another container, MIG)
};
struct GpuMemory {
  std::uint64_t total = 0, free = 0, used = 0;  // bytes
};
struct GpuClocks {
  std::uint32_t sm_mhz = 0, sm_max_mhz = 0, memory_mhz = 0;
};
struct GpuPower {
  double draw_w = 0, limit_w = 0, default_limit_w = 0;
};
struct GpuErrors {
  std::uint64_t uncorrected = 0;           // ECC, since the driver was loaded
  std::uint64_t uncorrected_lifetime = 0;  // ECC, of the board
  bool rows_pending = false;               // rows of memory that a reset of the GPU will replace
  bool rows_failed = false;                // a row could not be replaced
};

class Nvml {
 public:
  using Device = void*;
  // Symbol -> address, nullptr when absent. Tests pass a fake library.
  using Lookup = std::function<void*(const char* symbol)>;

  // Opens libnvidia-ml.so.1 and initialises it. Never throws: see available() and why_not().
  [[nodiscard]] static Nvml load();
  explicit Nvml(Lookup lookup);
  ~Nvml();
  Nvml(Nvml&& other) noexcept;
  Nvml& operator=(Nvml&&) = delete;

  [[nodiscard]] bool available() const { return why_not_.empty(); }
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

  [[nodiscard]] std::optional<std::string> driver_version() const;
  [[nodiscard]] std::uint32_t device_count() const;  // GPUs that NVML sees, whatever CUDA_VISIBLE_DEVICES says
  [[nodiscard]] std::optional<Device> device(std::uint32_t index) const;
  // `bus_id` as cudaDeviceGetPCIBusId writes it: the way from a CUDA device to NVML's, whatever their numbering.
  [[nodiscard]] std::optional<Device> device(const std::string& bus_id) const;

  [[nodiscard]] std::optional<std::vector<GpuProcess>> processes(Device device) const;  // those that compute
  // Percent of the driver's last sampling period (1/6 s to 1 s) in which a kernel ran.
  [[nodiscard]] std::optional<double> utilisation(Device device) const;
  [[nodiscard]] std::optional<GpuMemory> memory(Device device) const;
  [[nodiscard]] std::optional<GpuClocks> clocks(Device device) const;
  [[nodiscard]] std::optional<std::uint64_t> throttle_reasons(Device device) const;  // bits, see throttle_words
  [[nodiscard]] std::optional<std::string> name(Device device) const;                // "NVIDIA H200"
  [[nodiscard]] std::optional<std::string> uuid(Device device) const;
  [[nodiscard]] std::optional<std::uint32_t> temperature(Device device) const;  // degrees Celsius
  [[nodiscard]] std::optional<GpuPower> power(Device device) const;
  // Absent when ECC is off or not there. Row replacement is false where the GPU does not do it.
  [[nodiscard]] std::optional<GpuErrors> errors(Device device) const;

 private:
  Lookup lookup_;
  std::string why_not_;
  template <typename Function>
  [[nodiscard]] Function* find(const char* symbol) const;
};

// The set bits in words: "sw_power_cap", "hw_slowdown", ...; an idle GPU and one that is not held back give none.
[[nodiscard]] std::vector<std::string> throttle_words(std::uint64_t reasons);

}  // namespace suites::probes
