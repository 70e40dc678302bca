#include "suites/implementation/call.hpp"

#include <ATen/ATen.h>

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace {

using Sizes = std::vector<std::int64_t>;

const nsa::Geometry kGeometry = {.l = 4, .d = 2, .l_sel = 4, .n_sel = 3, .w = 5};

at::Tensor ones(at::IntArrayRef sizes) { return at::ones(sizes, at::kDouble); }

Request request(const std::string& function, Named inputs) { return {function, std::move(inputs), kGeometry, {}, {}}; }

TEST(Request, SaysAllButTheTensors) {
  Request r = request("combine", {{"gates", ones({1})}});
  EXPECT_EQ(reports::dump(to_json(r)),
            R"({"op":"combine","device":"cpu","geometry":{"l":4,"d":2,"l_sel":4,"n_sel":3,"w":5},"cu_seqlens":null,)"
            R"("gradients":[]})");
  r.cu_seqlens = at::tensor({0, 1, 3}, at::kInt);
  r.gradients = {"q"};
  EXPECT_EQ(to_json(r)["cu_seqlens"], (Json{0, 1, 3}));
  EXPECT_EQ(to_json(r)["gradients"], Json::array({"q"}));
  r.inputs.clear();
  EXPECT_EQ(error_of([&] { (void)to_json(r); }).kind, "request");
}

TEST(OutputsOf, CompressCountsTheBlocksOfEveryDocument) {
  Request r = request("compress", {{"k", ones({1, 19, 2, 6})}, {"v", ones({1, 19, 2, 3})}});
  EXPECT_EQ(outputs_of(r)[0].sizes, (Sizes{1, 8, 2, 6}));
  EXPECT_EQ(outputs_of(r)[1].sizes, (Sizes{1, 8, 2, 3}));
  r.cu_seqlens = at::tensor({0, 3, 10, 19}, at::kInt);
  EXPECT_EQ(outputs_of(r)[1].name, "v_cmp");
  EXPECT_EQ(outputs_of(r)[1].sizes, (Sizes{1, 0 + 2 + 3, 2, 3}));
}

TEST(OutputsOf, TheBranchesGiveALogSumExpToo) {
  for (const char* values : {"v", "v_cmp"}) {
    const auto forms = outputs_of(request("attend_any", {{"q", ones({2, 7, 4, 6})}, {values, ones({2, 5, 2, 3})}}));
    ASSERT_EQ(forms.size(), 2U);
    EXPECT_EQ(forms[0].sizes, (Sizes{2, 7, 4, 3}));
    EXPECT_FALSE(forms[0].optional);
    EXPECT_EQ(forms[1].name, "lse");
    EXPECT_EQ(forms[1].sizes, (Sizes{2, 4, 7}));
    EXPECT_TRUE(forms[1].optional);
  }
}

TEST(OutputsOf, TheOthersGiveOne) {
  const Named q = {{"q", ones({2, 7, 4, 6})}, {"k_cmp", ones({2, 5, 2, 6})}, {"v_cmp", ones({2, 5, 2, 3})}};
  EXPECT_EQ(outputs_of(request("select", q))[0].sizes, (Sizes{2, 7, 2, 3}));
  EXPECT_EQ(outputs_of(request("select", q))[0].dtypes, (std::vector{at::kInt}));
  EXPECT_EQ(outputs_of(request("attend", q)).size(), 1U);
  const at::Tensor o = ones({2, 7, 4, 3}).to(at::kBFloat16);
  const auto forms = outputs_of(request("combine", {{"gates", ones({2, 7, 2, 3})}, {"o_cmp", o}}));
  EXPECT_EQ(forms[0].sizes, (Sizes{2, 7, 4, 3}));
  EXPECT_EQ(forms[0].dtypes, (std::vector{at::kBFloat16}));
  EXPECT_FALSE(forms[0].optional);
}

TEST(OutputsOf, NeedsTheInputs) {
  EXPECT_EQ(error_of([] {
              (void)outputs_of(request("attend_window", {{"k", ones({1})}}));
            }).message,
            "no tensor is called q");
  EXPECT_EQ(error_of([] { (void)outputs_of(request("attend_window", {{"q", ones({1, 1, 1, 1})}})); }).kind, "request");
}

TEST(CheckForms, SaysWhatCameAndWhatIsAllowed) {
  const std::vector<Form> forms = {{"o", {2, 3}, {at::kFloat, at::kDouble}}, {"lse", {2}, {at::kFloat}, true}};
  const auto complaint = [&](const Named& tensors) {
    const auto error = error_of([&] { check_forms("attend_window", tensors, forms); });
    return error.kind + ": " + error.message;
  };
  const at::Tensor o = ones({2, 3});
  EXPECT_EQ(complaint({{"o", o}}), "nothing: nothing was thrown");
  EXPECT_EQ(complaint({{"o", o}, {"lse", {}}, {"more", {}}}), "nothing: nothing was thrown");
  EXPECT_EQ(complaint({{"lse", at::ones({2})}}), "shape: attend_window: o is not there; allowed: fp32 or fp64 [2, 3]");
  EXPECT_EQ(complaint({{"o", ones({3, 2})}}),
            "shape: attend_window: o is fp64 [3, 2] on cpu; allowed: fp32 or fp64 [2, 3]");
  EXPECT_EQ(complaint({{"o", o.to(at::kInt)}}),
            "dtype: attend_window: o is int32 [2, 3] on cpu; allowed: fp32 or fp64 [2, 3]");
  EXPECT_EQ(complaint({{"o", o}, {"lse", ones({2})}}),
            "dtype: attend_window: lse is fp64 [2] on cpu; allowed: fp32 [2]");
  EXPECT_EQ(complaint({{"o", o}, {"p", o}}),
            "shape: attend_window: p is fp64 [2, 3] on cpu; allowed: nothing of that name");
}

}  // namespace
}  // namespace suites::implementation::tests
