#include "suites/probes/gpu_trace.hpp"

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>

namespace suites::probes {

namespace {

using Kind = GpuActivity::Kind;

Kind kind_of_call(const std::string& name) {
  static const std::set<std::string> kWaits = {
      "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy",
      "cudaMemcpy2D",          "cuStreamSynchronize",   "cuCtxSynchronize",     "cuEventSynchronize"};
  if (kWaits.contains(name)) return Kind::wait;
  if (name.find("LaunchKernel") != std::string::npos || name.find("GraphLaunch") != std::string::npos)
    return Kind::launch;
  if (name.starts_with("cudaMalloc") || name.starts_with("cudaFree")) return Kind::allocation;
  return Kind::other;
}

Kind kind_of(std::uint8_t activity, const std::string& name) {
  using libkineto::ActivityType;
  const auto type = static_cast<ActivityType>(activity);
  if (type == ActivityType::CONCURRENT_KERNEL) return Kind::kernel;
  if (type == ActivityType::GPU_MEMCPY || type == ActivityType::GPU_MEMSET) return Kind::copy;
  if (type == ActivityType::CUDA_RUNTIME || type == ActivityType::CUDA_DRIVER) return kind_of_call(name);
  return Kind::other;
}

// How long each of the combinations (device works, host waits) held, by walking over all begins and ends in order.
struct Spans {
  double busy = 0, idle_without_wait = 0;
};
Spans walk(const std::vector<GpuActivity>& activities, std::uint64_t begin, std::uint64_t end) {
  struct Edge {
    std::uint64_t at;
    int device, host;
  };
  std::vector<Edge> edges = {{begin, 0, 0}, {end, 0, 0}};
  for (const GpuActivity& a : activities) {
    const int device = a.kind == Kind::kernel || a.kind == Kind::copy, host = a.kind == Kind::wait;
    if (device + host == 0) continue;
    edges.push_back({a.begin_ns, device, host});
    edges.push_back({a.end_ns, -device, -host});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  Spans spans;
  int working = 0, waiting = 0;
  std::uint64_t last = begin;
  for (const Edge& edge : edges) {
    const double seconds = 1e-9 * static_cast<double>(edge.at - last);
    if (working > 0) spans.busy += seconds;
    if (working == 0 && waiting == 0) spans.idle_without_wait += seconds;
    working += edge.device;
    waiting += edge.host;
    last = edge.at;
  }
  return spans;
}

}  // namespace

double GpuTrace::busy_percent() const { return 100 * busy_s / window_s; }
double GpuTrace::host_bound_percent() const { return 100 * host_bound_s / window_s; }

reports::Json GpuTrace::to_json() const {
  if (!why_not.empty()) return {{"unknown_because", why_not}};
  reports::Json longest = reports::Json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(by_kernel.size(), 12); ++i) {
    longest.push_back({{"kernel", by_kernel[i].name.substr(0, 120)},
                       {"calls", by_kernel[i].calls},
                       {"ms", reports::number(1e3 * by_kernel[i].seconds)},
                       {"percent_of_busy", reports::number(100 * by_kernel[i].seconds / busy_s)}});
  }
  return {{"kernels", kernels},
          {"copies", copies},
          {"launches", launches},
          {"host_waits", host_waits},
          {"host_waits_by_call", waits_by_call},
          {"device_allocations", allocations},
          {"window_ms", reports::number(1e3 * window_s)},
          {"busy_percent", reports::number(busy_percent())},
          {"host_bound_percent", reports::number(host_bound_percent())},
          {"longest_kernels", longest}};
}

GpuTrace analyse(const std::vector<GpuActivity>& activities) {
  GpuTrace trace;
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max(), end = 0;
  std::map<std::string, GpuTrace::Kernel> by_name;
  for (const GpuActivity& a : activities) {
    begin = std::min(begin, a.begin_ns);
    end = std::max(end, a.end_ns);
    if (a.kind == Kind::kernel) {
      ++trace.kernels;
      GpuTrace::Kernel& kernel = by_name[a.name];
      kernel.name = a.name;
      ++kernel.calls;
      kernel.seconds += 1e-9 * static_cast<double>(a.end_ns - a.begin_ns);
    }
    trace.copies += a.kind == Kind::copy;
    trace.launches += a.kind == Kind::launch;
    trace.allocations += a.kind == Kind::allocation;
    if (a.kind == Kind::wait) {
      ++trace.host_waits;
      ++trace.waits_by_call[a.name];
    }
  }
  if (trace.kernels == 0) {
    trace.why_not = "the trace holds no kernel: CUPTI gave nothing";
    return trace;
  }
  const Spans spans = walk(activities, begin, end);
  trace.window_s = 1e-9 * static_cast<double>(end - begin);
  trace.busy_s = spans.busy;
  trace.host_bound_s = spans.idle_without_wait;
  for (auto& [name, kernel] : by_name) trace.by_kernel.push_back(kernel);
  std::stable_sort(trace.by_kernel.begin(), trace.by_kernel.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return trace;
}

GpuTrace trace_gpu(at::Device device, const std::function<void()>& work) {
  namespace impl = torch::profiler::impl;
  namespace profiler = torch::autograd::profiler;
  GpuTrace none;
  if (!device.is_cuda()) none.why_not = "the work runs on the CPU";
  if (none.why_not.empty() && impl::profilerEnabled()) none.why_not = "another profiler is already running";
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CUDA};
  if (none.why_not.empty()) {
    try {
      torch::cuda::synchronize(device.index());
      profiler::prepareProfiler(config, activities);
      profiler::enableProfiler(config, activities);
    } catch (const std::exception& error) {
      none.why_not = error.what();
    }
  }
  if (!none.why_not.empty()) {
    work();
    return none;
  }
  std::unique_ptr<profiler::ProfilerResult> result;
  try {
    work();
    torch::cuda::synchronize(device.index());
  } catch (...) {
    result = profiler::disableProfiler();
    throw;
  }
  result = profiler::disableProfiler();
  std::vector<GpuActivity> seen;
  for (const profiler::KinetoEvent& event : result->events()) {
    const std::string name = event.name();
    const Kind kind = kind_of(event.activityType(), name);
    if (kind != Kind::other) seen.push_back({kind, name, event.startNs(), event.endNs()});
  }
  return analyse(seen);
}

}  // namespace suites::probes
