// How many bytes this process holds: on the host what the C library has handed out and not got back (tensors and all
// else, of every thread), on a GPU what torch's caching allocator has handed out. Unlike the resident set these figures
// are exact: equal steps leave them equal.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace suites::training_cases {

struct MemoryInUse {
  std::int64_t host_bytes = 0;
  std::int64_t device_bytes = 0;           // 0 on the CPU
  std::int64_t device_reserved_bytes = 0;  // of the driver, used or not
};

[[nodiscard]] std::int64_t peak_resident_bytes();  // of this process so far

class MemoryMeter {
 public:
  // Tries whether the C library's account sees a tensor. Where another allocator is loaded in front of it, it does not;
  // the resident set is taken instead, which scatters.
  explicit MemoryMeter(at::Device device);
  [[nodiscard]] MemoryInUse now() const;
  // "malloc" or "resident set".
  [[nodiscard]] const std::string& host_source() const { return source_; }
  // Growth per step that is below what the source can tell.
  [[nodiscard]] double host_resolution() const { return exact() ? 1024 : 64 * 1024; }

 private:
  [[nodiscard]] bool exact() const { return source_ == "malloc"; }

  at::Device device_;
  std::string source_ = "malloc";
};

}  // namespace suites::training_cases
