#include <string>

#include "nsa/kernels/launch/fork.hpp"
#include "nsa/kernels/params.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error != cudaSuccess)
    throw LaunchError(std::string(kernel) + ": the CUDA runtime refused the launch: " + cudaGetErrorString(error));
}

bool is_emulated() { return false; }

Device current_device() {
  Device device;
  int number = 0;
  cudaError_t error = cudaGetDevice(&number);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&device.sm_count, cudaDevAttrMultiProcessorCount, number);
#ifdef NSA_HOPPER  // set by the build when the list of architectures has sm_90a: 9.0 without the a has no wgmma
  int major = 0;
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
  device.hopper = major == 9;
#endif
  if (error != cudaSuccess) throw LaunchError(std::string("the current device: ") + cudaGetErrorString(error));
  return device;
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

Fork::Fork(cudaStream_t main, cudaStream_t side) : main_(main), side_(side ? side : main) { wait_for(side_, main_); }

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
