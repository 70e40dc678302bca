// Backend `cuda`: the seven functions on our own kernels (nsa/kernels/), forward and backward. CUDA, bf16 and fp16
// storage, fp32 arithmetic, deterministic; the rest of what it serves: features.hpp. Work goes on the current stream,
// workspaces come from the caching allocator, and no function waits for the device.
//
// Each function checks the contract (ops.hpp), then throws Unsupported with the table's reason for what the kernels do
// not serve. A tensor that the kernels cannot read as it lies (rows.hpp) is copied first. Second derivatives are
// refused when the first backward pass is asked for a graph (create_graph).
//
// The attention functions leave Attended::lse undefined (nobody in a training step reads it) and give Attended::stats,
// from which it follows: (maximum + log2(sum)) * ln 2.
#pragma once

#include "nsa/ops.hpp"
#include "nsa/route.hpp"

namespace nsa::cuda {

[[nodiscard]] Compressed compress(const CompressArgs& args);  // phi = mlp: by sdpa
[[nodiscard]] Attended attend_compressed(const AttendCompressedArgs& args, const OnLaunch& on_launch = {});
[[nodiscard]] at::Tensor select(const SelectArgs& args, const OnLaunch& on_launch = {});
[[nodiscard]] Attended attend_selected(const AttendSelectedArgs& args, const OnLaunch& on_launch = {});
[[nodiscard]] Attended attend_window(const AttendWindowArgs& args, const OnLaunch& on_launch = {});
[[nodiscard]] at::Tensor combine(const CombineArgs& args);
// All of these but compress, in one node of autograd (AttendWay::in_one): forward the same to the bit. Backward a gate
// weighs P where it would weigh dO, which is then not rounded once more; dQ's sum is rounded as autograd's. A branch
// that is to run alone goes part by part. `in_one_graph`: each pass may go to the GPU as one CUDA graph
// (NSA_GRAPH_CALLS).
[[nodiscard]] at::Tensor attend(const AttendArgs& args, const OnLaunch& on_launch = {}, bool in_one_graph = true);

[[nodiscard]] Ops ops(const OnLaunch& on_launch = {}, bool in_one_graph = true);

}  // namespace nsa::cuda
