#include "suites/training/memory_in_use.hpp"

#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <malloc.h>
#include <sys/resource.h>

#include <stdexcept>

#include "base/proc.hpp"

namespace suites::training_cases {

namespace {

// Of all arenas, and what was mapped for single large blocks.
std::int64_t malloc_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

std::int64_t resident_bytes() {
  const auto bytes = base::resident_bytes();
  if (!bytes) throw std::runtime_error("/proc/self/statm cannot be read");
  return *bytes;
}

}  // namespace

std::int64_t peak_resident_bytes() {
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) throw std::runtime_error("getrusage failed");
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

MemoryMeter::MemoryMeter(at::Device device) : device_(device) {
  constexpr std::int64_t kTrial = 4 << 20;
  const std::int64_t before = malloc_bytes();
  const at::Tensor trial = at::ones({kTrial}, at::kByte);
  if (malloc_bytes() - before < trial.numel()) source_ = "resident set";
}

MemoryInUse MemoryMeter::now() const {
  MemoryInUse memory;
  memory.host_bytes = exact() ? malloc_bytes() : resident_bytes();
  if (!device_.is_cuda()) return memory;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  memory.device_bytes = stats.allocated_bytes[kAll].current;
  memory.device_reserved_bytes = stats.reserved_bytes[kAll].current;
  return memory;
}

}  // namespace suites::training_cases
