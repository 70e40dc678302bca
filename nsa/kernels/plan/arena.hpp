// A workspace handed out piece by piece. Over a null pointer it only counts, so that the same walk through a plan gives
// first the size and then the pointers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nsa::kernels {

class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* take(std::int64_t count) {
    char* const piece = base_ ? base_ + used_ : nullptr;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
    most_ = std::max(most_, used_);
    return reinterpret_cast<T*>(piece);
  }
  // What was taken since used() was `mark` is free again.
  [[nodiscard]] std::int64_t used() const { return used_; }
  void release(std::int64_t mark) { used_ = mark; }
  [[nodiscard]] std::int64_t most() const { return most_; }

 private:
  char* base_;
  std::int64_t used_ = 0, most_ = 0;
};

}  // namespace nsa::kernels
