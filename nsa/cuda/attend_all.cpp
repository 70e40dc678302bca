// The three branches, the choice of blocks and the gated sum as one node of autograd.
//
// Against one after the other: the window's kernel writes the sum too; the branches' backward passes share one dO (Note
// [Gated statistics], kernels/combine.hpp), and each adds to the dQ of the one before, which autograd would do
// with kernels of its own.
//
// Note [Taps]
// An observer wants the branches' outputs and the gradients that arrive there, but the node has one output, and no
// branch's gradient exists in it. A tap is a tensor in the place of a branch's output: the branch's kernel writes it,
// and it is a further input of the node, whose gradient is the gate times dO. It is made from the node's own inputs, so
// that the engine passes by wherever it passes by the node (also for gradients of chosen tensors); nothing flows on.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <vector>

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
constexpr std::size_t kBranches = 3;
constexpr std::array kNames = {"cmp", "sel", "win"};
constexpr std::array kMasks = {kernels::Mask::compressed, kernels::Mask::selected, kernels::Mask::window};
constexpr std::array kOutputStages = {"cmp.o", "sel.o", "win.o"};

// By the branches. The context of a node holds only IValues, and a capsule is the one that takes anything.
struct Shared : torch::CustomClassHolder {
  Geometry geometry;
  CuSeqlens cu_seqlens;
  Packing packing;
  kernels::Device device;
  std::function<void(std::string_view, const at::Tensor&)> observe;
  bool grad = false;  // gradients were on where attention was called
  OnLaunch on_launch;
  // Of branch `i`. What it tells lives no longer than this.
  [[nodiscard]] Problem problem(std::size_t i) const {
    Problem own{kMasks[i], geometry, packing, device};
    if (on_launch)
      own.on_launch = [this, i](std::string_view kernel) {
        on_launch(Op::attend, std::string(kNames[i]) + " " + std::string(kernel));
      };
    return own;
  }
  void show(std::string_view stage, const at::Tensor& value) const {
    const at::AutoGradMode mode(grad);  // a node's forward pass runs without
    if (observe) observe(stage, value);
  }
};

// Where a tensor stands among what the node is given, and behind that among what it keeps.
enum Given : std::size_t { kQ, kKeys, kGates = kKeys + 2 * kBranches, kGivenTensors, kTaps = kGivenTensors };
enum KeptOfAll : std::size_t { kBlocks = kGivenTensors, kOutputs, kStats = kOutputs + kBranches };

using Taps = std::array<std::optional<at::Tensor>, kBranches>;

// See Note [Taps].
struct MakeTaps : torch::autograd::Function<MakeTaps> {
  static variable_list forward(AutogradContext*, const at::Tensor& q, const at::Tensor& k_cmp, const at::Tensor& v_cmp,
                               const at::Tensor& k_sel, const at::Tensor& v_sel, const at::Tensor& k_win,
                               const at::Tensor& v_win, const at::Tensor& gates) {
    (void)k_cmp, (void)v_cmp, (void)k_sel, (void)v_sel, (void)k_win, (void)gates;
    variable_list taps;
    for (std::size_t i = 0; i < kBranches; ++i)
      taps.push_back(empty({q.size(0), q.size(1), q.size(2), v_win.size(3)}, q.scalar_type(), q));
    return taps;
  }
  static variable_list backward(AutogradContext*, const variable_list&) { return variable_list(kGivenTensors); }
};

// The gradient of branch `i`'s output: gate times dO. [B,S,Hq,Dv]
at::Tensor branch_gradient(const at::Tensor& dout, const at::Tensor& gates, std::size_t i) {
  const std::int64_t G = gates.size(2);
  const auto gate = gates.narrow(3, static_cast<std::int64_t>(i), 1).unsqueeze(3);  // [B,S,G,1,1]
  return (dout.unflatten(2, {G, -1}) * gate).flatten(2, 3).to(dout.scalar_type());
}

