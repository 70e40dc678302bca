#include "nsa/cuda/attend.hpp"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/cuda/together.hpp"
#include "nsa/kernels/device/launch.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kProblem = "problem";

// The context of a node holds only IValues, and a capsule is the one that takes anything.
struct Kept : torch::CustomClassHolder {
  explicit Kept(Problem p) : problem(std::move(p)) {}
  Problem problem;
};
const Kept& kept_in(const AutogradContext& context) {
  return static_cast<const Kept&>(*context.saved_data.at(kProblem).toCapsule());
}

kernels::AttentionForward parameters(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const at::Tensor& blocks, const Problem& problem) {
  kernels::AttentionForward p;
  p.q = rows_of("q", q);
  p.k = rows_of("k", k);
  p.v = rows_of("v", v);
  p.blocks = ints(blocks);
  p.selection = problem.packing.selection();
  p.packed = problem.packing.kernel_view();
  p.geometry = geometry_of(problem.geometry);
  p.B = size_of(q, 0);
  p.S = size_of(q, 1);
  p.N = size_of(k, 1);
  p.Hq = size_of(q, 2);
  p.G = size_of(k, 2);
  p.Dk = size_of(q, 3);
  p.Dv = size_of(v, 3);
  p.scale = scale_of(q);
  p.storage = storage_of(q);
  p.mask = problem.mask;
  return p;
}

AttentionOutput output_like(const at::Tensor& q, const at::Tensor& v, const AttentionOutput& into) {
  return {into.o.defined() ? into.o : empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.scalar_type(), q),
          into.stats.defined() ? into.stats : empty({q.size(0), q.size(2), q.size(1), 2}, at::kFloat, q)};
}

// Launches what the plan says. `blocks`: for a plan that chooses them too.
void run_forward(kernels::AttentionForward& p, const kernels::AttentionPlan& plan, const AttentionOutput& out,
                 const at::Tensor& q, const Problem& problem, const at::Tensor& blocks = {}) {
  p.o = rows_of("o", out.o);
  p.stats = out.stats.data_ptr<float>();
  const auto room = workspace(plan.workspace, q);
  p.workspace = start_of(room);
  if (blocks.defined())
    kernels::forward_and_select(p, blocks.data_ptr<std::int32_t>(), plan, stream_of(q.device()));
  else
    kernels::attention_forward(p, plan, stream_of(q.device()));
  Together::keep(room);
  if (problem.on_launch) problem.on_launch(/*backward=*/false, to_string(plan.variant));
}

// Between kernels that are started one by one events would cost the host more than the GPU gains.
bool is_captured() { return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None; }

// `blocks` is optional, not undefined: apply() asks every tensor that it is given for its device.
struct Attend : torch::autograd::Function<Attend> {
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const std::optional<at::Tensor>& blocks, const c10::intrusive_ptr<Kept>& kept) {
    const auto table = blocks.value_or(at::Tensor());
    const auto [o, stats] = attend_forward(q, k, v, table, kept->problem);
    context->save_for_backward({q, k, v, table, o, stats});
    context->saved_data[kProblem] = c10::IValue::make_capsule(kept);
    context->mark_non_differentiable({stats});
    context->set_materialize_grads(false);
    return {o, stats};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("attend");
    variable_list result(5);  // q, k, v, blocks, kept
    if (!gradients[0].defined()) return result;
    const std::array wanted = {context->needs_input_grad(0), context->needs_input_grad(1),
                               context->needs_input_grad(2)};
    const auto saved = context->get_saved_variables();
    const auto [dq, dk, dv] = attend_backward({saved[0], saved[1], saved[2], saved[3], saved[4], saved[5]},
                                              aligned(gradients[0]), kept_in(*context).problem, wanted);
    result[0] = dq;
    result[1] = dk;
    result[2] = dv;
    return result;
  }
};

