#include "suites/implementation/ops.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nsa/reference/reference.hpp"
#include "suites/implementation/tests/support.hpp"
#include "suites/oracle/gradcheck.hpp"
#include "suites/oracle/op_case.hpp"

namespace suites::implementation::tests {
namespace {

using nsa::Op;
using testing::HasSubstr;

class OpsTest : public PythonTest {
 protected:
  OpsTest() {
    shape.geometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5};
    shape.B = 2;
    shape.S = 7;
    shape.Hq = 4;
    shape.G = 2;
    shape.Dk = 2;
    shape.Dv = 3;
  }
  void start(const std::string& changes = "") {
    far = std::make_shared<Client>(
        Client::Options{kPython, host(changes), adapter, Client::Seconds(60), Client::Seconds(60)});
  }
  [[nodiscard]] nsa::Ops table(bool training = false) const {
    return with_implementation(nsa::reference::ops(), far, oracle::call_of(shape, at::kDouble, at::kCPU, training));
  }
  [[nodiscard]] oracle::OpCase a_case(Op op) const { return oracle::make_op_case(op, shape, at::kDouble, at::kCPU, 7); }
  [[nodiscard]] std::int64_t calls(const std::string& function) const {
    const auto all = far->calls();
    return all.contains(function) ? all.at(function) : 0;
  }
  // With shared keys and values.
  [[nodiscard]] nsa::AttendArgs shared() const {
    const auto c = a_case(Op::attend);
    return {c.inputs[0], {c.inputs[1], c.inputs[2]},
            c.inputs[3], c.inputs[4],
            c.inputs[3], c.inputs[4],
            c.inputs[7], shape.geometry,
            {}};
  }

