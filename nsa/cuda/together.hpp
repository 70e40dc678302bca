// The launches of several functions as one CUDA graph: kernels/launch/submission.hpp, with torch's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "nsa/kernels/launch/submission.hpp"

namespace nsa::cuda {

// From its beginning to submit() no operation of ATen may compute on the stream what these launches read, nor may a
// tensor that they use be freed: keep() one that would be. Allocating is allowed. Within another one of the thread it
// is that one's, and does nothing.
class Together {
 public:
  explicit Together(cudaStream_t stream, bool wanted = true);
  ~Together();  // without submit(), after an exception: nothing is launched
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  // Throws LaunchError, with the kernel's name. Where the runtime refuses the graph but takes the launches, torch warns
  // once.
  void submit();
  // Until the thread's launches are submitted; nothing where none are collected.
  static void keep(const at::Tensor& t);

 private:
  kernels::Submission submission_;
  bool outermost_;
  std::vector<at::Tensor> kept_;
};

}  // namespace nsa::cuda
