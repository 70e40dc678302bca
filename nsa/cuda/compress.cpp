#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/packing.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/pool/params.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kBlocks = "blocks";

// The blocks of the tokens; `N` of them.
struct Blocks : torch::CustomClassHolder {
  Blocks(const Geometry& g, Packing p, std::int64_t count) : geometry(g), packing(std::move(p)), N(count) {}
  Geometry geometry;
  Packing packing;
  std::int64_t N;
};

// x [B,S,G,D] and y [B,N,G,D], or their gradients.
kernels::Pool parameters(const at::Tensor& x, const at::Tensor& y, const Blocks& blocks) {
  kernels::Pool p;
  p.x = rows_of("x", x);
  p.y = rows_of("y", y);
  p.block_start = ints(blocks.packing.compressed_starts);
  p.packed = blocks.packing.kernel_view();
  p.document_blocks = ints(blocks.packing.compressed);
  p.geometry = geometry_of(blocks.geometry);
  p.B = size_of(x, 0);
  p.S = size_of(x, 1);
  p.N = size_of(y, 1);
  p.G = size_of(x, 2);
  p.D = size_of(x, 3);
  p.storage = storage_of(x);
  return p;
}

struct MeanPool : torch::autograd::Function<MeanPool> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<Blocks>& blocks) {
    const OnDeviceOf device(x);
    const auto y = empty({x.size(0), blocks->N, x.size(2), x.size(3)}, x.scalar_type(), x);
    kernels::pool_forward(parameters(x, y, *blocks), device.stream());
    context->saved_data["S"] = x.size(1);
    context->saved_data[kBlocks] = c10::IValue::make_capsule(blocks);
    context->set_materialize_grads(false);
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("compress");
    if (!gradients[0].defined()) return {{}, {}};
    const auto blocks = c10::static_intrusive_pointer_cast<Blocks>(context->saved_data.at(kBlocks).toCapsule());
    const auto dy = aligned(gradients[0]);
    const OnDeviceOf device(dy);
    const auto dx =
        empty({dy.size(0), context->saved_data.at("S").toInt(), dy.size(2), dy.size(3)}, dy.scalar_type(), dy);
    kernels::pool_backward(parameters(dx, dy, *blocks), device.stream());
    return {dx, {}};
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
  return {MeanPool::apply(aligned(k), blocks), MeanPool::apply(aligned(v), blocks)};
}

}  // namespace nsa::cuda