  oracle::OpShape shape;
  std::shared_ptr<Client> far;
};

TEST_F(OpsTest, EveryFunctionThatIsClaimedIsReplaced) {
  start();
  const nsa::Ops ops = table();
  for (const Op op : nsa::kAllOps) {
    const auto c = a_case(op);
    const auto outputs = c.call(ops, c.inputs);
    EXPECT_EQ(outputs.size(), c.output_names.size());
    if (op == Op::attend) continue;
    EXPECT_GE(calls(std::string(nsa::to_string(op))), 1) << nsa::to_string(op);
    if (op == Op::attend_window || op == Op::attend_selected) {
      EXPECT_TRUE(at::equal(outputs[0], 3 * c.inputs[2].repeat_interleave(2, 2)));
    }
  }
  EXPECT_EQ(calls("attend"), 0);
  EXPECT_EQ(calls("combine"), 2);  // by itself and, part by part, in attend
  EXPECT_EQ(ops.way, nsa::AttendWay::in_parts);
}

TEST_F(OpsTest, WhatIsRightPassesGradcheck) {
  start();
  const nsa::Ops ops = table(true), reference = nsa::reference::ops();
  for (const Op op : {Op::compress, Op::combine}) {
    const auto c = a_case(op);
    const auto got = evaluate(c, ops, {at::kDouble, true, 7}), due = evaluate(c, reference, {at::kDouble, true, 7});
    ASSERT_TRUE(got.requires_grad);
    for (std::size_t i = 0; i < due.outputs.size(); ++i) EXPECT_TRUE(at::allclose(got.outputs[i], due.outputs[i]));
    for (std::size_t i = 0; i < due.gradients.size(); ++i)
      EXPECT_TRUE(at::allclose(got.gradients[i], due.gradients[i]));
  }
  const auto c = a_case(Op::combine);
  const auto report = oracle::gradcheck([&](const auto& in) { return c.call(ops, in); }, c.inputs, {}, [] {});
  EXPECT_TRUE(report.good);
}

TEST_F(OpsTest, APackedBatchIsPassedOn) {
  start("DESCRIPTION['layouts'] = ['packed']\n");
  shape.B = 1;
  shape.cu_seqlens = at::tensor({0, 2, 7}, at::kInt);
  const auto c = a_case(Op::compress);
  const auto got = c.call(table(), c.inputs), due = c.call(nsa::reference::ops(), c.inputs);
  EXPECT_TRUE(at::allclose(got[0], due[0]));
  EXPECT_TRUE(at::allclose(got[1], due[1]));
  EXPECT_EQ(calls("compress"), 1);
  const auto whole = a_case(Op::attend);
  (void)whole.call(table(), whole.inputs);
  EXPECT_EQ(calls("combine"), 1);
}

TEST_F(OpsTest, ATextWithoutABlockIsPassedOn) {
  start();
  shape.S = 3;
  const auto c = a_case(Op::attend_compressed);
  EXPECT_TRUE(at::equal(c.call(table(), c.inputs)[0], at::zeros({2, 3, 4, 3}, at::kDouble)));
}

TEST_F(OpsTest, OthersStay) {
  start("DESCRIPTION['computes'] = ['attend_window']\n");
  const nsa::Ops ops = table(), reference = nsa::reference::ops();
  for (const Op op : {Op::compress, Op::attend_compressed, Op::select, Op::attend_selected, Op::combine}) {
    const auto c = a_case(op);
    EXPECT_TRUE(at::equal(c.call(ops, c.inputs)[0], c.call(reference, c.inputs)[0])) << nsa::to_string(op);
  }
  EXPECT_TRUE(far->calls().empty());
}

TEST_F(OpsTest, WhatIsRefusedStays) {
  for (const char* change : {"DESCRIPTION['dtypes'] = ['fp32']\n", "DESCRIPTION['layouts'] = ['packed']\n",
                             "DESCRIPTION['gradients'] = False\n", "DESCRIPTION['limits'] = {'d_k': 64}\n",
                             "DESCRIPTION['device'] = ['cuda']\n"}) {
    start(change);
    const auto c = a_case(Op::attend_window);
    (void)c.call(table(true), c.inputs);
    EXPECT_TRUE(far->calls().empty()) << change;
  }
}

TEST_F(OpsTest, LearnedCompressionStays) {
  start();
  shape.phi = nsa::Phi::mlp;
  const auto c = a_case(Op::compress);
  (void)c.call(table(), c.inputs);
  EXPECT_EQ(calls("compress"), 0);
}

TEST_F(OpsTest, ACallThatIsNotTheOneThatWasToldOfIsRefused) {
  start("DESCRIPTION['gradients'] = False\n");
  const nsa::Ops ops = table();
  const auto c = a_case(Op::attend_window);
  auto inputs = c.inputs;
  (void)c.call(ops, inputs);
  inputs[0] = inputs[0].clone().requires_grad_();
  EXPECT_THROW((void)c.call(ops, inputs), nsa::Unsupported);
  const at::NoGradGuard no_grad;
  (void)c.call(ops, inputs);
  for (auto& input : inputs) input = input.to(at::kFloat);
  EXPECT_THROW((void)c.call(ops, inputs), nsa::Unsupported);
}

TEST_F(OpsTest, BadInputIsRefusedBeforeItIsSent) {
  start();
  const auto c = a_case(Op::attend_window);
  const nsa::Ops ops = table();
  EXPECT_THROW((void)ops.attend_window({c.inputs[0], c.inputs[1], c.inputs[2].slice(1, 1), shape.geometry, {}}),
               nsa::ContractError);
  EXPECT_TRUE(far->calls().empty());
}

TEST_F(OpsTest, AttendGoesInOne) {
  start("DESCRIPTION['computes'] = ['attend', 'attend_window']\n");
  const nsa::Ops ops = table(true);
  EXPECT_EQ(ops.way, nsa::AttendWay::in_one);
  const auto c = a_case(Op::attend);
  const auto result = evaluate(c, ops, {at::kDouble, true, 7});
  EXPECT_TRUE(at::allclose(result.outputs[0], (2 * c.inputs[4] + c.inputs[6]).repeat_interleave(2, 2)));
  EXPECT_TRUE(at::allclose(result.gradients[4], 2 * result.gradients[6]));
  EXPECT_FALSE(result.gradients[0].defined());
  EXPECT_EQ(calls("attend"), 1);
  EXPECT_EQ(calls("attend_window"), 0);
}

TEST_F(OpsTest, ABranchThatRunsAloneIsAskedByItself) {
  start("DESCRIPTION['computes'] = ['attend', 'attend_window']\n");
  nsa::AttendArgs args = shared();
  args.only = nsa::ForcedBranch::win;
  EXPECT_TRUE(at::equal(table().attend(args), 3 * args.v_win.repeat_interleave(2, 2)));
  EXPECT_EQ(calls("attend"), 0);
  EXPECT_EQ(calls("attend_window"), 1);
}

TEST_F(OpsTest, AttentionIsAskedWhereKeysAndValuesAreShared) {
  start("DESCRIPTION.update(computes=['attention'], shared_kv=True, lse=None)\n");
  const nsa::Ops ops = table(), reference = nsa::reference::ops();
  EXPECT_EQ(ops.way, nsa::AttendWay::in_one);
  const nsa::AttendArgs args = shared();
  const at::Tensor gate = args.gates[0][0][0][0];
  EXPECT_TRUE(at::allclose(ops.attend(args), gate * args.v_sel.repeat_interleave(2, 2)));
  EXPECT_EQ(calls("attention"), 1);

  nsa::AttendArgs apart = args;
  apart.k_win = args.k_win.clone();
  EXPECT_TRUE(at::equal(ops.attend(apart), reference.attend(apart)));
  nsa::AttendArgs chosen = args;
  chosen.blocks = a_case(Op::attend).blocks;
  EXPECT_TRUE(at::equal(ops.attend(chosen), reference.attend(chosen)));
  EXPECT_EQ(calls("attention"), 1);
}

TEST_F(OpsTest, AnImplementationThatCannotBeStartedIsAnError) {
  far = std::make_shared<Client>(
      Client::Options{"/no/such/python", "host.py", "adapter.py", Client::Seconds(60), Client::Seconds(60)});
  EXPECT_EQ(error_of([&] { (void)table(); }).kind, "start");
}

}  // namespace
}  // namespace suites::implementation::tests
