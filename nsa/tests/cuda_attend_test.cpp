// The branches and their sum in one node (cuda::attend) against one after the other, and who gets which. That it
// agrees with fp64 is looked at with every other function of the backend (cuda_test.cpp, cuda_rounding_test.cpp).
#include <ATen/ATen.h>

#include <map>
#include <string>

#include "nsa/dispatch.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/tests/cuda_fixtures.hpp"
#include "nsa/tests/model_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::bytes;
using fixtures::cu;
using fixtures::cuda_cases;
using fixtures::CudaCase;
using fixtures::CudaKernels;
using fixtures::CudaShape;
using fixtures::device;
using fixtures::evaluate;
using fixtures::kGradientBound;
using fixtures::on_device;
using fixtures::relative_error;
using fixtures::Tensors;

// The backend's functions, each behind another one that counts; `attend` goes part by part.
Ops counted(int& calls) {
  const auto behind = [&calls]<typename R, typename A>(const OpFunction<R, A>& op) {
    return OpFunction<R, A>([op, &calls](const A& args) {
      ++calls;
      return op(args);
    });
  };
  const Ops own = ops();
  return {behind(own.compress),        behind(own.attend_compressed), behind(own.select),
          behind(own.attend_selected), behind(own.attend_window),     behind(own.combine)};
}
Ops counted() {
  static int calls = 0;
  return counted(calls);
}

// The inputs of `attend`, which chooses for itself.
CudaCase attend_case(const CudaShape& s) {
  auto cases = cuda_cases(s);
  CudaCase c = *(cases.end() - 2);
  c.call = [s](const Ops& ops, const Tensors& in) {
    return Tensors{ops.attend({in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], in[7], s.g, s.cu_seqlens})};
  };
  return c;
}

TEST_F(CudaKernels, InOneIsForwardTheSameToTheBit) {
  const Geometry g{.l = 32, .d = 16, .l_sel = 64, .n_sel = 4, .w = 100};
  const bool gpu = device().is_cuda();
  std::vector<CudaShape> shapes = {{.S = 20, .h = 3, .g = g},  // no compressed block
                                   {.S = gpu ? 700 : 150, .h = 6, .B = 2, .g = g},
                                   {.S = 131, .h = 16, .Dk = 128, .Dv = 128, .G = 1, .type = at::kHalf, .g = g},
                                   {.S = 131, .h = 4, .Dk = 192, .Dv = 128, .G = 1, .g = g},
                                   {.S = 100, .h = 2, .Dk = 32, .Dv = 32, .g = g},
                                   {.S = 160, .h = 6, .g = g, .cu_seqlens = cu({0, 5, 5, 77, 160})}};
  if (gpu) {
    shapes.push_back({.S = 9000, .h = 16, .Dk = 128, .Dv = 128, .G = 2});  // the kernels of long sequences
    shapes.push_back({.S = 2048, .B = 8});                                 // few compressed keys in one kernel
    shapes.push_back({.S = 1500, .h = 13, .B = 4, .type = at::kHalf});
  }
  for (const CudaShape& s : shapes) {
    SCOPED_TRACE(s.name());
    const CudaCase c = attend_case(s);
    const auto one = evaluate(c, ops(), c.inputs), each = evaluate(c, counted(), c.inputs);
    EXPECT_TRUE(at::equal(one.outputs[0], each.outputs[0]));
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      EXPECT_LE(relative_error(one.gradients[i], each.gradients[i].to(at::kDouble)), 2 * kGradientBound) << i;
  }
}

// A gate of 0 cuts its branch off: not nearly, and without a NaN.
TEST_F(CudaKernels, InOneAGateOfZeroLetsNothingThrough) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    CudaCase c = attend_case({.S = 150, .h = 6});
    c.inputs[7] = at::zeros(c.inputs[7].sizes(), c.inputs[7].options().dtype(type));
    c.inputs[7].select(3, 1).fill_(1);
    const auto got = evaluate(c, ops(), c.inputs);
    EXPECT_EQ(got.gradients[7].scalar_type(), type);
    for (const std::size_t i : {1, 2, 5, 6}) EXPECT_TRUE(got.gradients[i].eq(0).all().item<bool>()) << i;
    const auto each = evaluate(c, counted(), c.inputs);
    for (std::size_t i = 0; i < c.inputs.size(); ++i)
      EXPECT_LE(relative_error(got.gradients[i], each.gradients[i].to(at::kDouble)), kGradientBound) << i;
  }
}

