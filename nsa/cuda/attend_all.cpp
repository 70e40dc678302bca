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
#include "nsa/cuda/attend_all.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "nsa/cuda/combine.hpp"
#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/select.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/cuda/together.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kShared = "shared";
constexpr std::array kNames = {"cmp", "sel", "win"};
constexpr std::array kMasks = {kernels::Mask::compressed, kernels::Mask::selected, kernels::Mask::window};
constexpr std::array kOutputStages = {"cmp.o", "sel.o", "win.o"};

// The context of a node holds only IValues, and a capsule is the one that takes anything.
struct Shared : torch::CustomClassHolder {
  Problems problems;
  CuSeqlens cu_seqlens;
  std::function<void(std::string_view, const at::Tensor&)> observe;
  bool grad = false;  // gradients were on where attention was called
  void show(std::string_view stage, const at::Tensor& value) const {
    const at::AutoGradMode mode(grad);  // a node's forward pass runs without
    observe(stage, value);
  }
};

// Where a tensor stands among what the node is given, and behind that among what it keeps.
enum Given : std::size_t { kTaps = kAllInputs };
enum KeptOfAll : std::size_t { kBlocks = kAllInputs, kOutputs, kStats = kOutputs + kBranches };

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
  static variable_list backward(AutogradContext*, const variable_list&) { return variable_list(kAllInputs); }
};

AllKept kept_of(const variable_list& saved) {
  AllKept kept;
  std::copy_n(saved.begin(), kAllInputs, kept.given.begin());
  kept.blocks = saved[kBlocks];
  std::copy_n(saved.begin() + kOutputs, kBranches, kept.o.begin());
  std::copy_n(saved.begin() + kStats, kBranches, kept.stats.begin());
  return kept;
}

struct AttendAll : torch::autograd::Function<AttendAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k_cmp,
                            const at::Tensor& v_cmp, const at::Tensor& k_sel, const at::Tensor& v_sel,
                            const at::Tensor& k_win, const at::Tensor& v_win, const at::Tensor& gates,
                            const std::optional<at::Tensor>& tap_cmp, const std::optional<at::Tensor>& tap_sel,
                            const std::optional<at::Tensor>& tap_win, const std::optional<at::Tensor>& chosen,
                            const c10::intrusive_ptr<Shared>& shared) {
    const auto memory = [](const std::optional<at::Tensor>& tap) { return tap.value_or(at::Tensor()); };
    AllAsked asked{chosen, {{{memory(tap_cmp), {}}, {memory(tap_sel), {}}, {memory(tap_win), {}}}}};
    if (shared->observe)
      asked.show = [&](std::string_view stage, const at::Tensor& value) { shared->show(stage, value); };
    const auto [o, kept] = attend_all_forward({q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates}, shared->problems,
                                              shared->cu_seqlens, asked);
    variable_list saved(kept.given.begin(), kept.given.end());
    saved.push_back(kept.blocks);
    saved.insert(saved.end(), kept.o.begin(), kept.o.end());
    saved.insert(saved.end(), kept.stats.begin(), kept.stats.end());
    context->save_for_backward(std::move(saved));
    context->saved_data[kShared] = c10::IValue::make_capsule(shared);
    context->set_materialize_grads(false);
    return o;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("attend");
    variable_list result(kAllInputs + kBranches + 2);  // taps, blocks, shared
    if (!gradients[0].defined()) return result;
    const auto kept = kept_of(context->get_saved_variables());
    const auto& shared = static_cast<const Shared&>(*context->saved_data.at(kShared).toCapsule());
    const auto dout = aligned(gradients[0]);
    std::array<bool, kAllInputs> wanted{};
    for (std::size_t i = 0; i < kAllInputs; ++i) wanted[i] = context->needs_input_grad(i);
    std::array<at::Tensor, kBranches> dbranch;
    for (std::size_t i = 0; i < kBranches; ++i)
      if (shared.observe && context->needs_input_grad(kTaps + i))
        dbranch[i] = empty(dout.sizes(), dout.scalar_type(), dout);
    const auto computed = attend_all_backward(kept, dout, shared.problems, wanted, dbranch);
    std::copy(computed.begin(), computed.end(), result.begin());
    std::copy(dbranch.begin(), dbranch.end(), result.begin() + kTaps);
    return result;
  }
};

// The gates' gradient, and what the branches' backward passes take in the place of their statistics: room for them, and
// what the kernel that makes them is to be given.
struct GatedRows {
  at::Tensor dgates;
  std::array<at::Tensor, kBranches> deltas, stats;
  kernels::CombineBackward sum;
};
GatedRows gated_rows(const AllKept& kept, const at::Tensor& dout, bool wants_gates,
                     const std::array<at::Tensor, kBranches>& dbranch) {
  const auto& q = kept.given[kQ];
  const auto& gates = kept.given[kGates];
  GatedRows rows;
  kernels::CombineBackward& sum = rows.sum;
  sum.forward = combine_parameters(gates, kept.o[0], kept.o[1], kept.o[2]);
  sum.dout = rows_of("dout", dout);
  if (wants_gates) {
    rows.dgates = empty(gates.sizes(), gates.scalar_type(), q);
    sum.dgates = rows.dgates.data_ptr();
  }
  for (std::size_t i = 0; i < kBranches; ++i) {
    rows.deltas[i] = empty({q.size(0), q.size(2), q.size(1)}, at::kFloat, q);
    rows.stats[i] = empty(kept.stats[i].sizes(), at::kFloat, q);
    sum.delta[i] = rows.deltas[i].data_ptr<float>();
    sum.stats[i] = kept.stats[i].const_data_ptr<float>();
    sum.gated_stats[i] = rows.stats[i].data_ptr<float>();
    if (dbranch[i].defined()) sum.dbranch[i] = rows_of("a branch's gradient", dbranch[i]);
  }
  return rows;
}

}  // namespace

