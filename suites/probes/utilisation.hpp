// How busy this process keeps the CPU and the GPU while something runs: CPU time of all its threads (getrusage), the
// GPU's own account (NVML), and what the clocks did meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reports/json.hpp"

namespace suites::probes {

struct Utilisation {
  double wall_s = 0;
  double cpu_s = 0;                       // user + system time of all threads
  unsigned cores = 1;                     // that this process may use
  std::vector<double> gpu_percent;        // samples; empty without a GPU or without NVML
  std::vector<double> sm_mhz;             // samples
  double sm_max_mhz = 0;                  // 0: unknown
  std::vector<std::string> throttled_by;  // any sample's reasons, in words
  std::string gpu_unknown_because;        // when there is no GPU figure

  [[nodiscard]] double cpu_percent_of_core() const;     // 100: one core busy all the time
  [[nodiscard]] double cpu_percent_of_machine() const;  // 100: every core
  [[nodiscard]] std::optional<double> gpu_percent_median() const;
  [[nodiscard]] std::optional<double> sm_mhz_median() const;  // nullopt: the driver does not tell, or no GPU
  [[nodiscard]] reports::Json to_json() const;
};

// Samples from construction to stop(). `bus_id` names the GPU (cudaDeviceGetPCIBusId); empty: the CPU alone. The GPU is
// asked every `period_ms` by a thread of the sampler's own, which costs well under 1 % of a core.
class UtilisationSampler {
 public:
  explicit UtilisationSampler(const std::string& bus_id = "", int period_ms = 50);
  ~UtilisationSampler();
  UtilisationSampler(const UtilisationSampler&) = delete;
  UtilisationSampler& operator=(const UtilisationSampler&) = delete;
  Utilisation stop();  // a second call returns the same figures

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace suites::probes
