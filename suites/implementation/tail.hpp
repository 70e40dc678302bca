// The end of what a process writes, however much it writes.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace suites::implementation {

// Thread-safe.
class Tail {
 public:
  static constexpr std::size_t kKept = 64 << 10;  // bytes

  void add(std::string_view bytes);
  // The last kKept bytes, as text (readable()).
  [[nodiscard]] std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::string bytes_;
};

}  // namespace suites::implementation
