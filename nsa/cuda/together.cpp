#include "nsa/cuda/together.hpp"

#include <c10/util/Exception.h>

#include <utility>

namespace nsa::cuda {

namespace {

thread_local Together* outermost = nullptr;

}  // namespace

Together::Together(cudaStream_t stream, bool wanted)
    : submission_(stream, wanted), outermost_(submission_.collects() && !outermost) {
  if (outermost_) outermost = this;
}

Together::~Together() {
  if (outermost_) outermost = nullptr;
}

void Together::submit() {
  if (!outermost_) return;
  submission_.submit();
  outermost_ = false;
  outermost = nullptr;
  kept_.clear();
  const kernels::Submitted& done = kernels::submitted();
  if (done.refused > 0) {
    TORCH_WARN_ONCE("nsa: the CUDA runtime refused a CUDA graph of a call's kernels (", done.why,
                    "), which are launched one by one; NSA_GRAPH_CALLS=0 asks for no graph");
  }
}

void Together::keep(const at::Tensor& t) {
  if (outermost && t.defined()) outermost->kept_.push_back(t);
}

}  // namespace nsa::cuda
