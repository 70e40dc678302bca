// What a GPU did while something ran, as CUPTI saw it (through the profiler that LibTorch carries): kernels, copies,
// calls of the CUDA runtime, and from their times how long the GPU worked, and how long it idled while the host was not
// even waiting for it. Unlike the driver's use figure, which counts any kernel in a period, these are exact; unlike the
// count of operations (launches.hpp) they include what kernels a library launches by itself.
//
// Tracing costs several percent of the time; take times elsewhere.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reports/json.hpp"

namespace suites::probes {

struct GpuActivity {
  enum class Kind {
    kernel,      // on the device
    copy,        // on the device; memset too
    launch,      // on the host: a call that launches a kernel
    wait,        // on the host: a call that returns when the device has finished
    allocation,  // on the host: cudaMalloc, cudaFree
    other
  };
  Kind kind = Kind::other;
  std::string name;
  std::uint64_t begin_ns = 0, end_ns = 0;
};

struct GpuTrace {
  std::string why_not;  // not empty: there is no trace, and the rest means nothing
  std::int64_t kernels = 0, copies = 0, launches = 0, host_waits = 0, allocations = 0;
  double window_s = 0;      // from the first activity, host or device, to the end of the last
  double busy_s = 0;        // of it: a kernel or copy was running
  double host_bound_s = 0;  // of it: the device idled and the host was not waiting for it
  std::map<std::string, std::int64_t> waits_by_call;
  struct Kernel {
    std::string name;
    std::int64_t calls = 0;
    double seconds = 0;
  };
  std::vector<Kernel> by_kernel;  // longest together first

  [[nodiscard]] double busy_percent() const;
  [[nodiscard]] double host_bound_percent() const;
  [[nodiscard]] reports::Json to_json() const;
};

// From activities in any order; `why_not` when there is no kernel among them.
[[nodiscard]] GpuTrace analyse(const std::vector<GpuActivity>& activities);
// Runs `work` under the profiler; the device is synchronised inside the trace. On a CPU, and where CUPTI or another
// profiler forbids, `work` still runs once and `why_not` says what is missing. Exceptions of `work` come through.
[[nodiscard]] GpuTrace trace_gpu(at::Device device, const std::function<void()>& work);

}  // namespace suites::probes
