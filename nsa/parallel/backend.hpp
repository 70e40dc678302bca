// Gloo or NCCL, as c10d has them. Not for others than nsa/parallel's sources.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nsa/parallel/meeting.hpp"

namespace nsa::parallel {

struct Processes {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Backend> backend;
  const char* name = "";
  // Group::sum_unrecorded; empty: not served.
  std::function<void(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& sums)> sum_unrecorded = {};
};
// All ranks at the same time. Throws NotBuilt, and what c10d throws.
[[nodiscard]] Processes make_processes(const StorePointer& store, const GroupOptions& options);

// Why processes cannot share memory through `folder`, which NCCL does on one machine; "" when nothing speaks against
// it.
inline constexpr std::uint64_t kSharedMemoryOfARank = 64 << 20;
[[nodiscard]] std::string shared_memory_is_short(const std::string& folder, std::uint64_t needed);

// What NCCL's flight recorder has. Asks the GPU.
[[nodiscard]] std::string flight_record();

}  // namespace nsa::parallel
