// Who holds memory of a GPU besides this run: NVML's list of compute processes against the run's own process tree.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "suites/probes/nvml.hpp"

namespace suites::probes {

struct ProcessOnGpu {
  std::int64_t pid = 0;
  std::string name;                    // from /proc; "" when it cannot be read
  std::optional<std::uint64_t> bytes;  // absent: the driver does not tell
  std::string command = {};            // its command line, cut; "" when it cannot be read
  std::string user = {};               // who runs it; "" likewise
  // As in /proc: R runs, S sleeps, D waits in the kernel where a signal may not reach it, Z is dead, not collected. Any
  // process is D for a moment now and then: it stands here where every look of take_census() saw it.
  char state = '?';
};
// "pid 777 (python) with 10737418240 bytes"
[[nodiscard]] std::string describe(const ProcessOnGpu& process);
// How to end it: the command, and what it means that it does not end.
[[nodiscard]] std::string how_to_end(const ProcessOnGpu& process);

struct GpuCensus {
  std::string why_not;  // not empty: NVML could not be asked, and the rest means nothing
  std::vector<ProcessOnGpu> processes;
  std::optional<GpuMemory> memory;  // of the whole device, whoever holds it
};

// D is believed where all of so many looks, the first included, see it; they take a second.
inline constexpr int kLooksAtState = 11;
inline constexpr std::chrono::milliseconds kBetweenLooks{100};
using StateOf = std::function<char(std::int64_t pid)>;
// Those that are D are looked at again, all of them meanwhile; one that was seen in another state has that one.
void look_again(std::vector<ProcessOnGpu>& processes, const StateOf& state, std::chrono::milliseconds between);

// Of the GPU with this PCI bus id, as cudaDeviceGetPCIBusId writes it.
[[nodiscard]] GpuCensus take_census(const Nvml& nvml, const std::string& bus_id);
[[nodiscard]] GpuCensus take_census(const Nvml& nvml, Nvml::Device device);

using ParentOf = std::function<std::optional<std::int64_t>(std::int64_t pid)>;
// The parent in /proc/<pid>/stat; nullopt when there is no such process here.
[[nodiscard]] std::optional<std::int64_t> parent_of(std::int64_t pid);

// The run's own processes are `supervisor` and all its descendants. NVML reports pids of the host: inside a container
// they may be missing or mean nothing. The proof that they mean something is that the caller, which holds a CUDA
// context, finds its own pid (`self`) in the list; without it nothing can be told.
struct ForeignProcesses {
  bool can_tell = false;
  std::string why_not;  // when it cannot
  std::vector<ProcessOnGpu> foreign;
};
[[nodiscard]] ForeignProcesses find_foreign(const GpuCensus& census, std::int64_t self, std::int64_t supervisor,
                                            const ParentOf& parent = parent_of);

// Every process on the list, for a caller without a CUDA context: nothing on the list can be its own.
// Where the device has given away more memory than a driver needs and no process is listed, nothing can be told.
[[nodiscard]] ForeignProcesses all_processes(const GpuCensus& census);

}  // namespace suites::probes
