#include "nsa/bench/timing.hpp"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"

namespace nsa::bench {

namespace {

using Clock = std::chrono::steady_clock;

void synchronise() { at::cuda::getCurrentCUDAStream().synchronize(); }

struct Interval {
  at::cuda::CUDAEvent begin{cudaEventDefault}, end{cudaEventDefault};
  [[nodiscard]] double seconds() const { return 1e-3 * static_cast<double>(begin.elapsed_time(end)); }
};

void measure(const std::function<void()>& call, const Flush& flush, Interval& interval) {
  flush();
  interval.begin.record();
  call();
  interval.end.record();
}

const auto& allocated(const c10::CachingDeviceAllocator::DeviceStats& stats) {
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
}

}  // namespace

Flush::Flush(at::Device device)
    : buffer_(at::empty({std::int64_t{2} * at::cuda::getDeviceProperties(device.index())->l2CacheSize},
                        at::device(device).dtype(at::kByte))) {}

Timing time_calls(const std::function<void()>& call, const Flush& flush, const TimingPlan& plan) {
  for (int i = 0; i < plan.warm_up; ++i) call();
  synchronise();

  Timing result;
  Interval first;
  flush();
  synchronise();  // an idle device: issuing does not wait for room in the queue
  const auto issued = Clock::now();
  first.begin.record();
  call();
  result.host_s = base::seconds_since(issued);
  first.end.record();
  synchronise();
  const double affordable = plan.budget_s / std::max(1e-6, first.seconds());
  result.calls = static_cast<int>(std::clamp<double>(affordable, plan.least, plan.most));

  std::vector<Interval> intervals(static_cast<std::size_t>(result.calls));
  for (auto& interval : intervals) measure(call, flush, interval);
  synchronise();
  std::vector<double> times;
  times.reserve(intervals.size());
  for (const auto& interval : intervals) times.push_back(interval.seconds());
  result.median_s = base::median(times);
  return result;
}

std::int64_t peak_bytes(const std::function<void()>& call) {
  call();  // what a library keeps from its first call on is not counted
  synchronise();
  const auto device = c10::cuda::current_device();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device);
  const auto before = allocated(c10::cuda::CUDACachingAllocator::getDeviceStats(device)).current;
  call();
  synchronise();
  return allocated(c10::cuda::CUDACachingAllocator::getDeviceStats(device)).peak - before;
}

Graph::Graph(const std::function<void()>& call) {
  constexpr int kWarmUp = 3;
  synchronise();  // the inputs were drawn on this stream
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  for (int i = 0; i < kWarmUp; ++i) call();
  synchronise();
  graph_.capture_begin();
  try {
    call();
  } catch (...) {
    const auto reason = std::current_exception();
    try {
      graph_.capture_end();            // the stream must not stay in capture
    } catch (const std::exception&) {  // it says that the capture failed, which `reason` explains
    }
    std::rethrow_exception(reason);
  }
  graph_.capture_end();
}

}  // namespace nsa::bench
