// One allocation for all that attention computes on the way to o and its backward pass asks for: an allocation costs
// the host as much as half a launch, and these are nine. A tensor costs it something too, so a forward pass, which
// gives none of the nine to anybody, takes those of the thread's call before.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>

#include "nsa/cuda/attend_all.hpp"
#include "nsa/ops.hpp"

namespace nsa::python {

// The sizes of a call. N: compressed blocks that there is room for.
struct RoomSizes {
  std::int64_t B = 0, S = 0, Hq = 0, G = 0, Dk = 0, Dv = 0, N = 0, n_sel = 0;
  at::ScalarType type = at::kBFloat16;
  [[nodiscard]] std::int64_t bytes() const;
  bool operator==(const RoomSizes&) const = default;
};

// Its parts: dense tensors that lie in the room.
struct Room {
  Compressed cmp;
  at::Tensor blocks;
  std::array<cuda::AttentionOutput, cuda::kBranches> branches;
};
// [bytes], for one room, on the device of `like`. `stays`: a backward pass will ask for it. Else it is good until the
// thread asks again, and most often the memory of the call before: to ask the allocator takes the host a sixth of the
// call. Up to 32 MiB are kept so, of the stream that was last worked on; fresh while a CUDA graph is captured, which
// goes on using its own.
[[nodiscard]] at::Tensor memory_for_room(std::int64_t bytes, const at::Tensor& like, bool stays);
// The parts keep the memory.
[[nodiscard]] Room room_in(const at::Tensor& memory, const RoomSizes& sizes);

// The parts while this lives; they do not keep the memory, and whoever still holds one afterwards holds a tensor of no
// memory. The thread keeps them for its next room of these sizes.
class PassingRoom {
 public:
  PassingRoom(const at::Tensor& memory, const RoomSizes& sizes);
  ~PassingRoom();
  PassingRoom(const PassingRoom&) = delete;
  PassingRoom& operator=(const PassingRoom&) = delete;
  [[nodiscard]] const Room& operator*() const;

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;  // the thread's own, given back at the end
};

}  // namespace nsa::python
