// The three branches, the choice of blocks and the gated sum without autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <optional>
#include <string_view>

#include "nsa/cuda/attend.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

inline constexpr std::size_t kBranches = 3;  // cmp, sel, win
inline constexpr std::size_t kAllInputs = 8;
// q, the branches' keys and values, gates. The gradients stand in the same order.
using AllInputs = std::array<at::Tensor, kAllInputs>;
enum AllInput : std::size_t { kQ, kKeys, kGates = kKeys + 2 * kBranches };

// What the backward pass needs: q, keys, values aligned (rows.hpp), gates as gates_for_kernels gives them
// (combine.hpp).
struct AllKept {
  AllInputs given;
  at::Tensor blocks;                        // [B,S,G,n]
  std::array<at::Tensor, kBranches> o;      // [B,S,Hq,Dv]
  std::array<at::Tensor, kBranches> stats;  // [B,Hq,S,2]
};
// By the branches: the same but for their masks.
using Problems = std::array<Problem, kBranches>;
[[nodiscard]] Problems problems_of(const at::Tensor& q, const Geometry& g, const CuSeqlens& cu_seqlens,
                                   bool in_one_graph = true);

// What may be asked of the forward pass besides.
struct AllAsked {
  std::optional<at::Tensor> blocks = {};  // contiguous; absent: chosen
  // Memory for the branches' results and the choice of blocks; undefined: fresh.
  std::array<AttentionOutput, kBranches> into = {};
  at::Tensor blocks_into = {};
  // "cmp.o", "blocks", "sel.o", "win.o" as they are computed
  std::function<void(std::string_view stage, const at::Tensor& value)> show = {};
};
struct AllForward {
  at::Tensor o;  // [B,S,Hq,Dv]
  AllKept kept;
};
[[nodiscard]] AllForward attend_all_forward(AllInputs given, const Problems& problems, const CuSeqlens& cu_seqlens,
                                            const AllAsked& asked = {});
// dout aligned. A gradient that is not wanted is undefined. `dbranch`: where given, memory for the gradient of that
// branch's output, gate times dout, which nothing here needs. [B,S,Hq,Dv]
[[nodiscard]] AllInputs attend_all_backward(const AllKept& kept, const at::Tensor& dout, const Problems& problems,
                                            const std::array<bool, kAllInputs>& wanted,
                                            const std::array<at::Tensor, kBranches>& dbranch = {});

}  // namespace nsa::cuda