TEST_F(CudaKernels, InOneAGateThatIsNotFiniteShows) {
  for (const float gate : {INFINITY, NAN}) {
    CudaCase c = attend_case({.S = 80, .h = 2});
    c.inputs[7].select(1, 70).select(2, 2).fill_(gate);
    const auto got = evaluate(c, ops(), c.inputs);
    EXPECT_FALSE(got.outputs[0].select(1, 70).isfinite().any().item<bool>());
    EXPECT_FALSE(got.gradients[0].select(1, 70).isfinite().any().item<bool>());
    EXPECT_TRUE(got.outputs[0].narrow(1, 0, 70).isfinite().all().item<bool>());
  }
}

// Whoever has put something in the place of a part is asked.
TEST(AttendInOne, EndsWhereAPartIsReplaced) {
  EXPECT_EQ(ops().way, AttendWay::in_one);
  EXPECT_EQ(backend_ops(Backend::cuda).way, AttendWay::in_one);
  EXPECT_EQ(backend_ops(Backend::sdpa).way, AttendWay::in_parts);
  EXPECT_EQ(backend_ops(Backend::reference).way, AttendWay::in_parts);
  EXPECT_EQ(strict(ops(), [](const Fallback&, bool) {}).way, AttendWay::in_parts);
  EXPECT_EQ(ops().in_parts().way, AttendWay::in_parts);
  const Ops other = counted();
  const auto with = [&](auto member) {
    Ops table = ops();
    table.replace(member, other.*member);
    return table.way;
  };
  EXPECT_EQ(with(&Ops::attend_compressed), AttendWay::in_parts);
  EXPECT_EQ(with(&Ops::select), AttendWay::in_parts);
  EXPECT_EQ(with(&Ops::attend_selected), AttendWay::in_parts);
  EXPECT_EQ(with(&Ops::attend_window), AttendWay::in_parts);
  EXPECT_EQ(with(&Ops::combine), AttendWay::in_parts);
  EXPECT_EQ(with(&Ops::compress), AttendWay::in_one);  // is no part of it
  Ops wrapped = ops();
  wrapped.replace(&Ops::attend, [inner = wrapped.attend](const AttendArgs& args) { return inner(args); });
  EXPECT_EQ(wrapped.way, AttendWay::in_one);
}

