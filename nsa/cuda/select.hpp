// The choice of blocks as it is planned for a GPU that need not be all that q's own can be (tests compare the kernels
// so), or, without one, for q's own. The contract is that of ops.hpp's select, in which `on_kernel` is told the
// kernel's name.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "nsa/kernels/plan/device.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

[[nodiscard]] at::Tensor select_on(const std::optional<kernels::Device>& gpu, const SelectArgs& args,
                                   const std::function<void(std::string_view kernel)>& on_kernel = {});

}  // namespace nsa::cuda
