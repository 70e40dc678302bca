#include "nsa/parallel/backend.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#if !defined(NSA_WITHOUT_GLOO) && __has_include(<gloo/context.h>)
#define NSA_HAS_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif
#if defined(USE_C10D_NCCL) && __has_include(<nccl.h>)
#define NSA_HAS_NCCL
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace nsa::parallel {

namespace {

bool on_one_machine(const World& world) {
  return world.local_size == world.size || world.address == "127.0.0.1" || world.address == "localhost";
}

Processes grouped(const StorePointer& store, const World& world, c10::intrusive_ptr<c10d::Backend> backend,
                  at::DeviceType device, c10d::ProcessGroup::BackendType type, const char* name) {
  Processes made;
  made.group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank, world.size);
  made.group->setBackend(device, type, backend);
  made.group->setDefaultBackend(type);
  made.backend = std::move(backend);
  made.name = name;
  return made;
}

#ifdef NSA_HAS_GLOO
Processes gloo(const StorePointer& store, const GroupOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto settings = Gloo::Options::create(options.timeout);
  const std::string& interface = options.world.network_interface;
  settings->devices.push_back(!interface.empty()              ? Gloo::createDeviceForInterface(interface)
                              : on_one_machine(options.world) ? Gloo::createDeviceForHostname("127.0.0.1")
                                                              : Gloo::createDefaultDevice());
  settings->threads = 1;  // collectives of one group come one after another
  return grouped(store, options.world,
                 c10::make_intrusive<Gloo>(store, options.world.rank, options.world.size, settings), at::kCPU,
                 c10d::ProcessGroup::GLOO, "gloo");
}
#else
Processes gloo(const StorePointer&, const GroupOptions&) {
  throw NotBuilt("several processes on CPUs: built without gloo's headers: install libgloo-dev and build again");
}
#endif

#ifdef NSA_HAS_NCCL
// c10d's thread gives up, with words of its own on standard error, long after the group has told all.
constexpr std::chrono::seconds kLater{120};

// By NCCL's own function: c10d's sums in place alone.
void sum_unrecorded(c10d::ProcessGroupNCCL& backend, const std::vector<at::Tensor>& own,
                    const std::vector<at::Tensor>& sums) {
  using namespace torch::cuda;
  auto* communicator = reinterpret_cast<nccl::ncclComm_t>(backend.getCommPtr());  // of the current device
  if (communicator == nullptr) throw std::logic_error("a sum in a graph, and NCCL has no communicator");
  const nccl::stream_list stream = {c10::cuda::getCurrentCUDAStream()};
  const nccl::AutoNcclGroup at_once;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::vector<at::Tensor> into = {sums[i]};
    nccl::all_reduce({own[i]}, into, static_cast<std::int32_t>(nccl::ncclRedOp::Sum), stream, {communicator});
  }
}

Processes nccl(const StorePointer& store, const GroupOptions& options) {
  // The group watches by itself, and says more than c10d's own threads, which would end the process or write files.
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", /*overwrite=*/0);
  ::setenv("TORCH_FR_BUFFER_SIZE", "64", /*overwrite=*/0);
  if (options.world.local_size > 1) {
    const auto needed = kSharedMemoryOfARank * static_cast<std::uint64_t>(options.world.local_size);
    if (const std::string why = shared_memory_is_short("/dev/shm", needed); !why.empty())
      throw NotBuilt("NCCL: " + why);
  }
  auto settings = c10d::ProcessGroupNCCL::Options::create();
  settings->timeout = options.timeout + kLater;
  c10::cuda::set_device(options.device.index());  // what names no GPU would take memory on the first one
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, options.world.rank, options.world.size, settings);
  backend->eagerConnectSingleDevice(options.device);  // here, where a failure belongs
  Processes made = grouped(store, options.world, backend, at::kCUDA, c10d::ProcessGroup::NCCL, "nccl");
  made.sum_unrecorded = [backend](const auto& own, const auto& sums) { sum_unrecorded(*backend, own, sums); };
  return made;
}
#else
Processes nccl(const StorePointer&, const GroupOptions&) {
  throw NotBuilt("several processes on GPUs: built without nccl.h, which comes with the CUDA toolkit or NCCL's wheel");
}
#endif

}  // namespace

Processes make_processes(const StorePointer& store, const GroupOptions& options) {
  return options.device.is_cuda() ? nccl(store, options) : gloo(store, options);
}

std::string shared_memory_is_short(const std::string& folder, std::uint64_t needed) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0)
    return fmt::format("{} cannot be used: {}; the processes of one machine share memory there", folder,
                       std::strerror(errno));
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (free >= needed) return "";
  return fmt::format(
      "{} has {} MiB left and {} MiB are needed, {} MiB for each process of this machine: remove what fills "
      "it, or make it larger (of a container: --shm-size)",
      folder, free >> 20, needed >> 20, kSharedMemoryOfARank >> 20);
}

std::string flight_record() {
#ifdef NSA_HAS_NCCL
  return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false);
#else
  return "";
#endif
}

}  // namespace nsa::parallel
