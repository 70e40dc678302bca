// A step of decoding on our own kernels: one token against the caches, the choice of blocks and all branches in four
// launches, or two (kernels/decode.hpp). Nothing waits for the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>

#include "nsa/config.hpp"

namespace nsa::cuda {

// The query is token t, the last that the caches hold: all of their rows are read where they lie.
struct DecodeArgs {
  at::Tensor q;             // [B,1,Hq,Dk]
  at::Tensor gates;         // [B,1,G,3] in the order cmp, sel, win; q's type or fp32
  at::Tensor k_cmp, v_cmp;  // [B,G,N_c,Dk], [B,G,N_c,Dv]: the complete blocks; undefined when there is none
  at::Tensor k_sel, v_sel;  // [B,G,t+1,Dk], [B,G,t+1,Dv]
  at::Tensor k_win, v_win;  // [B,G,keys,Dk], [B,G,keys,Dv], in any order
  std::int64_t t = 0;
  Geometry geometry;
  bool branches = false;  // are cmp, sel and win wanted?
};
struct Decoded {
  at::Tensor o;               // [B,1,Hq,Dv]
  at::Tensor blocks;          // [B,1,G,n] int32, ascending, tail padded with -1
  at::Tensor cmp, sel, win;   // [B,1,Hq,Dv], where they are wanted
  std::int64_t selected = 0;  // tokens that the kernels read for the selected branch, a row and group each
};

// "" where the kernels, or their emulation, serve the step, else what was asked and what is served: what `attend`
// serves (features.hpp), l'/d up to 128, and a million tokens.
[[nodiscard]] std::string decode_refusal(const DecodeArgs& args);
// Deterministic; without gradients. `on_kernel` is told the variant. Throws Unsupported with decode_refusal's reason.
[[nodiscard]] Decoded decode(const DecodeArgs& args, const std::function<void(std::string_view)>& on_kernel = {});

}  // namespace nsa::cuda
