// The choice of blocks on our kernels. The contract is that of ops.hpp's select, in which `on_kernel` is told the
// kernel's name.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "nsa/cuda/attend.hpp"
#include "nsa/kernels/plan/device.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

// As it is planned for a GPU that need not be all that q's own can be (tests compare the kernels so), or, without one,
// for q's own.
[[nodiscard]] at::Tensor select_on(const std::optional<kernels::Device>& gpu, const SelectArgs& args,
                                   const std::function<void(std::string_view kernel)>& on_kernel = {});
// The same for a call that was checked and that the kernels serve, whose documents were packed and whose device was
// asked already: `problem` is its compressed branch's. `into`: memory for the blocks; undefined: fresh.
[[nodiscard]] at::Tensor select_for(const Problem& problem, const SelectArgs& args,
                                    const std::function<void(std::string_view kernel)>& on_kernel = {},
                                    const at::Tensor& into = {});

}  // namespace nsa::cuda