// The kernels of both passes stand in the record of the function that launched them, part by part and in one.
TEST_F(CudaKernels, TheRecordNamesTheKernelsThatRan) {
  const CudaCase c = attend_case({.S = 150, .h = 6});
  const auto kernels_of = [&](const Ops& table, const Dispatcher& dispatcher) {
    (void)evaluate(c, table, c.inputs);
    std::map<Op, std::vector<Launched>> all;
    for (const Taken& taken : dispatcher.routes_taken()) all[taken.op] = taken.kernels;
    return all;
  };
  Dispatcher in_one(resolve({})), in_parts(resolve({}));
  const auto whole = kernels_of(in_one.ops(Backend::cuda), in_one);
  const auto parts = kernels_of(in_parts.ops(Backend::cuda).in_parts(), in_parts);
  const auto expect_in_one = [&](const Launched& wanted) {
    const auto& ran = whole.at(Op::attend);
    EXPECT_NE(std::find(ran.begin(), ran.end(), wanted), ran.end()) << wanted.branch << " " << wanted.kernel;
  };
  EXPECT_TRUE(parts.at(Op::combine).empty());
  ASSERT_EQ(parts.at(Op::select).size(), 1U);
  const Launched& by_itself = parts.at(Op::select)[0];
  EXPECT_TRUE(by_itself.kernel.starts_with("blocks by ")) << by_itself.kernel;
  // On Hopper the compressed branch's kernel chooses too.
  expect_in_one({"cmp", false,
                 kernels::current_device().hopper ? std::string(to_string(kernels::Variant::intervals_and_choice))
                                                  : by_itself.kernel});
  for (const auto& [op, name] :
       {std::pair{Op::attend_compressed, "cmp"}, {Op::attend_selected, "sel"}, {Op::attend_window, "win"}}) {
    const std::vector<Launched>& own = parts.at(op);
    ASSERT_EQ(own.size(), 2U) << name;
    EXPECT_FALSE(own[0].backward) << name;
    EXPECT_TRUE(own[1].backward) << name;
    for (const Launched& launched : own) {
      EXPECT_EQ(launched.branch, "");
      const bool chooses = op == Op::attend_compressed && !launched.backward && kernels::current_device().hopper;
      if (!chooses) expect_in_one({name, launched.backward, launched.kernel});
    }
  }
  if (kernels::is_emulated()) {
    EXPECT_EQ(parts.at(Op::attend_selected), (std::vector<Launched>{{"", false, "parts"}, {"", true, "parts"}}));
  }
}

// What is seen of the node: every stage as the parts give it, to the bit, and the gradients that arrive there; and to
// be watched changes no bit.
TEST_F(CudaKernels, InOneShowsItsStagesAndTheirGradients) {
  for (const CudaShape& s : {CudaShape{.S = 150, .h = 6}, CudaShape{.S = 20, .h = 2},
                             CudaShape{.S = 160, .h = 6, .cu_seqlens = cu({0, 5, 5, 77, 160})}}) {
    SCOPED_TRACE(s.name());
    const CudaCase c = attend_case(s);
    struct Seen {
      std::vector<std::string> order;
      std::map<std::string, at::Tensor> stages, gradients;
      Tensors of_inputs;
    };
    const auto run = [&](const Ops& table, bool watched, bool only_keys = false) {
      Seen seen;
      Tensors in;
      for (const auto& t : c.inputs) in.push_back(t.detach().requires_grad_());
      AttendArgs args{in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], in[7], s.g, s.cu_seqlens};
      if (watched)
        args.observe = [&seen](std::string_view stage, const at::Tensor& value) {
          const std::string name(stage);
          seen.order.push_back(name);
          seen.stages[name] = value.detach();
          EXPECT_EQ(value.requires_grad(), name != "blocks") << name;
          if (value.requires_grad())
            value.register_hook([&seen, name](const at::Tensor& g) { seen.gradients[name] = g; });
        };
      const auto o = table.attend(args);
      const auto weight = on_device(o.sizes(), 20, s.type);
      if (only_keys) in = {in[5]};
      seen.of_inputs = torch::autograd::grad({o}, in, {weight}, std::nullopt, false, /*allow_unused=*/true);
      return seen;
    };
    const Seen one = run(ops(), true), parts = run(ops().in_parts(), true), alone = run(ops(), false);
    EXPECT_EQ(one.order, (std::vector<std::string>{"cmp.o", "blocks", "sel.o", "win.o"}));
    EXPECT_EQ(one.order, parts.order);
    for (const auto& [name, value] : parts.stages) EXPECT_TRUE(at::equal(value, one.stages.at(name))) << name;
    ASSERT_EQ(one.gradients.size(), 3u);
    for (const auto& [name, value] : parts.gradients)
      EXPECT_LE(relative_error(one.gradients.at(name), value.to(at::kDouble)), kGradientBound) << name;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) EXPECT_TRUE(at::equal(one.of_inputs[i], alone.of_inputs[i])) << i;
    EXPECT_EQ(run(ops(), true, /*only_keys=*/true).gradients.size(), 3u) << "gradients of chosen tensors pass by too";
  }
}