Problems problems_of(const at::Tensor& q, const Geometry& g, const CuSeqlens& cu_seqlens, bool in_one_graph) {
  Problem first = problem_of(kMasks[0], q, g, cu_seqlens);
  first.in_one_graph = in_one_graph;
  Problems all{first, first, first};
  for (std::size_t i = 0; i < kBranches; ++i) all[i].mask = kMasks[i];
  return all;
}

AllForward attend_all_forward(AllInputs given, const Problems& problems, const CuSeqlens& cu_seqlens,
                              const AllAsked& asked) {
  const auto& [q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates] = given;
  const auto show = [&](std::string_view stage, const at::Tensor& value) {
    if (asked.show) asked.show(stage, value);
  };
  const OnDeviceOf device(q);
  // Whoever is shown a stage may compute with it there and then.
  Together together(device.stream(), problems[0].in_one_graph && !asked.show);
  const auto [cmp, chosen] =
      asked.blocks ? AttendedAndChosen{attend_forward(q, k_cmp, v_cmp, {}, problems[0], asked.into[0]), *asked.blocks}
                   : attend_forward_and_select(q, k_cmp, v_cmp, problems[0], asked.into[0], asked.blocks_into);
  show(kOutputStages[0], cmp.o);
  const auto on_kernel = [&](std::string_view kernel) {
    if (problems[0].on_launch) problems[0].on_launch(/*backward=*/false, kernel);
  };
  const auto blocks = chosen.defined()
                          ? chosen
                          : select_for(problems[0], {q, k_cmp, problems[0].geometry, cu_seqlens, cmp.stats}, on_kernel,
                                       asked.blocks_into);
  show("blocks", blocks);
  const auto sel = attend_forward(q, k_sel, v_sel, blocks, problems[1], asked.into[1]);
  show(kOutputStages[1], sel.o);
  const auto o = empty(sel.o.sizes(), sel.o.scalar_type(), sel.o);
  auto sum = combine_parameters(gates, cmp.o, sel.o, {});
  sum.o = rows_of("o", o);
  const auto win = attend_window_and_combine(q, k_win, v_win, problems[2], sum, asked.into[2]);
  together.submit();
  show(kOutputStages[2], win.o);
  return {o, {std::move(given), blocks, {cmp.o, sel.o, win.o}, {cmp.stats, sel.stats, win.stats}}};
}

AllInputs attend_all_backward(const AllKept& kept, const at::Tensor& dout, const Problems& problems,
                              const std::array<bool, kAllInputs>& wanted,
                              const std::array<at::Tensor, kBranches>& dbranch) {
  const auto& given = kept.given;
  const auto& q = given[kQ];
  const OnDeviceOf device(q);
  Together together(device.stream(), problems[0].in_one_graph);
  const auto rows = gated_rows(kept, dout, wanted[kGates], dbranch);
  AllInputs result;
  result[kGates] = rows.dgates;
  const auto room_for = [&](std::size_t i) {
    if (wanted[i]) result[i] = empty(given[i].sizes(), given[i].scalar_type(), q);
  };
  room_for(kQ);
  // The selected branch first: it always has keys, and so writes all of dQ. See Note [Keys beside rows] (attend.hpp).
  constexpr std::array<std::size_t, kBranches> kOrder = {1, 2, 0};
  std::vector<Pass> passes;
  for (const std::size_t i : kOrder) {
    const std::size_t key = kKeys + 2 * i, value = key + 1;
    room_for(key);
    room_for(value);
    const Gradients to{result[kQ], result[key], result[value]};
    if (given[key].size(1) == 0 || !(to.q.defined() || to.k.defined() || to.v.defined())) continue;
    passes.push_back(backward_pass(q, given[key], given[value], i == 1 ? kept.blocks : at::Tensor(), rows.stats[i],
                                   dout, rows.deltas[i], problems[i], to));
    passes.back().parameters.adds_dq = i != kOrder.front();
  }
  run_backward(passes, q, [&] { kernels::combine_backward(rows.sum, device.stream()); });
  together.submit();
  return result;
}

at::Tensor attend(const AttendArgs& args, const OnLaunch& on_launch, bool in_one_graph) {
  if (args.only != ForcedBranch::none) return ops(on_launch).in_parts().attend(args);
  check(args);
  const auto& g = args.geometry;
  const CallOptions options{
      .G = args.k_sel.size(2), .Dv = args.v_sel.size(3), .geometry = g, .packed = args.cu_seqlens.has_value()};
  for (const Op op : kAttendParts) require(args.q, options, op);
  const OnDeviceOf device(args.q);
  auto shared = c10::make_intrusive<Shared>();
  shared->problems = problems_of(args.q, g, args.cu_seqlens, in_one_graph);
  if (on_launch)
    for (std::size_t i = 0; i < kBranches; ++i)
      shared->problems[i].on_launch = [on_launch, i](bool backward, std::string_view kernel) {
        on_launch(Op::attend, {kNames[i], backward, std::string(kernel)});
      };
  shared->cu_seqlens = args.cu_seqlens;
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
