#include "nsa/cuda/compress.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/pool.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kKeptBlocks = "blocks";

// The context of a node holds only IValues, and a capsule is the one that takes anything.
struct KeptBlocks : torch::CustomClassHolder {
  explicit KeptBlocks(Blocks b) : blocks(std::move(b)) {}
  Blocks blocks;
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

struct MeanPool : torch::autograd::Function<MeanPool> {
  static variable_list forward(AutogradContext* context, const at::Tensor& k, const at::Tensor& v,
                               const c10::intrusive_ptr<KeptBlocks>& kept) {
    const auto pooled = pool_forward(k, v, kept->blocks);
    context->saved_data[kKeptBlocks] = c10::IValue::make_capsule(kept);
    context->set_materialize_grads(false);
    return {pooled.k, pooled.v};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("compress");
    const auto kept = c10::static_intrusive_pointer_cast<KeptBlocks>(context->saved_data.at(kKeptBlocks).toCapsule());
    const auto wanted = [&](std::size_t i) {
      return gradients[i].defined() && context->needs_input_grad(i) ? aligned(gradients[i]) : at::Tensor();
    };
    const auto [dk, dv] = pool_backward(wanted(0), wanted(1), kept->blocks);
    return {dk, dv, at::Tensor()};
  }
};

}  // namespace

Blocks blocks_of(const at::Tensor& tokens, const Geometry& g, const CuSeqlens& cu_seqlens) {
  const std::int64_t S = tokens.size(1);
  return {g, pack(cu_seqlens, S, g, tokens.device()), S, compressed_blocks(g, cu_seqlens, S)};
}

Compressed pool_forward(const at::Tensor& k, const at::Tensor& v, const Blocks& blocks, const Compressed& into) {
  const OnDeviceOf device(k);
  const auto room_for = [&](const at::Tensor& x, const at::Tensor& given) {
    return given.defined() ? given : empty({x.size(0), blocks.N, x.size(2), x.size(3)}, x.scalar_type(), x);
  };
  Compressed pooled{room_for(k, into.k), room_for(v, into.v)};
  kernels::pool_forward(parameters({{k, pooled.k}, {v, pooled.v}}, blocks), device.stream());
  return pooled;
}

Compressed pool_backward(const at::Tensor& dk_cmp, const at::Tensor& dv_cmp, const Blocks& blocks) {
  Pairs pairs;
  const auto gradient = [&](const at::Tensor& dy) {
    if (!dy.defined()) return at::Tensor();
    auto dx = empty({dy.size(0), blocks.S, dy.size(2), dy.size(3)}, dy.scalar_type(), dy);
    pairs.emplace_back(dx, dy);
    return dx;
  };
  Compressed result{gradient(dk_cmp), gradient(dv_cmp)};
  if (pairs.empty()) return result;
  const OnDeviceOf device(pairs.front().first);
  kernels::pool_backward(parameters(pairs, blocks), device.stream());
  return result;
}

Compressed compress(const CompressArgs& args) {
  check(args);
  if (args.phi_k || args.phi_v) return sdpa::compress(args);
  const auto& [k, v, g, cu_seqlens, phi_k, phi_v] = args;
  require(k, {.G = k.size(2), .Dv = v.size(3), .geometry = g, .packed = cu_seqlens.has_value()}, Op::compress);
  const OnDeviceOf device(k);
  const auto kept = c10::make_intrusive<KeptBlocks>(blocks_of(k, g, cu_seqlens));
  const auto pooled = MeanPool::apply(aligned(k), aligned(v), kept);
  return {pooled[0], pooled[1]};
}

}  // namespace nsa::cuda
