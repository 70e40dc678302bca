// The GPU that is measured on, and what a result must be read with.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <stdexcept>
#include <string>

#include "nsa/bench/subject.hpp"

namespace nsa::bench {

// There is no GPU to measure on; what() says why.
class NoGpu : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Machine {
  at::Device device = at::kCPU;
  Capability capability;
  std::string gpu;                           // "NVIDIA H200"
  std::map<std::string, std::string> facts;  // gpu, driver, cuda, torch, version and build id of this program
};
// Throws NoGpu. The first visible device (CUDA_VISIBLE_DEVICES chooses another).
[[nodiscard]] Machine find_machine();

}  // namespace nsa::bench
