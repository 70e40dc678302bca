// From tensors to the plain parameters of the kernels, and what stands before that: the feature table, the layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "nsa/call.hpp"
#include "nsa/kernels/params.hpp"
#include "nsa/route.hpp"

namespace nsa::cuda {

// A live call as the tables are to see it: the kernels' emulation is to serve what a GPU would.
[[nodiscard]] Call as_served(Call call);
// Whether our kernels, or their emulation, run where a tensor is: "", or what is served.
[[nodiscard]] std::string device_refusal(const at::Tensor& t);
// cuda_refusal of a live call; "" where the kernels, or their emulation, serve it.
[[nodiscard]] std::string refusal(Call call, Op op);
// Throws Unsupported with the same reason and the backend to use instead.
void require(const at::Tensor& q, const CallOptions& options, Op op);
// For a backward pass: throws c10::NotImplementedError when a graph of it is to be made (create_graph).
void refuse_second_derivative(std::string_view op);

// The kernels read 16 bytes at a time: a dense last dimension, the other strides multiples of 8 elements, the data at a
// multiple of 16 bytes. The tensor itself where it lies so, else a contiguous copy. Differentiable.
[[nodiscard]] at::Tensor aligned(const at::Tensor& t);
// The same of a tensor that is read as one row of memory: dense in all dimensions, at a multiple of 16 bytes.
[[nodiscard]] at::Tensor dense(const at::Tensor& t);
// t [B,S,H,D]. Throws ContractError, which names the tensor, where it does not lie so.
[[nodiscard]] kernels::Rows rows_of(std::string_view name, const at::Tensor& t);

[[nodiscard]] kernels::Storage storage_of(const at::Tensor& t);
[[nodiscard]] kernels::Geometry geometry_of(const Geometry& g);
[[nodiscard]] int size_of(const at::Tensor& t, std::int64_t dim);
[[nodiscard]] float scale_of(const at::Tensor& q);  // 1/sqrt(Dk)

// [bytes] from the caching allocator, on the device of `like`; undefined for none, which most plans want.
[[nodiscard]] at::Tensor workspace(std::int64_t bytes, const at::Tensor& like);
[[nodiscard]] void* start_of(const at::Tensor& workspace);  // null where it is undefined
// A dense tensor like t, not initialised, on t's device.
[[nodiscard]] at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type, const at::Tensor& like);

}  // namespace nsa::cuda
