// One allocation for all that attention computes on the way to o and its backward pass asks for: an allocation costs
// the host as much as half a launch, and these are nine.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "nsa/cuda/attend_all.hpp"
#include "nsa/ops.hpp"

namespace nsa::python {

// The sizes of a call. N: compressed blocks that there is room for.
struct RoomSizes {
  std::int64_t B = 0, S = 0, Hq = 0, G = 0, Dk = 0, Dv = 0, N = 0, n_sel = 0;
  at::ScalarType type = at::kBFloat16;
  [[nodiscard]] std::int64_t bytes() const;
};

// Its parts: tensors of their own, dense, that lie in the room and keep it.
struct Room {
  at::Tensor memory;  // [bytes]
  Compressed cmp;
  at::Tensor blocks;
  std::array<cuda::AttentionOutput, cuda::kBranches> branches;
};
// In fresh memory on the device of `like`.
[[nodiscard]] Room make_room(const RoomSizes& sizes, const at::Tensor& like);
// In the memory of a room that was made so.
[[nodiscard]] Room room_in(const at::Tensor& memory, const RoomSizes& sizes);

}  // namespace nsa::python
