#include "nsa/bench/machine.hpp"

#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <fstream>

#include "build_info.hpp"

namespace nsa::bench {

namespace {

// 13000 -> "13.0"
std::string version_of(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  ...": the kernel says it; the runtime only says which
// CUDA it is good for.
std::string driver() {
  int cuda = 0;
  const bool known = cudaDriverGetVersion(&cuda) == cudaSuccess;
  std::string line;
  std::ifstream file("/proc/driver/nvidia/version");
  std::getline(file, line);
  return fmt::format("CUDA {}{}", known ? version_of(cuda) : "?", line.empty() ? "" : "; " + line);
}

}  // namespace

Machine find_machine() {
  int count = 0;
  if (const auto error = cudaGetDeviceCount(&count); error != cudaSuccess) throw NoGpu(cudaGetErrorString(error));
  if (count == 0) throw NoGpu("no CUDA device is visible");

  Machine machine;
  machine.device = at::Device(at::kCUDA, 0);
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(0);
  machine.capability = {properties.major, properties.minor};
  machine.gpu = properties.name;
  int runtime = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  machine.facts = {
      {"gpu", fmt::format("{}, compute capability {}.{}, {} SMs, L2 {} MiB, memory {} MiB", properties.name,
                          properties.major, properties.minor, properties.multiProcessorCount,
                          properties.l2CacheSize >> 20, properties.totalGlobalMem >> 20)},
      {"driver", driver()},
      {"cuda", version_of(runtime)},
      {"torch", TORCH_VERSION},
      {"program", fmt::format("nsa-bench {}, build {}, {}, {}", build_info::kVersion, build_info::kBuildId,
                              build_info::kBuildType, build_info::kCompiler)}};
  return machine;
}

}  // namespace nsa::bench
