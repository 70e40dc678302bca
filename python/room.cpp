#include "python/room.hpp"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"

namespace nsa::python {

namespace {

constexpr std::int64_t kAligned = 256;  // bytes

std::int64_t bytes_of(at::IntArrayRef sizes, at::ScalarType type) {
  return c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(type));
}
std::int64_t rounded(std::int64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

// Calls place(tensor, sizes, type) for every part in the order in which they lie.
template <typename Place>
void for_each_part(const RoomSizes& x, Room& room, const Place& place) {
  place(room.cmp.k, {x.B, x.N, x.G, x.Dk}, x.type);
  place(room.cmp.v, {x.B, x.N, x.G, x.Dv}, x.type);
  place(room.blocks, {x.B, x.S, x.G, x.n_sel}, at::kInt);
  for (auto& branch : room.branches) {
    place(branch.o, {x.B, x.S, x.Hq, x.Dv}, x.type);
    place(branch.stats, {x.B, x.Hq, x.S, 2}, at::kFloat);
  }
}

// A tensor over memory that is there. By hand: a view by the dispatcher costs nearly as much as memory of its own.
at::Tensor part(const at::Tensor& memory, std::int64_t begin, at::IntArrayRef sizes, at::ScalarType type) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory.storage()), memory.key_set(),
                                                       c10::scalarTypeToTypeMeta(type));
  auto* tensor = made.unsafeGetTensorImpl();
  tensor->set_storage_offset((memory.storage_offset() + begin) / static_cast<std::int64_t>(c10::elementSize(type)));
  tensor->set_sizes_contiguous(sizes);
  return made;
}

bool is_captured(at::Device device) {
  return device.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace

std::int64_t RoomSizes::bytes() const {
  Room none;
  std::int64_t bytes = 0;
  for_each_part(*this, none,
                [&](at::Tensor&, at::IntArrayRef sizes, at::ScalarType t) { bytes += rounded(bytes_of(sizes, t)); });
  return bytes;
}

at::Tensor memory_for_room(std::int64_t bytes, const at::Tensor& like, bool stays) {
  constexpr std::int64_t kMostKept = std::int64_t{32} << 20;
  const auto fresh = [&](std::int64_t n) { return cuda::empty({n}, at::kByte, like); };
  if (stays || bytes > kMostKept || is_captured(like.device())) return fresh(bytes);
  struct Kept {
    at::Tensor memory;
    cudaStream_t stream = nullptr;
  };
  thread_local Kept kept;
  const cudaStream_t stream = cuda::stream_of(like.device());
  if (!kept.memory.defined() || kept.stream != stream || kept.memory.device() != like.device() ||
      kept.memory.numel() < bytes)
    kept = {fresh(bytes), stream};
  return kept.memory;
}

Room room_in(const at::Tensor& memory, const RoomSizes& sizes) {
  TORCH_CHECK(memory.scalar_type() == at::kByte && memory.is_contiguous() && memory.numel() == sizes.bytes() &&
                  memory.storage_offset() % kAligned == 0,
              "nsa: what was kept for attention's backward pass came back as another tensor");
  Room room;
  std::int64_t begin = 0;
  for_each_part(sizes, room, [&](at::Tensor& to, at::IntArrayRef shape, at::ScalarType type) {
    to = part(memory, begin, shape, type);
    begin += rounded(bytes_of(shape, type));
  });
  return room;
}

// All parts have one storage, which lies over the memory of the room that is there, or over none.
struct PassingRoom::Kept {
  Kept(const at::Tensor& memory, const RoomSizes& s)
      : sizes(s), device(memory.device()), over({}, s.bytes(), at::DataPtr(nullptr, device), nullptr, false) {
    auto whole = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(over), memory.key_set(), memory.dtype());
    whole.unsafeGetTensorImpl()->set_sizes_contiguous(s.bytes());
    room = room_in(whole, sizes);
  }
  void lie_over(void* data) { over.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, device)); }

  RoomSizes sizes;
  at::Device device;
  c10::Storage over;
  Room room;

  static std::unique_ptr<Kept>& of_thread() {
    thread_local std::unique_ptr<Kept> kept;  // none while a room has it
    return kept;
  }
};

PassingRoom::PassingRoom(const at::Tensor& memory, const RoomSizes& sizes) : kept_(std::move(Kept::of_thread())) {
  if (!kept_ || kept_->sizes != sizes || kept_->device != memory.device())
    kept_ = std::make_unique<Kept>(memory, sizes);
  kept_->lie_over(memory.data_ptr());
}

PassingRoom::~PassingRoom() {
  kept_->lie_over(nullptr);
  Kept::of_thread() = std::move(kept_);
}

const Room& PassingRoom::operator*() const { return kept_->room; }

}  // namespace nsa::python
