// Does the planned training step fit into what is free?
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "suites/machine/host.hpp"
#include "suites/machine/memory_plan.hpp"
#include "suites/machine/variables.hpp"
#include "suites/preflight/checks.hpp"
#include "suites/probes/memory_law.hpp"
#include "suites/ways.hpp"

namespace suites::preflight_checks {

namespace {

machine::DeviceMemory host_memory() {
  const machine::HostState host = machine::look_at_host();
  return {"cpu", static_cast<double>(host.free_bytes()), static_cast<double>(host.memory_bytes), false};
}

machine::DeviceMemory gpu_memory(Context& context) {
  c10::cuda::CUDACachingAllocator::emptyCache();  // what this process keeps for itself is free for a training run
  std::size_t free = 0, total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total); error != cudaSuccess)
    throw std::runtime_error(fmt::format("cudaMemGetInfo: {}", cudaGetErrorString(error)));
  const machine::AllocatorSettings allocator =
      machine::allocator_settings(machine::variables_of(context.planned_provenance()));
  return {at::cuda::getDeviceProperties(0)->name, static_cast<double>(free), static_cast<double>(total),
          allocator.expandable_segments()};
}

}  // namespace

std::optional<machine::FittedLaw> stored_law(const machine::PlannedStep& step, const std::string& device) {
  if (step.config.train.gradient_checkpointing) return std::nullopt;
  const auto laws = probes::load_memory_laws(data_folder() / "configs" / "memory");
  const auto of = [&](const nsa::EffectiveFlags& flags) {
    return probes::find_memory_law(laws,
                                   {step.config.model.name, probes::memory_backend(flags, step.cuda),
                                    std::string(nsa::to_string(step.config.train.precision)), device},
                                   nsa::parameter_count(step.config.model));
  };
  // A selection that sdpa gathers becomes a masked one where it would hold too much, and from there on its law is the
  // masked one.
  nsa::EffectiveFlags masked_flags = step.flags;
  masked_flags.sel_mask = true;
  const auto own = of(step.flags);
  const Part& selected = asked_for(step.flags, step.cuda).parts.at(nsa::Op::attend_selected);
  const auto masked = selected.backend == nsa::Backend::sdpa ? of(masked_flags) : own;
  if (!own || !masked) return std::nullopt;
  const bool by_mask = machine::selects_by_mask(step, step.config.train.seq_len, step.config.train.batch_size);
  const probes::StoredLaw& here = by_mask ? *masked : *own;
  return machine::FittedLaw{[step, own = own->law, masked = masked->law](double S, double B) {
                              const bool beyond = machine::selects_by_mask(step, static_cast<std::int64_t>(S),
                                                                           static_cast<std::int64_t>(B));
                              return (beyond ? masked : own).at(S, B);
                            },
                            here.longest_S, here.origin};
}

void memory_estimate(const Subject& subject, Context& context) {
  const machine::PlannedStep step{subject.config(context), subject.flags(), context.cuda()};
  const machine::DeviceMemory memory = context.cuda() ? gpu_memory(context) : host_memory();
  machine::tell(context, machine::judge_memory(step, memory, stored_law(step, memory.device)));
}

}  // namespace suites::preflight_checks
