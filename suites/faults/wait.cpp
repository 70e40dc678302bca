#include "suites/faults/wait.hpp"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <thread>

namespace suites {

void Wait::operator()(const at::Tensor& works_on) const {
  if (!works_on.is_cuda()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(law_.of(++*calls_)));
    return;
  }
  // The first call is never captured: a step is captured after its warm-up.
  if (!on_device_->defined()) *on_device_ = at::zeros({}, works_on.options().dtype(at::kLong));
  launch_wait(law_, reinterpret_cast<std::uint64_t*>(on_device_->mutable_data_ptr<std::int64_t>()),
              c10::cuda::getCurrentCUDAStream(works_on.device().index()));
}

}  // namespace suites
