// The providers that ask LibTorch and CUDA; the others: providers.cpp.
#include "suites/machine/gpu.hpp"
#include "suites/providers.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "suites/probes/nvml.hpp"

namespace suites {

namespace {

using harness::Json;

// As nvidia-smi writes it: "GPU-8a2b0c1d-...".
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i)
    text += fmt::format("{}{:02x}", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                        static_cast<unsigned char>(uuid.bytes[i]));
  return text;
}

Json describe_gpu(int index) {
  char bus_id[32] = "";
  (void)cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index);
  const cudaDeviceProp& gpu = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  return {{"index", index},
          {"name", gpu.name},
          {"sm", fmt::format("{}.{}", gpu.major, gpu.minor)},
          {"bus_id", bus_id},
          {"uuid", uuid_text(gpu.uuid)},
          {"multiprocessors", gpu.multiProcessorCount},
          {"memory_bytes", gpu.totalGlobalMem},
          {"l2_bytes", gpu.l2CacheSize},
          {"ecc", gpu.ECCEnabled != 0}};
}

// A product of two small matrices on the GPU must come back right; the reason when it does not.
std::string try_gpu() {
  if (!torch::cuda::is_available()) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    return error == cudaSuccess ? "no CUDA device is visible" : cudaGetErrorString(error);
  }
  try {
    const at::Tensor a = at::arange(64, at::device(at::kCUDA).dtype(at::kFloat)).view({8, 8});
    const at::Tensor product = at::matmul(a, a.t()).cpu();
    const at::Tensor b = at::arange(64, at::kFloat).view({8, 8});
    if (!at::equal(product, at::matmul(b, b.t()))) return "a matrix product on the GPU gives a wrong result";
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

harness::DeviceProbe probe_device() {
  harness::DeviceProbe probe;
  probe.why_not = try_gpu();
  probe.cuda_usable = probe.why_not.empty();
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  probe.provenance["torch"] = {{"version", TORCH_VERSION}, {"threads", at::get_num_threads()}};
  const std::optional<std::string> version = probes::Nvml::load().driver_version();
  probe.provenance["cuda"] = {{"runtime", machine::cuda_version(runtime)},
                              {"driver_supports", driver == 0 ? "none" : machine::cuda_version(driver)},
                              {"driver", version.value_or("unknown")}};
  Json gpus = Json::array();
  if (probe.cuda_usable) {
    for (int i = 0; i < static_cast<int>(torch::cuda::device_count()); ++i) gpus.push_back(describe_gpu(i));
  }
  probe.provenance["gpus"] = gpus;
  return probe;
}

std::string device_health() {
  // Asking about CUDA would create a context; only a process that has one can have broken it.
  if (!at::globalContext().hasCUDA() || !at::detail::getCUDAHooks().hasPrimaryContext(0)) return "";
  const cudaError_t pending = cudaDeviceSynchronize();
  return pending == cudaSuccess ? "" : std::string("CUDA error: ") + cudaGetErrorString(pending);
}

}  // namespace suites
