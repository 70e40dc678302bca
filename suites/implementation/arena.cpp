#include "suites/implementation/arena.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

constexpr std::int64_t kFirstSize = 1 << 20;  // bytes

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

Arena::Arena() : fd_(memfd_create("nsa-adapter-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (fd_.get() < 0) fail("memfd_create");
  if (fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) fail("the seal of the arena");
  grow(kFirstSize);
}

Arena::~Arena() {
  if (memory_ != nullptr) munmap(memory_, static_cast<std::size_t>(size_));
}

// The other side may have made it larger without having come to say so, and the seal lets nobody go back.
void Arena::grow(std::int64_t least) {
  if (least <= size_) return;
  std::int64_t size = file_size();
  if (size < least) {
    size = std::max(least, 2 * size_);
    if (ftruncate(fd_.get(), size) != 0) fail("a larger arena");
  }
  map(size);
}

std::int64_t Arena::file_size() const {
  struct stat file {};
  if (fstat(fd_.get(), &file) != 0) fail("the arena");
  return file.st_size;
}

void Arena::map(std::int64_t size) {
  void* memory = memory_ == nullptr
                     ? mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0)
                     : mremap(memory_, static_cast<std::size_t>(size_), static_cast<std::size_t>(size), MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) fail("the mapping of the arena");
  memory_ = static_cast<char*>(memory);
  size_ = size;
}

void Arena::follow(std::int64_t size) {
  if (size <= size_) return;
  const std::int64_t has = file_size();
  if (has < size)
    throw ImplementationError("protocol", fmt::format("the arena is said to have {} bytes, it has {}", size, has));
  map(has);
}

Place Arena::put(const at::Tensor& tensor) {
  const Place place = place_for(tensor, used_);
  const at::NoGradGuard no_grad;
  const std::int64_t end = used_ + rounded_up(static_cast<std::int64_t>(tensor.nbytes()), kStep);
  grow(end);
  used_ = end;
  at::from_blob(memory_ + place.at, tensor.sizes(), at::TensorOptions(place.dtype)).copy_(tensor);
  return place;
}

at::Tensor Arena::take(const Place& place) const {
  const std::int64_t bytes = bytes_inside(place, size_, kStep);
  at::Tensor tensor = at::empty(place.shape, at::TensorOptions(place.dtype));
  if (bytes > 0) std::memcpy(tensor.data_ptr(), memory_ + place.at, static_cast<std::size_t>(bytes));
  return tensor;
}

}  // namespace suites::implementation
