// Attention over intervals of keys (compressed, window), forward, for Hopper's own instructions (sm_90a): the contract
// is attention_forward's (attention.hpp), answers agree within rounding.
#pragma once

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/combine.hpp"
#include "nsa/kernels/plan/device.hpp"

namespace nsa::kernels {

// Whether this problem can be given to attention_forward_hopper on a device that has Device::hopper: Mask::compressed
// or Mask::window, (Dk, Dv) one of (64, 64), (128, 128), (192, 128), S*h rows below 2^27, no dimension of K or V
// expanded (a stride of 0).
[[nodiscard]] bool attention_forward_hopper_supports(const AttentionForward& p);
// Throws LaunchError when the problem is not supported.
void attention_forward_hopper(const AttentionForward& p, const Device& device, cudaStream_t stream);

// The window branch and, in the same kernel, the gated sum: the contract is window_and_combine's
// (attention.hpp). Supported where attention_forward_hopper supports the window.
[[nodiscard]] bool window_and_combine_hopper_supports(const AttentionForward& p);
void window_and_combine_hopper(const AttentionForward& p, const Device& device, const Combine& sum,
                               cudaStream_t stream);

// The backward pass over intervals in one kernel (sm90_backward/backward.cuh): the contract is attention_backward's.
// For widths (128, 128) where dQ, dK and dV are all wanted, without a packed batch, up to 64 heads a group, no
// dimension of an input expanded, with work enough (Limits::interval_steps) and a workspace of Limits::interval_bytes
// at most: 1 KiB for 64 rows, 1 KiB for a key of the compressed branch, and sums of dQ.
[[nodiscard]] bool attention_backward_hopper_supports(const AttentionBackward& p, const Limits& limits);
[[nodiscard]] std::int64_t attention_backward_hopper_workspace(const AttentionBackward& p, const Limits& limits);
void attention_backward_hopper(const AttentionBackward& p, const Device& device, cudaStream_t stream);

}  // namespace nsa::kernels