Attended attend_branch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::optional<at::Tensor>& blocks, const Geometry& g, const CuSeqlens& cu_seqlens,
                       kernels::Mask mask, Op op, const OnLaunch& on_launch) {
  require(q, {.G = k.size(2), .Dv = v.size(3), .geometry = g, .packed = cu_seqlens.has_value()}, op);
  const OnDeviceOf device(q);
  Problem problem = problem_of(mask, q, g, cu_seqlens);
  if (on_launch)
    problem.on_launch = [on_launch, op](bool backward, std::string_view kernel) {
      on_launch(op, {.backward = backward, .kernel = std::string(kernel)});
    };
  auto kept = c10::make_intrusive<Kept>(std::move(problem));
  const auto out = Attend::apply(aligned(q), aligned(k), aligned(v), blocks, kept);
  return {out[0], {}, out[1]};
}

}  // namespace

Problem problem_of(kernels::Mask mask, const at::Tensor& q, const Geometry& g, const CuSeqlens& cu_seqlens) {
  return {mask, g, pack(cu_seqlens, q.size(1), g, q.device()), kernels::current_device()};
}

AttentionOutput attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& blocks,
                               const Problem& problem, const AttentionOutput& into) {
  const OnDeviceOf device(q);
  AttentionOutput out = output_like(q, v, into);
  if (k.size(1) == 0) {  // no key at all, and no row of K to point at
    kernels::end_collecting();
    out.o.zero_();
    out.stats.select(3, 0).fill_(-std::numeric_limits<double>::infinity());
    out.stats.select(3, 1).zero_();
    return out;
  }
  auto p = parameters(q, k, v, blocks, problem);
  run_forward(p, kernels::plan_forward(p, problem.device), out, q, problem);
  return out;
}

AttendedAndChosen attend_forward_and_select(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                            const Problem& problem, const AttentionOutput& into,
                                            const at::Tensor& blocks_into) {
  if (k.size(1) == 0) return {attend_forward(q, k, v, {}, problem, into), {}};
  const OnDeviceOf device(q);
  auto p = parameters(q, k, v, {}, problem);
  const auto plan = kernels::plan_forward_and_select(p, problem.device);
  AttendedAndChosen out{output_like(q, v, into), {}};
  if (plan.variant == kernels::Variant::intervals_and_choice) {
    const std::array table{q.size(0), q.size(1), k.size(2), problem.geometry.n_sel};
    out.blocks = blocks_into.defined() ? blocks_into : empty(table, at::kInt, q);
  }
  run_forward(p, plan, out.branch, q, problem, out.blocks);
  return out;
}

AttentionOutput attend_window_and_combine(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                          const Problem& problem, kernels::Combine sum, const AttentionOutput& into) {
  const OnDeviceOf device(q);
  AttentionOutput out = output_like(q, v, into);
  auto p = parameters(q, k, v, {}, problem);
  p.o = sum.branch[2] = rows_of("o", out.o);
  p.stats = out.stats.data_ptr<float>();
  const auto plan = kernels::plan_forward(p, problem.device);
  const auto room = workspace(plan.workspace, q);
  p.workspace = start_of(room);
  kernels::window_and_combine(p, plan, sum, device.stream());
  Together::keep(room);
  if (problem.on_launch) problem.on_launch(/*backward=*/false, to_string(plan.variant));
  return out;
}

Pass backward_pass(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& blocks,
                   const at::Tensor& stats, const at::Tensor& dout, const at::Tensor& delta, Problem problem,
                   const Gradients& to) {
  kernels::AttentionBackward p;
  p.forward = parameters(q, k, v, blocks, problem);
  p.forward.stats = stats.data_ptr<float>();
  p.dout = rows_of("dout", dout);
  p.delta = delta.const_data_ptr<float>();
  if (to.q.defined()) p.dq = rows_of("dq", to.q);
  if (to.k.defined()) p.dk = rows_of("dk", to.k);
  if (to.v.defined()) p.dv = rows_of("dv", to.v);
  return {std::move(problem), p};
}

