#include "suites/implementation/node.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace node_test {

using testing::HasSubstr;
using torch::autograd::grad;

class NodeTest : public PythonTest {
 protected:
  [[nodiscard]] std::shared_ptr<Client> client(const std::string& changes = "") const {
    return std::make_shared<Client>(
        Client::Options{kPython, host(changes), adapter, Client::Seconds(60), Client::Seconds(60)});
  }
};

// Of `combine`: every gradient of its is another.
Request combine(bool requires_grad = true) {
  const auto one = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(requires_grad); };
  return {"combine",
          {{"gates", one({1, 3, 2, 3})},
           {"o_cmp", one({1, 3, 4, 2})},
           {"o_sel", one({1, 3, 4, 2})},
           {"o_win", one({1, 3, 4, 2})}},
          {},
          {},
          {}};
}
at::Tensor wanted(const Request& r) {
  at::Tensor o;
  for (const auto& [i, name] : {std::pair{0, "o_cmp"}, {1, "o_sel"}, {2, "o_win"}}) {
    const at::Tensor term =
        named(r.inputs, "gates").select(-1, i).repeat_interleave(2, 2).unsqueeze(-1) * named(r.inputs, name);
    o = o.defined() ? o + term : term;
  }
  return o;
}
std::vector<at::Tensor> leaves(const Request& r) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : r.inputs) tensors.push_back(tensor);
  return tensors;
}

Request window(bool requires_grad = true) {
  const auto one = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(requires_grad); };
  return {"attend_window", {{"q", one({1, 3, 4, 2})}, {"k", one({1, 3, 2, 2})}, {"v", one({1, 3, 2, 3})}}, {}, {}, {}};
}

TEST_F(NodeTest, ForwardAndBackwardAreThoseOfTheFunction) {
  const auto far = client();
  const Request request = combine();
  const at::Tensor o = named(call(far, request), "o"), o_wanted = wanted(request);
  EXPECT_TRUE(o.requires_grad());
  EXPECT_TRUE(at::allclose(o, o_wanted));
  const at::Tensor cotangent = at::randn(o.sizes(), at::kDouble);
  const auto got = grad({o}, leaves(request), {cotangent}), due = grad({o_wanted}, leaves(request), {cotangent});
  for (std::size_t i = 0; i < due.size(); ++i) EXPECT_TRUE(at::allclose(got[i], due[i])) << i;
  EXPECT_EQ(far->memory().graphs, 0);
}

TEST_F(NodeTest, GradientsAreAskedOfWhatRequiresOne) {
  const auto far = client();
  Request request = combine(false);
  request.inputs[2].second.requires_grad_();
  const at::Tensor o = named(call(far, request), "o");
  const auto got = grad({o.sum()}, {request.inputs[2].second});
  EXPECT_TRUE(at::allclose(got[0], grad({wanted(request).sum()}, {request.inputs[2].second})[0]));
}

TEST_F(NodeTest, WithoutGradientsNoGraphIsKept) {
  const auto far = client();
  EXPECT_FALSE(named(call(far, combine(false)), "o").requires_grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(named(call(far, combine()), "o").requires_grad());
  }
  EXPECT_EQ(far->memory().graphs, 0);
}

TEST_F(NodeTest, AGraphCanBeKeptAndIsGoneOtherwise) {
  const auto far = client();
  const Request request = window();
  const at::Tensor o = named(call(far, request), "o").sum();
  const auto again = [&](bool keep) { return grad({o}, {request.inputs[2].second}, {}, keep)[0]; };
  EXPECT_TRUE(at::equal(again(true), again(true)));
  EXPECT_EQ(far->memory().graphs, 1);
  (void)again(false);
  EXPECT_EQ(far->memory().graphs, 0);
  try {
    (void)again(false);
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("backward through the graph a second time"));
  }
}

TEST_F(NodeTest, ADroppedGraphIsGivenBack) {
  const auto far = client();
  {
    const at::Tensor o = named(call(far, window()), "o");
    EXPECT_EQ(far->memory().graphs, 1);
  }
  EXPECT_EQ(far->memory().graphs, 0);
}

TEST_F(NodeTest, AnInputThatNothingReachesGetsNoGradient) {
  const Request request = window();
  const at::Tensor o = named(call(client(), request), "o");
  const auto gradients = grad({o.sum()}, leaves(request), {}, std::nullopt, false, /*allow_unused=*/true);
  EXPECT_FALSE(gradients[0].defined());
  EXPECT_FALSE(gradients[1].defined());
  EXPECT_TRUE(at::equal(gradients[2], at::full({1, 3, 2, 3}, 6.0, at::kDouble)));
}

