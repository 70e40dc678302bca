// Memory that this process shares with the one that serves an adapter: tensors cross as bytes at places in it.
//
// Both may make it larger, nobody smaller: it is sealed, so that no mapping ever loses its pages (SIGBUS). Filled from
// the front, emptied as a whole. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "harness/process.hpp"
#include "suites/implementation/place.hpp"

namespace suites::implementation {

class Arena {
 public:
  static constexpr std::int64_t kStep = 64;  // bytes: places are multiples of it

  Arena();  // throws std::system_error, as everything here does that needs more memory than there is
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::int64_t size() const { return size_; }  // bytes
  [[nodiscard]] std::int64_t room() const { return used_; }  // the first byte that is free, a multiple of kStep

  void reset() { used_ = 0; }
  // A copy of the values, of any strides and device. Throws ImplementationError "request" for a tensor that is
  // undefined or of a type that does not cross.
  Place put(const at::Tensor& tensor);
  // A tensor of its own, on the CPU. Throws ImplementationError "protocol" for a place that is not wholly inside.
  [[nodiscard]] at::Tensor take(const Place& place) const;
  // The other side says that the arena has `size` bytes now. Throws ImplementationError "protocol" when it has not.
  void follow(std::int64_t size);

 private:
  void grow(std::int64_t least);
  void map(std::int64_t size);
  [[nodiscard]] std::int64_t file_size() const;

  harness::Fd fd_;
  char* memory_ = nullptr;
  std::int64_t size_ = 0, used_ = 0;
};

}  // namespace suites::implementation
