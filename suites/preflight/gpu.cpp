// Is there a GPU, does it work, and is it ours alone?
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include "suites/codes.hpp"
#include "suites/preflight/checks.hpp"

namespace suites::preflight_checks {

namespace {

// Memory that no visible process explains but that is not yet worth a finding: contexts and libraries of this run's own
// processes, ECC and firmware reserves.
constexpr std::int64_t kUnexplainedBytes = std::int64_t{4} << 30;

std::string dotted(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Json to_json(const CudaState& state) {
  return {{"driver_supports", state.driver == 0 ? "no driver" : dotted(state.driver)},
          {"runtime", dotted(state.runtime)},
          {"devices", state.devices},
          {"error", state.error}};
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
                              dotted(state.driver), state.error.empty() ? "no device" : state.error),
                  to_json(state));
}

void driver(Context& context, const CudaState& state) {
  context.fact("cuda", to_json(state));
  // Within one major version an older driver runs a newer runtime (CUDA's minor-version compatibility).
  context.expect(
      "driver.major", state.driver / 1000 >= state.runtime / 1000,
      fmt::format("the driver supports CUDA {}, the runtime is {}", dotted(state.driver), dotted(state.runtime)),
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
    failure = reason_of(error);
  }
  context.expect("cuda.kernel_and_copies", failure.empty(), "a kernel and two copies do not work: " + failure,
                 codes::kCudaUnusable, {{"error", failure}});
}

void foreign_processes(Context& context, const probes::GpuCensus& census, const probes::ForeignProcesses& foreign,
                       std::int64_t own_bytes) {
  Json memory = {{"own_bytes", own_bytes}};
  if (census.memory) {
    memory["used_bytes"] = census.memory->used;
    memory["total_bytes"] = census.memory->total;
  }
  context.fact("gpu.memory", memory);
  if (foreign.can_tell) {
    Json listed = Json::array();
    std::string names;
    for (const probes::ProcessOnGpu& process : foreign.foreign) {
      const Json bytes = process.bytes ? Json(*process.bytes) : Json("unknown");
      listed.push_back({{"pid", process.pid}, {"name", process.name}, {"bytes", bytes}});
      names += fmt::format("{}pid {} ({}) with {} bytes", names.empty() ? "" : ", ", process.pid,
                           process.name.empty() ? "name unknown" : process.name,
                           process.bytes ? std::to_string(*process.bytes) : "an unknown number of");
    }
    context.expect("gpu.foreign_processes", foreign.foreign.empty(), "on this GPU: " + names, codes::kForeignProcess,
                   {{"processes", listed}, {"memory", memory}});
    return;
  }
  context.fact("gpu.foreign_processes", "cannot tell: " + foreign.why_not);
  if (!census.memory) return;
  // A process that cannot be seen still shows in what the device has given away.
  const double unexplained = static_cast<double>(census.memory->used) - static_cast<double>(own_bytes);
  context.expect_at_most("gpu.unexplained_bytes", unexplained, static_cast<double>(kUnexplainedBytes), "bytes",
                         codes::kForeignProcess, {{"processes", "not visible here"}, {"memory", memory}});
}

void gpu_processes(Context& context) {
  context.phase("NVML");
  const at::Tensor held = at::zeros({1}, at::kCUDA);  // so that this process is on the list
  char bus_id[32] = "";
  if (const cudaError_t error = cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0); error != cudaSuccess) {
    throw std::runtime_error(fmt::format("cudaDeviceGetPCIBusId: {}", cudaGetErrorString(error)));
  }
  const probes::GpuCensus census = probes::take_census(probes::Nvml::load(), bus_id);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  foreign_processes(context, census, probes::find_foreign(census, getpid(), getppid()),
                    stats.reserved_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current);
}

}  // namespace suites::preflight_checks
