// Is there a GPU, does it work, and is it ours alone?
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "base/text.hpp"
#include "suites/codes.hpp"
#include "suites/machine/gpu.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/probes/utilisation.hpp"

namespace suites::preflight_checks {

namespace {

constexpr auto kLoad = std::chrono::milliseconds(1500);  // several of the driver's sampling periods

Json to_json(const CudaState& state) {
  return {{"driver_supports", state.driver == 0 ? "no driver" : machine::cuda_version(state.driver)},
          {"runtime", machine::cuda_version(state.runtime)},
          {"devices", state.devices},
          {"error", state.error}};
}

std::string bus_id() {
  char text[32] = "";
  if (const cudaError_t error = cudaDeviceGetPCIBusId(text, sizeof text, 0); error != cudaSuccess) {
    throw std::runtime_error(fmt::format("cudaDeviceGetPCIBusId: {}", cudaGetErrorString(error)));
  }
  return text;
}

// Products of large matrices, one after the other, while the sampler looks.
machine::ClocksUnderLoad clocks_under_load(Context& context) {
  const at::Tensor a = at::ones({4096, 4096}, at::device(at::kCUDA).dtype(at::kBFloat16));
  probes::UtilisationSampler sampler(bus_id());
  const auto end = std::chrono::steady_clock::now() + kLoad;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 50; ++i) (void)at::matmul(a, a);
    at::cuda::getCurrentCUDAStream().synchronize();
    context.progress();
  }
  const probes::Utilisation seen = sampler.stop();
  // The first samples fall into the ramp from rest.
  const std::size_t ramp = seen.sm_mhz.size() / 3;
  return {
      {seen.sm_mhz.begin() + static_cast<std::ptrdiff_t>(ramp), seen.sm_mhz.end()}, seen.sm_max_mhz, seen.throttled_by};
}

}  // namespace

CudaState cuda_state() {
  CudaState state;
  (void)cudaDriverGetVersion(&state.driver);
  (void)cudaRuntimeGetVersion(&state.runtime);
  const cudaError_t counted = cudaGetDeviceCount(&state.devices);
  if (counted != cudaSuccess) {
    state.devices = 0;
    state.error = cudaGetErrorString(counted);
    state.no_device = counted == cudaErrorNoDevice;
    (void)cudaGetLastError();  // not sticky; later calls must not find it
  }
  return state;
}

void cuda_present(Context& context, const CudaState& state) {
  context.fact("cuda", to_json(state));
  if (context.cuda()) return;
  if (state.driver == 0 || state.no_device) {
    context.fact("cuda.used", "no: there is no GPU here, the run is on the CPU");
    return;
  }
  if (state.error.empty() && state.devices > 0) {
    context.fact("cuda.used", fmt::format("no: {} GPU(s) are here, the run is on the CPU", state.devices));
    return;
  }
  context.finding(codes::kCudaUnusable, reports::Severity::degrade,
                  fmt::format("a driver (CUDA {}) is here but CUDA does not work: {}; the run is on the CPU and says "
                              "nothing about the GPU",
                              machine::cuda_version(state.driver), state.error.empty() ? "no device" : state.error),
                  to_json(state));
}

void driver(Context& context, const CudaState& state) {
  context.fact("cuda", to_json(state));
  // Within one major version an older driver runs a newer runtime (CUDA's minor-version compatibility).
  context.expect("driver.major", state.driver / 1000 >= state.runtime / 1000,
                 fmt::format("the driver supports CUDA {}, the runtime is {}", machine::cuda_version(state.driver),
                             machine::cuda_version(state.runtime)),
                 codes::kDriver, to_json(state));
}

void cuda_works(Context& context) {
  std::string failure;
  try {
    context.phase("kernel");
    constexpr std::int64_t n = 1 << 20;
    const at::Tensor host = at::arange(n, at::kInt);
    const at::Tensor back = host.to(at::kCUDA).mul(3).add(1).to(at::kCPU);
    if (!at::equal(back, host.mul(3).add(1))) failure = "3 x + 1 of the integers below 2^20 came back wrong";
  } catch (const std::exception& error) {
    failure = base::first_line(error.what());
  }
  context.expect("cuda.kernel_and_copies", failure.empty(), "a kernel and two copies do not work: " + failure,
                 codes::kCudaUnusable, {{"error", failure}});
}

void foreign_processes(Context& context, const probes::GpuCensus& census, const probes::ForeignProcesses& foreign,
                       std::int64_t own_bytes) {
  machine::tell(context, machine::judge_foreign(census, foreign, own_bytes));
}

void gpu_processes(const Subject& subject, Context& context) {
  context.phase("NVML");
  const at::Tensor held = at::zeros({1}, at::kCUDA);  // so that this process is on the list
  const probes::GpuCensus census = subject.gpu_processes(probes::take_census(probes::Nvml::load(), bus_id()));
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  foreign_processes(context, census, probes::find_foreign(census, getpid(), getppid()),
                    stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
}

void gpu_state(Context& context) {
  context.phase("NVML at rest");
  const probes::Nvml nvml = probes::Nvml::load();
  const std::optional<probes::Nvml::Device> device = nvml.available() ? nvml.device(bus_id()) : std::nullopt;
  if (!device) {
    context.fact("gpu.state", "cannot tell: " + (nvml.available() ? "NVML does not know this GPU" : nvml.why_not()));
    return;
  }
  machine::tell(context, machine::judge_gpu(machine::look_at_gpu(nvml, *device)));
  context.phase("clocks under load");
  machine::tell(context, machine::judge_clocks(clocks_under_load(context)));
}

}  // namespace suites::preflight_checks