TEST_F(CudaKernels, ABranchThatRunsAloneIsThatPart) {
  const CudaShape s{.S = 80, .h = 2};
  const CudaCase c = attend_case(s);
  const auto& in = c.inputs;
  AttendArgs args{in[0], {}, {}, {}, in[5], in[6], {}, s.g, {}};
  args.only = ForcedBranch::win;
  EXPECT_TRUE(at::equal(ops().attend(args), ops().attend_window({in[0], in[5], in[6], s.g, {}}).o));
}

TEST_F(CudaKernels, AModelThatIsWatchedComputesTheSame) {
  ModelConfig config = fixtures::tiny();
  config.d_k = config.d_v = 32;
  const auto step = [&](bool watched, const Ops& table) {
    auto model = fixtures::make_model(config);
    model->runtime->ops = [table](const Call&) { return table; };
    int stages = 0;
    if (watched) model->runtime->observe = [&](std::string_view, const at::Tensor&) { ++stages; };
    model->to(device(), at::kBFloat16);
    const auto loss = model->loss(bytes({2, 101}, 3).to(device()));
    loss.backward();
    EXPECT_EQ(stages > 0, watched);
    Tensors all = {loss.detach()};
    for (const auto& p : model->parameters()) all.push_back(p.grad());
    return all;
  };
  int calls = 0;
  const Tensors alone = step(false, ops()), watched = step(true, ops()), in_steps = step(false, counted(calls));
  EXPECT_EQ(calls, 2 * 6);  // layers, functions
  EXPECT_TRUE(at::equal(alone[0], in_steps[0]));
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_TRUE(at::equal(alone[i], watched[i])) << i;
    EXPECT_LE(fixtures::distance(alone[i], in_steps[i]), 3e-2) << i;
  }
}

TEST_F(CudaKernels, InOneRefusesWhatEachWould) {
  const CudaCase c = attend_case({.S = 80, .h = 2});
  const auto args = [&](std::size_t changed, const at::Tensor& by) {
    Tensors in = c.inputs;
    in[changed] = by;
    return AttendArgs{in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], in[7], {}, {}};
  };
  const auto expect_refusal = [&](std::size_t changed, const at::Tensor& by, const std::string& name) {
    const auto x = args(changed, by);
    EXPECT_THROW((void)attend(x), ContractError);
    const auto message = fixtures::message_of([&] { (void)attend(x); });
    EXPECT_TRUE(message.starts_with("attend: " + name + " is ")) << message;
  };
  const auto& in = c.inputs;
  expect_refusal(7, in[7].narrow(3, 0, 2), "gates");
  expect_refusal(7, in[7].narrow(2, 0, 1), "gates");
  expect_refusal(6, in[6].narrow(3, 0, 32), "v_win");
  expect_refusal(5, in[5].narrow(1, 0, 70), "k_win");
  expect_refusal(5, in[5].narrow(2, 0, 1), "v_win");  // of two groups beside it
  expect_refusal(3, in[3].to(at::kFloat), "k_sel");
  expect_refusal(1, in[1].narrow(1, 0, 1), "k_cmp");
  auto one_group = args(3, in[3].narrow(2, 0, 1));
  one_group.v_sel = one_group.v_sel.narrow(2, 0, 1);
  EXPECT_THROW((void)attend(one_group), ContractError);
  auto table = args(0, in[0]);
  table.blocks = at::zeros({1, 80, 2, 4}, at::device(device()).dtype(at::kInt));
  EXPECT_THROW((void)attend(table), ContractError);
  EXPECT_THROW((void)attend(args(0, in[0].narrow(3, 0, 24))), ContractError);
}
TEST_F(CudaKernels, InOneServesWhatTheTableOfFeaturesSays) {
  const CudaCase c = attend_case({.S = 80, .h = 2, .type = at::kFloat});
  const auto& in = c.inputs;
  const AttendArgs args{in[0], {in[1], in[2]}, in[3], in[4], in[5], in[6], in[7], {}, {}};
  EXPECT_THROW((void)attend(args), Unsupported);
}

}  // namespace
}  // namespace nsa::cuda
