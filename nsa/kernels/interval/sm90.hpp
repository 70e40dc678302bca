// Attention over intervals of keys (compressed, window), forward, for Hopper's own instructions (sm_90a): the contract
// is attention_forward's (attention.hpp), answers agree within rounding.
#pragma once

#include <string_view>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/combine.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

// "", or why the problem cannot be given to attention_forward_hopper on a device that has Device::hopper, which takes
// Mask::compressed and Mask::window, (Dk, Dv) of (64, 64), (128, 128) and (192, 128), S*h rows below 2^27, and no
// expanded dimension of K or V (a stride of 0).
[[nodiscard]] std::string_view attention_forward_hopper_refusal(const AttentionForward& p);
void attention_forward_hopper(const AttentionForward& p, int sm_count, cudaStream_t stream);
// The window branch and, in the same kernel, the gated sum: the contract is window_and_combine's
// (attention.hpp). For what attention_forward_hopper takes.
void window_and_combine_hopper(const AttentionForward& p, int sm_count, const Combine& sum, cudaStream_t stream);

// The compressed branch and the choice of blocks in one kernel (sm90_forward/with_choice.cuh): the contract is
// forward_and_select's (attention.hpp). For widths (64, 64), up to 128 compressed keys that are all of them, l = 2d,
// l' = 4d, n of 3 to 64, up to 16 heads a group, a grid that CUDA takes, no packed batch, no expanded dimension of K or
// V.
[[nodiscard]] std::string_view forward_and_select_hopper_refusal(const AttentionForward& p);
void forward_and_select_hopper(const AttentionForward& p, int* blocks, cudaStream_t stream);

// The backward pass over intervals in one kernel (sm90_backward/backward.cuh): the contract is attention_backward's.
// For widths (128, 128), and (64, 64) where at most 128 compressed keys are all of them, where dQ, dK and dV are all
// wanted, without a packed batch, up to 64 heads a group, no dimension of an input expanded, with work enough
// (Limits::interval_steps, few_keys_steps) and a workspace of Limits::interval_bytes at most: 1 KiB for 64 rows, 1 KiB
// for a key of the compressed branch, and sums of dQ.
[[nodiscard]] std::string_view attention_backward_hopper_refusal(const AttentionBackward& p, const Limits& limits);
[[nodiscard]] std::int64_t attention_backward_hopper_workspace(const AttentionBackward& p, const Limits& limits);
inline constexpr int kBackwardHopperLaunches = 3;  // of kernels, at most
void attention_backward_hopper(const AttentionBackward& p, const Device& device, cudaStream_t stream);

}  // namespace nsa::kernels
