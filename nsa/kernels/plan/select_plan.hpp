// Which kernel chooses the blocks of a call, and why: decided before anything is launched, by the problem and the
// device alone. Of pointers nothing is looked at but strides.
#pragma once

#include <string_view>

#include "nsa/kernels/plan/device.hpp"
#include "nsa/kernels/select.hpp"

namespace nsa::kernels {

enum class SelectVariant {
  mma_sync,  // select/sm80.cuh
  wgmma,     // select/sm90.cuh
};
[[nodiscard]] std::string_view to_string(SelectVariant variant);  // "blocks by mma.sync"

struct SelectPlan {
  SelectVariant variant = SelectVariant::mma_sync;
  int pairs = 3;              // of heads that the kernel has rows for; those beyond the group's are padding
  std::int64_t launches = 0;  // of kernels; a call without tokens has none. No variant needs a workspace
  std::string_view why;       // of static storage
  Device device;              // for which it was made
};
// Throws std::invalid_argument for what no kernel serves: Dk other than 32, 64, 128, 192; more than 16 heads a group;
// n outside 3 to 64; d that does not divide l and l'; l > l'.
[[nodiscard]] SelectPlan plan_select(const Select& p, const Device& device);

}  // namespace nsa::kernels
