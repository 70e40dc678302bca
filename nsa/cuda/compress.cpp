#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/packing.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/pool.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kKeptBlocks = "blocks";

// The blocks of the tokens; `N` of them.
struct Blocks : torch::CustomClassHolder {
  Blocks(const Geometry& g, Packing p, std::int64_t count) : geometry(g), packing(std::move(p)), N(count) {}
  Geometry geometry;
  Packing packing;
  std::int64_t N;
};

// Pairs of x [B,S,G,D] and y [B,N,G,D], or of their gradients; one at least.
using Pairs = std::vector<std::pair<at::Tensor, at::Tensor>>;
kernels::Pool parameters(const Pairs& pairs, const Blocks& blocks) {
  kernels::Pool p;
  for (const auto& [x, y] : pairs) p.tensors[p.count++] = {rows_of("x", x), rows_of("y", y), size_of(x, 3)};
  const auto& [x, y] = pairs.front();
  p.block_start = ints(blocks.packing.compressed_starts);
  p.packed = blocks.packing.kernel_view();
  p.document_blocks = ints(blocks.packing.compressed);
  p.geometry = geometry_of(blocks.geometry);
  p.B = size_of(x, 0);
  p.S = size_of(x, 1);
  p.N = size_of(y, 1);
  p.G = size_of(x, 2);
  p.storage = storage_of(x);
  return p;
}

// Keys and values together: one launch each way.
struct MeanPool : torch::autograd::Function<MeanPool> {
  static variable_list forward(AutogradContext* context, const at::Tensor& k, const at::Tensor& v,
                               const c10::intrusive_ptr<Blocks>& blocks) {
    const OnDeviceOf device(k);
    const auto room_for = [&](const at::Tensor& x) {
      return empty({x.size(0), blocks->N, x.size(2), x.size(3)}, x.scalar_type(), x);
    };
    const variable_list pooled = {room_for(k), room_for(v)};
    kernels::pool_forward(parameters({{k, pooled[0]}, {v, pooled[1]}}, *blocks), device.stream());
    context->saved_data["S"] = k.size(1);
    context->saved_data[kKeptBlocks] = c10::IValue::make_capsule(blocks);
    context->set_materialize_grads(false);
    return pooled;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("compress");
    const auto blocks = c10::static_intrusive_pointer_cast<Blocks>(context->saved_data.at(kKeptBlocks).toCapsule());
    const std::int64_t S = context->saved_data.at("S").toInt();
    variable_list result(3);  // k, v, blocks
    Pairs pairs;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !context->needs_input_grad(i)) continue;
      const auto dy = aligned(gradients[i]);
      result[i] = empty({dy.size(0), S, dy.size(2), dy.size(3)}, dy.scalar_type(), dy);
      pairs.emplace_back(result[i], dy);
    }
    if (pairs.empty()) return result;
    const OnDeviceOf device(pairs.front().first);
    kernels::pool_backward(parameters(pairs, *blocks), device.stream());
    return result;
  }
};

}  // namespace

Compressed compress(const CompressArgs& args) {
  check(args);
  if (args.phi_k || args.phi_v) return sdpa::compress(args);
  const auto& [k, v, g, cu_seqlens, phi_k, phi_v] = args;
  require(k, {.G = k.size(2), .Dv = v.size(3), .geometry = g, .packed = cu_seqlens.has_value()}, Op::compress);
  const OnDeviceOf device(k);
  const std::int64_t S = k.size(1);
  const auto blocks =
      c10::make_intrusive<Blocks>(g, pack(cu_seqlens, S, g, k.device()), compressed_blocks(g, cu_seqlens, S));
  const auto pooled = MeanPool::apply(aligned(k), aligned(v), blocks);
  return {pooled[0], pooled[1]};
}

}  // namespace nsa::cuda
