#include "suites/implementation/tail.hpp"

#include "suites/implementation/error.hpp"

namespace suites::implementation {

void Tail::add(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  // Not at every call: moving 64 KiB for each short line would cost more than reading it.
  if (bytes_.size() > 2 * kKept) bytes_.erase(0, bytes_.size() - kKept);
}

std::string Tail::text() const {
  const std::lock_guard lock(mutex_);
  const std::size_t skipped = bytes_.size() > kKept ? bytes_.size() - kKept : 0;
  return readable(std::string_view(bytes_).substr(skipped));
}

}  // namespace suites::implementation
