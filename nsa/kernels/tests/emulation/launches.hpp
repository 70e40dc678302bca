// What orders the accesses of different launches: their stream, where a second one begins and is joined (Fork), and
// griddepcontrol_wait() in kernels that begin early. Two accesses to the same word of global memory by launches
// that nothing of this orders, one of them a write, are an error, whatever the order in which the emulation ran
// them. See README.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <source_location>

namespace nsa::kernels::emulation {

// A launch, or what the runtime does instead of one (cudaMemsetAsync).
class LaunchWatch {
 public:
  LaunchWatch(cudaStream_t stream, bool early, const std::source_location& from);
  LaunchWatch(const LaunchWatch&) = delete;
  ~LaunchWatch();
};
void launches_begin_block(int threads);
void launches_thread(int thread);  // it runs from now on
void launches_end_block();

// Accesses by that thread; what TMA reads and writes counts when it is asked to. `code`: where a plain
// access returns to.
void launch_reads(const void* at, std::size_t bytes, const void* code = nullptr);
void launch_writes(const void* at, std::size_t bytes, const void* code = nullptr);

}  // namespace nsa::kernels::emulation
