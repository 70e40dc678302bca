// The three branches, the choice of blocks and the gated sum as one node of autograd.
//
// Against one after the other: the window's kernel writes the sum too; the branches' backward passes share one dO (Note
// [Gated statistics], kernels/combine/params.hpp), and each adds to the dQ of the one before, which autograd would do
// with kernels of its own.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "nsa/attend.hpp"
#include "nsa/cuda/attend.hpp"
#include "nsa/cuda/combine.hpp"
#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kShared = "shared";
constexpr std::size_t kBranches = 3;  // cmp, sel, win

// By the branches. The context of a node holds only IValues, and a capsule is the one that takes anything.
struct Shared : torch::CustomClassHolder {
  Geometry geometry;
  CuSeqlens cu_seqlens;
  Packing packing;
  [[nodiscard]] Problem problem(kernels::Mask mask) const { return {mask, geometry, packing}; }
};

// Where a tensor stands among what the node is given, and behind that among what it keeps.
enum Given : std::size_t { kQ, kKeys, kGates = kKeys + 2 * kBranches, kGivenTensors };
enum Kept : std::size_t { kBlocks = kGivenTensors, kOutputs, kStats = kOutputs + kBranches };

struct AttendAll : torch::autograd::Function<AttendAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k_cmp,
                            const at::Tensor& v_cmp, const at::Tensor& k_sel, const at::Tensor& v_sel,
                            const at::Tensor& k_win, const at::Tensor& v_win, const at::Tensor& gates,
                            const std::optional<at::Tensor>& chosen, const c10::intrusive_ptr<Shared>& shared) {
    const auto cmp = attend_forward(q, k_cmp, v_cmp, {}, shared->problem(kernels::Mask::compressed));
    const auto blocks = chosen ? *chosen : select({q, k_cmp, shared->geometry, shared->cu_seqlens, cmp.stats});
    const auto sel = attend_forward(q, k_sel, v_sel, blocks, shared->problem(kernels::Mask::selected));
    const auto o = empty(sel.o.sizes(), sel.o.scalar_type(), sel.o);
    auto sum = combine_parameters(gates, cmp.o, sel.o, {});
    sum.o = rows_of("o", o);
    const auto win = attend_window_and_combine(q, k_win, v_win, shared->problem(kernels::Mask::window), sum);
    context->save_for_backward({q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cmp.o, sel.o, win.o,
                                cmp.stats, sel.stats, win.stats});
    context->saved_data[kShared] = c10::IValue::make_capsule(shared);
    context->set_materialize_grads(false);
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("attend");
    variable_list result(kGivenTensors + 2);  // blocks, shared
    if (!gradients[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    const auto& shared = static_cast<const Shared&>(*context->saved_data.at(kShared).toCapsule());
    const auto dout = aligned(gradients[0]);
    const auto& q = saved[kQ];
    const OnDeviceOf device(q);

    kernels::CombineBackward sum;
    sum.forward = combine_parameters(saved[kGates], saved[kOutputs], saved[kOutputs + 1], saved[kOutputs + 2]);
    sum.dout = rows_of("dout", dout);
    if (context->needs_input_grad(kGates)) {
      result[kGates] = empty(saved[kGates].sizes(), saved[kGates].scalar_type(), q);
      sum.dgates = result[kGates].data_ptr();
    }
    std::array<at::Tensor, kBranches> deltas, stats;
    for (std::size_t i = 0; i < kBranches; ++i) {
      const auto& own = saved[kStats + i];
      deltas[i] = empty({q.size(0), q.size(2), q.size(1)}, at::kFloat, q);
      stats[i] = empty(own.sizes(), at::kFloat, q);
      sum.delta[i] = deltas[i].data_ptr<float>();
      sum.stats[i] = own.const_data_ptr<float>();
      sum.gated_stats[i] = stats[i].data_ptr<float>();
    }
    kernels::combine_backward(sum, device.stream());

    const auto room_for = [&](std::size_t i) {
      if (context->needs_input_grad(i)) result[i] = empty(saved[i].sizes(), saved[i].scalar_type(), q);
    };
    room_for(kQ);
    // The window first: it always has keys, and so writes all of dQ.
    constexpr std::array<std::size_t, kBranches> kOrder = {2, 0, 1};
    constexpr std::array kMasks = {kernels::Mask::compressed, kernels::Mask::selected, kernels::Mask::window};
    std::vector<kernels::AttentionBackward> passes;
    for (const std::size_t i : kOrder) {
      const std::size_t key = kKeys + 2 * i, value = key + 1;
      room_for(key);
      room_for(value);
      const Gradients to{result[kQ], result[key], result[value]};
      if (saved[key].size(1) == 0 || !(to.q.defined() || to.k.defined() || to.v.defined())) continue;
      passes.push_back(backward_parameters(q, saved[key], saved[value], i == 1 ? saved[kBlocks] : at::Tensor(),
                                           stats[i], dout, deltas[i], shared.problem(kMasks[i]), to));
      passes.back().adds_dq = i != kOrder.front();
    }
    run_backward(passes, q);
    return result;
  }
};

}  // namespace

at::Tensor attend_all(const AttendArgs& args) {
  check(args);
  const auto& g = args.geometry;
  const CallOptions options{
      .G = args.k_sel.size(2), .Dv = args.v_sel.size(3), .geometry = g, .packed = args.cu_seqlens.has_value()};
  for (const Op op : kAllOps)
    if (op != Op::compress) require(args.q, options, op);
  const OnDeviceOf device(args.q);
  auto shared = c10::make_intrusive<Shared>();
  shared->geometry = g;
  shared->cu_seqlens = args.cu_seqlens;
  shared->packing = pack(args.cu_seqlens, args.q.size(1), g, args.q.device());
  const auto blocks = args.blocks ? std::optional(args.blocks->contiguous()) : std::nullopt;
  return AttendAll::apply(aligned(args.q), aligned(args.kv.k), aligned(args.kv.v), aligned(args.k_sel),
                          aligned(args.v_sel), aligned(args.k_win), aligned(args.v_win),
                          gates_for_kernels(args.gates, args.q.scalar_type()), blocks, shared);
}

}  // namespace nsa::cuda
