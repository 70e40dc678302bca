// Which GPUs the machine code of our kernels runs on: what the build has compiled, not what a kernel could be compiled
// for. Pure; the list comes from the build (TORCH_CUDA_ARCH_LIST), which gives it to nvcc too.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace nsa {

// TORCH_CUDA_ARCH_LIST of this build: "8.0 9.0a".
[[nodiscard]] std::string_view compiled_architectures();

// The first GPU of `list` that a kernel is written for, as {major, minor}; {0, 0} for a list without one.
[[nodiscard]] std::pair<int, int> first_architecture(std::string_view list);

// "" where code of `list` runs on a GPU of this compute capability, else what it would need: machine code runs
// on its own major version from its minor one on, that of an "a" on its very version alone; "+PTX" is translated
// for newer GPUs.
[[nodiscard]] std::string architecture_refusal(std::string_view list, int major, int minor);

}  // namespace nsa
