// Note [Heads as rows]
// ATen's fused attention kernels take a mask or grouped heads, not both: given both, or on the CPU, they first repeat
// K and V for every query head. So the h query heads of a group become h rows of one head that faces the group's own
// K and V: q [B,S,Hq,D] -> [B,G,S*h,D], row t*h + j. K and V stay [B,G,keys,D], as views, and so do their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "nsa/ops.hpp"

namespace nsa::sdpa {

[[nodiscard]] at::Tensor heads_to_rows(const at::Tensor& q, std::int64_t G);  // [B,S,Hq,D] -> [B,G,S*h,D]
[[nodiscard]] at::Tensor rows_to_heads(const at::Tensor& o, std::int64_t S);  // [B,G,S*h,D] -> [B,S,Hq,D]

// Keys and values of a group as attend_rows takes them.
struct Keys {
  at::Tensor k, v;  // [B,G,keys,D]
  [[nodiscard]] Keys narrow(std::int64_t first, std::int64_t count) const {
    return {k.narrow(2, first, count), v.narrow(2, first, count)};
  }
};
[[nodiscard]] Keys keys_for_rows(const at::Tensor& k, const at::Tensor& v);  // of [B,keys,G,D]

// Rows [B,G,T*h,D] of T queries against their group's keys; `visible` bool [T,keys], the same for the h heads.
//
// Note [Sums of 16 bits]
// ATen's attention on the CPU adds every few hundred rows' share of dK and dV to sums in the storage type. Heads as
// rows make these shares h times as many: with 16 heads a group and bf16, errors grew to 3.5 times those of a key
// head for every query head. So 16-bit rows on the CPU are computed in fp32: keys and values are widened once
// (keys_for_rows), so that chunks of queries add up in fp32 too; queries and outputs are kept in 16 bits and
// widened a chunk at a time. The kernel's mask of numbers is made anew for the backward pass from `visible`, which
// is h * 2 times as small.
[[nodiscard]] at::Tensor attend_rows(const at::Tensor& rows, const Keys& keys, const at::Tensor& visible,
                                     std::int64_t h);

// Note [Without cuDNN]
// Where cuDNN serves a call, ATen prefers it on Hopper and later to its own kernels. With torch 2.11 its backward pass
// gives NaN for dQ when there is a mask, the number of keys modulo 128 is 64 and a row's log-sum-exp is below -88.7
// (pytorch issue 196678; s_sweep met it on an H200), and for dK, dV of a single query (cudnn-frontend issue 1072). So
// it is off while a forward pass chooses its kernel; autograd records the derivative of the kernel that was chosen, and
// a backward pass chooses nothing. ATen's memory-efficient kernel takes its place.
//
// The setting belongs to the whole process, and ATen reads it without a lock. Of several lives at a time, in whatever
// threads, the first switches off and the last restores what the first found. Meanwhile another thread's attention does
// not get cuDNN either, which is harmless, and a change that somebody else makes to the setting is lost.
class WithoutCudnn {
 public:
  WithoutCudnn();
  ~WithoutCudnn();
  WithoutCudnn(const WithoutCudnn&) = delete;
  WithoutCudnn& operator=(const WithoutCudnn&) = delete;
};

// at::scaled_dot_product_attention, without cuDNN. `visible` is a bool mask that broadcasts to [..,queries,keys].
// A call with more than kLargestMask places of a query and a key throws ContractError: ATen's memory-efficient kernel
// reckons places in the mask in 32 bits, beyond which it reads other rows' places and says nothing (pytorch issue
// 187227, forward above 2^32), or fails (issue 147585, backward above 2^31).
inline constexpr std::int64_t kLargestMask = (std::int64_t{1} << 31) - 1;
[[nodiscard]] at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const at::Tensor& visible);

// 0 .. count-1 + first, int64, on the device of `like`.
[[nodiscard]] at::Tensor positions(std::int64_t first, std::int64_t count, const at::Tensor& like);

// Calls `one(begin, length)` for every document that is not empty and lays the outputs [B,length,...] end to end.
[[nodiscard]] at::Tensor per_document(const CuSeqlens& cu_seqlens, std::int64_t S,
                                      const std::function<at::Tensor(std::int64_t begin, std::int64_t length)>& one);

}  // namespace nsa::sdpa