struct AttendAll : torch::autograd::Function<AttendAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k_cmp,
                            const at::Tensor& v_cmp, const at::Tensor& k_sel, const at::Tensor& v_sel,
                            const at::Tensor& k_win, const at::Tensor& v_win, const at::Tensor& gates,
                            const std::optional<at::Tensor>& tap_cmp, const std::optional<at::Tensor>& tap_sel,
                            const std::optional<at::Tensor>& tap_win, const std::optional<at::Tensor>& chosen,
                            const c10::intrusive_ptr<Shared>& shared) {
    const auto memory = [](const std::optional<at::Tensor>& tap) { return tap.value_or(at::Tensor()); };
    const auto cmp = attend_forward(q, k_cmp, v_cmp, {}, shared->problem(0), memory(tap_cmp));
    shared->show(kOutputStages[0], cmp.o);
    const auto blocks = chosen ? *chosen : select({q, k_cmp, shared->geometry, shared->cu_seqlens, cmp.stats});
    shared->show("blocks", blocks);
    const auto sel = attend_forward(q, k_sel, v_sel, blocks, shared->problem(1), memory(tap_sel));
    shared->show(kOutputStages[1], sel.o);
    const auto o = empty(sel.o.sizes(), sel.o.scalar_type(), sel.o);
    auto sum = combine_parameters(gates, cmp.o, sel.o, {});
    sum.o = rows_of("o", o);
    const auto win = attend_window_and_combine(q, k_win, v_win, shared->problem(2), sum, memory(tap_win));
    shared->show(kOutputStages[2], win.o);
    context->save_for_backward({q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cmp.o, sel.o, win.o,
                                cmp.stats, sel.stats, win.stats});
    context->saved_data[kShared] = c10::IValue::make_capsule(shared);
    context->set_materialize_grads(false);
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("attend");
    variable_list result(kGivenTensors + kBranches + 2);  // taps, blocks, shared
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
    if (shared.observe)
      for (std::size_t i = 0; i < kBranches; ++i)
        if (context->needs_input_grad(kTaps + i)) result[kTaps + i] = branch_gradient(dout, saved[kGates], i);

    const auto room_for = [&](std::size_t i) {
      if (context->needs_input_grad(i)) result[i] = empty(saved[i].sizes(), saved[i].scalar_type(), q);
    };
    room_for(kQ);
    // The window first: it always has keys, and so writes all of dQ.
    constexpr std::array<std::size_t, kBranches> kOrder = {2, 0, 1};
    std::vector<Pass> passes;
    for (const std::size_t i : kOrder) {
      const std::size_t key = kKeys + 2 * i, value = key + 1;
      room_for(key);
      room_for(value);
      const Gradients to{result[kQ], result[key], result[value]};
      if (saved[key].size(1) == 0 || !(to.q.defined() || to.k.defined() || to.v.defined())) continue;
      passes.push_back(backward_pass(q, saved[key], saved[value], i == 1 ? saved[kBlocks] : at::Tensor(), stats[i],
                                     dout, deltas[i], shared.problem(i), to));
      passes.back().parameters.adds_dq = i != kOrder.front();
    }
    run_backward(passes, q);
    return result;
  }
};

}  // namespace

at::Tensor attend(const AttendArgs& args, const OnLaunch& on_launch) {
  if (args.only != ForcedBranch::none) return ops(on_launch).in_parts().attend(args);
  check(args);
  const auto& g = args.geometry;
  const CallOptions options{
      .G = args.k_sel.size(2), .Dv = args.v_sel.size(3), .geometry = g, .packed = args.cu_seqlens.has_value()};
  for (const Op op : kAttendParts) require(args.q, options, op);
  const OnDeviceOf device(args.q);
  auto shared = c10::make_intrusive<Shared>();
  shared->geometry = g;
  shared->cu_seqlens = args.cu_seqlens;
  shared->packing = pack(args.cu_seqlens, args.q.size(1), g, args.q.device());
  shared->device = kernels::current_device();
  shared->on_launch = on_launch;
  shared->observe = args.observe;
  shared->grad = at::GradMode::is_enabled();
  const auto blocks = args.blocks ? std::optional(args.blocks->contiguous()) : std::nullopt;
  const auto q = aligned(args.q), k_cmp = aligned(args.kv.k), v_cmp = aligned(args.kv.v), k_sel = aligned(args.k_sel),
             v_sel = aligned(args.v_sel), k_win = aligned(args.k_win), v_win = aligned(args.v_win),
             gates = gates_for_kernels(args.gates, args.q.scalar_type());
  Taps taps;
  if (args.observe) {
    const auto made = MakeTaps::apply(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates);
    std::copy(made.begin(), made.end(), taps.begin());
  }
  return AttendAll::apply(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, taps[0], taps[1], taps[2], blocks,
                          shared);
}

}  // namespace nsa::cuda