void run_backward(std::span<const Pass> passes, const at::Tensor& q, const std::function<void()>& make_rows) {
  const OnDeviceOf device(q);
  const auto run = [&](const Problem& problem, kernels::AttentionBackward part, const kernels::AttentionPlan& plan,
                       cudaStream_t stream) {
    auto room = workspace(plan.workspace, q);
    part.workspace = start_of(room);
    if (q.is_cuda()) part.beside = c10::cuda::getStreamFromPool();
    kernels::attention_backward(part, plan, stream);
    Together::keep(room);
    if (problem.on_launch) problem.on_launch(/*backward=*/true, to_string(plan.variant));
    return room;
  };
  const bool captured = q.is_cuda() && is_captured();
  std::vector<kernels::BackwardPlan> plans;
  plans.reserve(passes.size());
  for (const Pass& x : passes) plans.push_back(kernels::plan_backward(x.parameters, x.problem.device, captured));
  std::vector<at::Tensor> rooms;  // live until what runs beside is done
  std::deque<Beside> sides;
  for (const auto& plan : plans)
    if (plan.keys) sides.emplace_back();
  make_rows();
  c10::cuda::CUDAEvent ready;
  if (!sides.empty()) ready.record();
  auto side = sides.begin();
  for (std::size_t i = 0; i < passes.size(); ++i) {
    if (!plans[i].keys) continue;
    auto keys = kernels::only_dkv(passes[i].parameters);
    keys.rows_ready = ready.event();
    rooms.push_back(run(passes[i].problem, keys, *plans[i].keys, (side++)->stream()));
  }
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const auto& all = passes[i].parameters;
    const auto room =
        run(passes[i].problem, plans[i].keys ? kernels::only_dq(all) : all, plans[i].main, device.stream());
    if (!sides.empty()) rooms.push_back(room);
  }
  for (Beside& each : sides) each.join();
}

Gradients attend_backward(const AttentionKept& kept, const at::Tensor& dout, const Problem& problem,
                          const std::array<bool, 3>& wanted) {
  const auto& [q, k, v, blocks, o, stats] = kept;
  const OnDeviceOf device(q);
  const auto room_for = [&](const at::Tensor& t, bool is_wanted) {
    return is_wanted ? empty(t.sizes(), t.scalar_type(), t) : at::Tensor();
  };
  Gradients result{room_for(q, wanted[0]), room_for(k, wanted[1]), room_for(v, wanted[2])};
  if (k.size(1) == 0) {  // no key at all: no gradient leaves the rows
    if (result.q.defined()) result.q.zero_();
    return result;
  }
  const auto delta = empty({q.size(0), q.size(2), q.size(1)}, at::kFloat, q);
  kernels::AttentionDelta sums;
  sums.o = rows_of("o", o);
  sums.dout = rows_of("dout", dout);
  sums.delta = delta.data_ptr<float>();
  sums.B = size_of(o, 0);
  sums.S = size_of(o, 1);
  sums.Hq = size_of(o, 2);
  sums.Dv = size_of(o, 3);
  sums.storage = storage_of(o);
  const std::array passes = {backward_pass(q, k, v, blocks, stats, dout, delta, problem, result)};
  run_backward(passes, q, [&] { kernels::attention_delta(sums, device.stream()); });
  return result;
}

Attended attend_compressed(const AttendCompressedArgs& args, const OnLaunch& on_launch) {
  check(args);
  return attend_branch(args.q, args.kv.k, args.kv.v, std::nullopt, args.geometry, args.cu_seqlens,
                       kernels::Mask::compressed, Op::attend_compressed, on_launch);
}

Attended attend_selected(const AttendSelectedArgs& args, const OnLaunch& on_launch) {
  check(args);
  return attend_branch(args.q, args.k, args.v, args.blocks.contiguous(), args.geometry, args.cu_seqlens,
                       kernels::Mask::selected, Op::attend_selected, on_launch);
}

Attended attend_window(const AttendWindowArgs& args, const OnLaunch& on_launch) {
  check(args);
  return attend_branch(args.q, args.k, args.v, std::nullopt, args.geometry, args.cu_seqlens, kernels::Mask::window,
                       Op::attend_window, on_launch);
}

}  // namespace nsa::cuda
