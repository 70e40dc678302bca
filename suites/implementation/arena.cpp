#include "suites/implementation/arena.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

constexpr std::int64_t kFirstSize = 1 << 20;  // bytes

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 5> kTypes = {
    {{at::kDouble, "fp64"}, {at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}, {at::kHalf, "fp16"}, {at::kInt, "int32"}}};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

[[noreturn]] void refuse(const Place& place, const std::string& why) {
  throw ImplementationError("protocol",
                            fmt::format("a tensor {} [{}] at byte {} of the arena: {}", wire_name(place.dtype),
                                        fmt::join(place.shape, ", "), place.at, why));
}

// nullopt: a size is negative, or the product leaves int64 (also where another size is 0).
std::optional<std::int64_t> bytes_of(const Place& place) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(place.dtype));
  bool empty = false;
  for (const std::int64_t size : place.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : bytes;
}

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + Arena::kStep - 1) / Arena::kStep * Arena::kStep; }

}  // namespace

std::string_view wire_name(at::ScalarType dtype) {
  for (const auto& [type, name] : kTypes)
    if (type == dtype) return name;
  return "";
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  for (const auto& [type, type_name] : kTypes)
    if (type_name == name) return type;
  return std::nullopt;
}

Json to_json(const Place& place) {
  return {{"dtype", wire_name(place.dtype)}, {"shape", place.shape}, {"at", place.at}};
}

Place place_from(const Json& json, const std::string& where) {
  const Fields fields(json, where);
  const auto dtype = dtype_named(fields.text("dtype"));
  if (!dtype) fields.refuse("dtype", "fp64, fp32, bf16, fp16 or int32");
  return {*dtype, fields.integers("shape"), fields.integer("at")};
}

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
  if (!tensor.defined() || wire_name(tensor.scalar_type()).empty())
    throw ImplementationError("request",
                              fmt::format("a tensor is {}; allowed: Double, Float, BFloat16, Half or Int",
                                          tensor.defined() ? c10::toString(tensor.scalar_type()) : "undefined"));
  const at::NoGradGuard no_grad;
  Place place{tensor.scalar_type(), tensor.sizes().vec(), used_};
  const std::int64_t end = used_ + rounded_up(static_cast<std::int64_t>(tensor.nbytes()));
  grow(end);
  used_ = end;
  at::from_blob(memory_ + place.at, tensor.sizes(), at::TensorOptions(place.dtype)).copy_(tensor);
  return place;
}

at::Tensor Arena::take(const Place& place) const {
  const auto bytes = bytes_of(place);
  if (!bytes) refuse(place, "no such size");
  if (place.at < 0 || place.at % kStep != 0) refuse(place, fmt::format("allowed: a multiple of {}", kStep));
  if (*bytes > size_ || place.at > size_ - *bytes)
    refuse(place, fmt::format("it would end outside; the arena has {} bytes", size_));
  at::Tensor tensor = at::empty(place.shape, at::TensorOptions(place.dtype));
  if (*bytes > 0) std::memcpy(tensor.data_ptr(), memory_ + place.at, static_cast<std::size_t>(*bytes));
  return tensor;
}

}  // namespace suites::implementation
