// The operators torch.ops.nsa.*: plain functions of tensors, without autograd. A backward operator takes what its
// forward operator was given and gave, and returns the gradients that are wanted, in the order of the inputs.
//
// On a GPU they are our kernels' where these serve the call, else sdpa's (`backend`, call.hpp). sdpa has no backward
// pass of its own: there a backward operator runs its forward pass again under autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "nsa/ops.hpp"

namespace nsa::python {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Gradients = std::vector<Tensor>;  // of those inputs that are wanted

std::tuple<Tensor, Tensor> compress(const Tensor& k, const Tensor& v, const MaybeTensor& cu_seqlens, std::int64_t l,
                                    std::int64_t d, std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                    std::string_view backend);
std::tuple<Tensor, Tensor> compress_backward(const Tensor& dk_cmp, const Tensor& dv_cmp, std::int64_t S,
                                             const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                             std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                             std::string_view backend);

// (o, stats): Attended of ops.hpp; stats of sdpa are infinite, because nobody computed them.
std::tuple<Tensor, Tensor> attend_compressed(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                                             const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                             std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                             std::string_view backend);
Gradients attend_compressed_backward(const Tensor& dout, const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                                     const Tensor& o, const Tensor& stats, const MaybeTensor& cu_seqlens,
                                     std::int64_t l, std::int64_t d, std::int64_t l_sel, std::int64_t n_sel,
                                     std::int64_t w, std::array<bool, 3> wanted, std::string_view backend);

Tensor select(const Tensor& q, const Tensor& k_cmp, const MaybeTensor& stats, const MaybeTensor& cu_seqlens,
              std::int64_t l, std::int64_t d, std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
              std::string_view backend);

std::tuple<Tensor, Tensor> attend_selected(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                                           const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                           std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                           std::string_view backend);
Gradients attend_selected_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& blocks, const Tensor& o, const Tensor& stats,
                                   const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d, std::int64_t l_sel,
                                   std::int64_t n_sel, std::int64_t w, std::array<bool, 3> wanted,
                                   std::string_view backend);

std::tuple<Tensor, Tensor> attend_window(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                         std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                         std::string_view backend);
Gradients attend_window_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                 const Tensor& stats, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                 std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::array<bool, 3> wanted,
                                 std::string_view backend);

Tensor combine(const Tensor& gates, const Tensor& o_cmp, const Tensor& o_sel, const Tensor& o_win,
               std::string_view backend);
Gradients combine_backward(const Tensor& dout, const Tensor& gates, const Tensor& o_cmp, const Tensor& o_sel,
                           const Tensor& o_win, std::array<bool, 4> wanted, std::string_view backend);

// (o, blocks, o_cmp, o_sel, o_win, stats_cmp, stats_sel, stats_win). `blocks`: chosen, or a copy of those given.
using AttendOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
AttendOutputs attend(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp, const Tensor& k_sel,
                     const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates,
                     const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                     std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::string_view backend);
Gradients attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                          const Tensor& k_sel, const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win,
                          const Tensor& gates, const Tensor& blocks, const Tensor& o_cmp, const Tensor& o_sel,
                          const Tensor& o_win, const Tensor& stats_cmp, const Tensor& stats_sel,
                          const Tensor& stats_win, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                          std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::array<bool, 8> wanted,
                          std::string_view backend);

// Both for who has looked at the contract and is Alone (call.hpp).
std::tuple<Tensor, Tensor> compress_checked(const Tensor& k, const Tensor& v, const MaybeTensor& cu_seqlens,
                                            const Geometry& g, std::string_view backend);
AttendOutputs attend_checked(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp, const Tensor& k_sel,
                             const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates,
                             const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, const Geometry& g,
                             std::string_view backend);

// attend and the compression before it: its results, and (k_cmp, v_cmp), which in a packed batch have room
// for S/d blocks.
[[nodiscard]] std::int64_t room_for_blocks(const Geometry& g, std::int64_t S);
using AttentionOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
AttentionOutputs attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_sel, const Tensor& v_sel,
                           const Tensor& k_win, const Tensor& v_win, const Tensor& gates, const MaybeTensor& blocks,
                           const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d, std::int64_t l_sel,
                           std::int64_t n_sel, std::int64_t w, std::string_view backend);
Gradients attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                             const Tensor& k_sel, const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win,
                             const Tensor& gates, const Tensor& blocks, const Tensor& o_cmp, const Tensor& o_sel,
                             const Tensor& o_win, const Tensor& stats_cmp, const Tensor& stats_sel,
                             const Tensor& stats_win, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                             std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::array<bool, 8> wanted,
                             std::string_view backend);

}  // namespace nsa::python
