// A wait that a planted fault puts into a call, where the call's work is done. On a GPU it is the device that waits: a
// wait of the host is hidden by work that is queued, and a captured step that is replayed runs nothing of the host's.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>

#include "suites/faults/wait_kernel.hpp"

namespace suites {

class Wait {
 public:
  explicit Wait(const WaitLaw& law) : law_(law), calls_(std::make_shared<std::atomic<std::uint64_t>>(0)) {}
  // Waits where `works_on` lies: puts the wait on its device's current stream, or sleeps. Copies count together.
  void operator()(const at::Tensor& works_on) const;

 private:
  WaitLaw law_;
  std::shared_ptr<std::atomic<std::uint64_t>> calls_;                       // of the host
  std::shared_ptr<at::Tensor> on_device_ = std::make_shared<at::Tensor>();  // [] int64: the device's own count
};

}  // namespace suites
