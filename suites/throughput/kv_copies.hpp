// Does a call copy keys and values in memory, and how often? The call is given K and V that hold two or three known
// numbers; every floating tensor that any ATen operation returns meanwhile is kept, and one whose elements are those
// numbers (or padding) in memory of its own is a copy. Bytes that are counted do not scatter as times do.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace suites::throughput_cases {

struct KvPattern {
  at::Tensor k;  // every element the same
  at::Tensor v;  // two values, alternating from token to token, so that no mean of values looks like a value
};
// Of the given shapes [B,S,G,Dk] and [B,S,G,Dv]; exact in bf16.
[[nodiscard]] KvPattern kv_pattern(at::IntArrayRef k_shape, at::IntArrayRef v_shape, const at::TensorOptions& options);

struct KvCopy {
  std::string op;          // "aten::repeat_interleave": the outermost operation that returned it
  std::int64_t bytes = 0;  // that hold elements; a stride of 0 costs nothing
  at::Tensor tensor;       // keeps the memory, so that two copies never stand at one address by chance

  [[nodiscard]] bool same_memory(const KvCopy& other) const { return tensor.is_alias_of(other.tensor); }
};
// Runs `call` and returns every copy of `pattern`'s K or V in memory of its own, largest first.
[[nodiscard]] std::vector<KvCopy> kv_copies(const KvPattern& pattern, const std::function<void()>& call);
[[nodiscard]] std::int64_t total_bytes(const std::vector<KvCopy>& copies);

}  // namespace suites::throughput_cases
