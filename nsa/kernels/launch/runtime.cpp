#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "nsa/kernels/device/shared.hpp"
#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/launch/submission.hpp"
#include "nsa/kernels/params.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess)
    throw LaunchError(std::string(kernel) + ": the CUDA runtime refused the launch: " + cudaGetErrorString(error));
  name_collected(kernel);
}

bool is_emulated() { return false; }

Device current_device() {
  int number = 0;
  cudaError_t error = cudaGetDevice(&number);
  thread_local std::pair<int, Device> last{-1, {}};  // what a device is does not change, and every call asks
  if (error == cudaSuccess && number == last.first) return last.second;
  Device device;
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&device.sm_count, cudaDevAttrMultiProcessorCount, number);
#ifdef NSA_HOPPER  // set by the build when the list of architectures has sm_90a: 9.0 without the a has no wgmma
  int major = 0;
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
  device.hopper = major == 9;
#endif
  if (error != cudaSuccess) throw LaunchError(std::string("the current device: ") + cudaGetErrorString(error));
  last = {number, device};
  return device;
}

cudaError_t grant_shared(const void* kernel, int bytes) {
  int number = 0;
  if (const cudaError_t error = cudaGetDevice(&number); error != cudaSuccess) return error;
  // What this thread knows of; what was granted once stays so.
  struct Known {
    const void* kernel = nullptr;
    int device = 0, bytes = 0;
  };
  thread_local std::array<Known, 32> known{};
  Known& own = known[reinterpret_cast<std::uintptr_t>(kernel) * std::uint64_t{0x9e3779b97f4a7c15} >> 59];
  if (own.kernel == kernel && own.device == number && bytes <= own.bytes) return cudaSuccess;
  // Of all threads together: a thread that asked for less would take it from the others.
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> granted;
  const std::lock_guard lock(mutex);
  int& most = granted[{kernel, number}];
  if (bytes > most) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    most = bytes;
  }
  own = {kernel, number, most};
  return cudaSuccess;
}

namespace {

void wait_for(cudaStream_t later, cudaStream_t earlier) {
  if (later == earlier) return;
  cudaEvent_t event = nullptr;
  cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error == cudaSuccess) {
    error = cudaEventRecord(event, earlier);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(later, event);
    cudaEventDestroy(event);  // the runtime keeps it until it was reached
  }
  if (error != cudaSuccess)
    throw LaunchError(std::string("one stream cannot wait for another: ") + cudaGetErrorString(error));
}

}  // namespace

void wait_for(cudaStream_t stream, cudaEvent_t event) {
  if (!event) return;
  end_collecting();
  if (const cudaError_t error = cudaStreamWaitEvent(stream, event); error != cudaSuccess)
    throw LaunchError(std::string("a stream cannot wait for an event: ") + cudaGetErrorString(error));
}

Fork::Fork(cudaStream_t main, cudaStream_t side) : main_(main), side_(side ? side : main) {
  if (side_ != main_) end_collecting();
  wait_for(side_, main_);
}

Fork::~Fork() {
  if (joined_) return;
  try {
    join();
  } catch (const LaunchError&) {  // the one on its way says more
  }
}

void Fork::join() {
  joined_ = true;
  wait_for(main_, side_);
}

}  // namespace nsa::kernels
