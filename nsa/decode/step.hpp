// One token against the caches: the functions that a decoding step is made of, as a table that anything may wrap (the
// seam of decoding, as ops.hpp is that of a whole pass).
//
// A step has one query [B,1,Hq,Dk] at token t, which is the last that the caches hold. Hence no mask anywhere: every
// block in the cache is complete and every token in it is visible, only the window has dropped what it must not see.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>

#include "nsa/decode/cache.hpp"

namespace nsa::cuda {  // cuda/decode.hpp, for those who call or replace StepOps::attend_all
struct DecodeArgs;
struct Decoded;
}  // namespace nsa::cuda

namespace nsa::decode {

struct StepSelectArgs {
  at::Tensor q;      // [B,1,Hq,Dk]
  at::Tensor k_cmp;  // [B,G,N_c,Dk]: the complete blocks; undefined when there is none
  std::int64_t t = 0;
  std::int64_t G = 1;
  Geometry geometry;
};
struct StepAttendArgs {
  at::Tensor q;     // [B,1,Hq,Dk]
  at::Tensor k, v;  // [B,G,keys,Dk], [B,G,keys,Dv]: every key is seen
};

// One part of a step. It is called and replaced like a std::function, and knows whether it was replaced.
template <typename Args>
class StepPart {
 public:
  template <typename Call>
  requires(!std::same_as<std::remove_cvref_t<Call>, StepPart> && std::is_invocable_r_v<at::Tensor, Call&, const Args&>)
      // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): `requires` rules copies out
      StepPart(Call&& call)  // implicit: it is written as a function
      : call_(std::forward<Call>(call)) {}
  [[nodiscard]] static StepPart own(at::Tensor (*function)(const Args&)) {
    StepPart part(function);
    part.own_ = true;
    return part;
  }
  at::Tensor operator()(const Args& args) const { return call_(args); }
  [[nodiscard]] bool replaced() const { return !own_; }

 private:
  std::function<at::Tensor(const Args&)> call_;
  bool own_ = false;
};

struct StepOps {
  std::function<void(LayerCache&, const Projected&)> remember;          // T >= 1 tokens, of a prefill or a step
  std::function<void(LayerCache&, const Compressed&)> remember_blocks;  // blocks [B,N,G,D] that have become complete
  // Eq 8 to 11 for one query: blocks [B,1,G,n] int32, ascending, tail padded with -1.
  StepPart<StepSelectArgs> select;
  StepPart<StepAttendArgs> attend;  // [B,1,Hq,Dv]; serves all three branches
  // The choice, all branches and their gated sum on our own kernels, where they serve the step (README.md): then nobody
  // calls `select` and `attend`. Where one of these was replaced the step goes part by part, so that nobody's part is
  // passed over. To be asked without changing the way, replace this.
  using OnKernel = std::function<void(std::string_view)>;
  std::function<cuda::Decoded(const cuda::DecodeArgs&, const OnKernel&)> attend_all;
};
[[nodiscard]] StepOps step_ops();

// The chosen blocks' tokens up to t, of a cache that ends with t: rows [B,G,S,D], blocks [B,1,G,n] -> [B,G,tokens,D].
[[nodiscard]] at::Tensor gather_blocks(const at::Tensor& rows, const at::Tensor& blocks, std::int64_t t,
                                       const Geometry& g);

}  // namespace nsa::decode