TEST_F(NodeTest, TwoOutputsOfWhichOneIsUsed) {
  Request request = {"compress",
                     {{"k", at::randn({1, 7, 2, 2}, at::kDouble).requires_grad_()},
                      {"v", at::randn({1, 7, 2, 3}, at::kDouble).requires_grad_()}},
                     {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5},
                     {},
                     {}};
  const Named outputs = call(client(), request);
  EXPECT_TRUE(named(outputs, "k_cmp").requires_grad());
  EXPECT_TRUE(at::allclose(named(outputs, "v_cmp"), named(request.inputs, "v").unfold(1, 4, 2).mean(-1)));
  const auto gradients = grad({named(outputs, "v_cmp").sum()}, leaves(request));
  EXPECT_TRUE(at::equal(gradients[0], at::zeros_like(gradients[0])));
  EXPECT_TRUE(at::allclose(
      gradients[1], grad({named(request.inputs, "v").unfold(1, 4, 2).mean(-1).sum()}, {request.inputs[1].second})[0]));
}

TEST_F(NodeTest, AnImplementationWithoutAGraphGivesOutputsWithoutOne) {
  const auto far = client("DESCRIPTION['gradients'] = False\n");
  EXPECT_FALSE(named(call(far, window()), "o").requires_grad());
  EXPECT_EQ(far->memory().graphs, 0);
}

TEST_F(NodeTest, ALogSumExpIsToBaseEAndHasNoGraph) {
  const Request request = window();
  const at::Tensor due = request.inputs[0].second.sum(-1).transpose(1, 2).to(at::kFloat);
  for (const char* base : {"'e'", "'2'"}) {
    const at::Tensor lse = named(call(client(std::string("DESCRIPTION['lse'] = ") + base + "\n"), request), "lse");
    EXPECT_TRUE(at::allclose(lse, due, 1e-5, 1e-6)) << base;
    EXPECT_FALSE(lse.requires_grad());
  }
  const Named outputs = call(client("DESCRIPTION['lse'] = None\n"), request);
  EXPECT_EQ(error_of([&] { (void)named(outputs, "lse"); }).kind, "request");
}

TEST_F(NodeTest, WhatWritesToItsInputsIsNamed) {
  const auto far = client(R"py(
real_forward, real_backward = forward, backward
DOES["forward"] = lambda r: {**real_forward(r), "changed_inputs": ["q", "k"] if r["op"] == "combine" else []}
DOES["backward"] = lambda r: {**real_backward(r), "changed_inputs": ["v"]}
)py");
  const auto forward = error_of([&] { (void)call(far, combine()); });
  EXPECT_EQ(forward.kind, "changed_inputs");
  EXPECT_EQ(forward.message, "combine wrote to q, k, which it was given to read");
  EXPECT_EQ(far->memory().graphs, 0);
  const Request request = window();
  const at::Tensor o = named(call(far, request), "o").sum();
  EXPECT_EQ(error_of([&] { o.backward(); }).message,
            "the backward pass of attend_window wrote to v, which it was given to read");
}

TEST_F(NodeTest, ASecondDerivativeIsRefusedByName) {
  const Request request = window();
  const at::Tensor o = named(call(client(), request), "o").sum();
  try {
    (void)grad({o}, {request.inputs[2].second}, {}, std::nullopt, /*create_graph=*/true);
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("derivative for implementation::attend_window_backward is not implemented"));
  }
}

TEST_F(NodeTest, AnInputThatWasWrittenToSinceIsSeen) {
  const Request request = window();
  const at::Tensor o = named(call(client(), request), "o").sum();
  {
    const at::NoGradGuard no_grad;
    request.inputs[0].second.add_(1);
  }
  EXPECT_THROW((void)grad({o}, {request.inputs[2].second}), c10::Error);
}

TEST_F(NodeTest, TheGraphOfADeadProcessIsAnError) {
  const auto far = client("DOES['seed'] = lambda request: os._exit(9)\n");
  const Request request = window();
  const at::Tensor o = named(call(far, request), "o").sum();
  (void)error_of([&] { far->seed(1); });
  const auto error = error_of([&] { o.backward(); });
  EXPECT_EQ(error.kind, "crashed");
  EXPECT_THAT(error.message, HasSubstr("is gone with the process that kept it (crashed: ended with exit code 9)"));
}

TEST_F(NodeTest, AGraphMayOutliveEverythingElse) {
  at::Tensor o;
  const Request request = window();
  {
    const auto far = client();
    o = named(call(far, request), "o").sum();
  }
  o.backward();
  EXPECT_TRUE(request.inputs[2].second.grad().defined());
}

}  // namespace node_test
}  // namespace suites::implementation::tests
