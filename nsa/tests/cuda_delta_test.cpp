// The row sums that combine's backward pass hands to the branches' (HandedDelta): what they change, when they are
// taken, and that they stay with nobody.
#include <ATen/ATen.h>

#include <chrono>
#include <thread>

#include "nsa/tests/cuda_fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::cuda_cases;
using fixtures::CudaKernels;
using fixtures::CudaShape;
using fixtures::device;
using fixtures::on_device;
using fixtures::relative_error;
using fixtures::Tensors;
using namespace std::chrono_literals;

constexpr std::size_t kBranches = 3;
const CudaShape kFew{.S = 40, .h = 3};
// What lies between a branch and combine.
using Between = std::function<at::Tensor(const at::Tensor&)>;
at::Tensor nothing(const at::Tensor& o) { return o; }

// The three branches, each with its own q, k, v, and their gated sum.
struct Step {
  explicit Step(const CudaShape& s = kFew, const Between& between = nothing) {
    const auto cases = cuda_cases(s);
    const auto leaf = [&](const at::Tensor& t) {
      leaves.push_back(t.detach().requires_grad_());
      return leaves.back();
    };
    for (std::size_t i = 0; i < kBranches; ++i) {
      const auto& c = cases[i + 1];
      branches.push_back(c.call(ops(), {leaf(c.inputs[0]), leaf(c.inputs[1]), leaf(c.inputs[2])})[0]);
    }
    o = combine({leaf(cases.back().inputs[0]), between(branches[0]), between(branches[1]), between(branches[2])});
    outputs = {o};
    weights = {on_device(o.sizes(), 20, s.type)};
  }
  [[nodiscard]] Tensors gradients(bool keep = false) const {
    return torch::autograd::grad(outputs, leaves, weights, /*retain_graph=*/keep);
  }
  template <typename Hook>
  void hook(Hook action) {
    for (const auto& branch : branches) branch.register_hook(action);
  }

  Tensors leaves;  // q, k, v of every branch, gates
  Tensors branches;
  at::Tensor o;
  Tensors outputs, weights;  // of the backward pass
};

// Another tensor with the same numbers: the branches make the sums themselves.
at::Tensor copied(const at::Tensor& gradient) { return gradient.clone(); }

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return at::equal(x, y); });
}

// Wipes the branches' outputs, behind autograd's back, when combine's pass has read them: sums that are made from then
// on are 0, and those handed over are not. `change` adds hooks and outputs.
enum class Taken { by_none, by_all, by_some };
Taken taken(const std::function<void(Step&)>& change, const Between& between = nothing) {
  Step plain(kFew, between), wiped(kFew, between);
  change(plain);
  change(wiped);
  for (const auto& branch : wiped.branches) branch.register_hook([o = branch.data()](const at::Tensor&) { o.zero_(); });
  const auto wanted = plain.gradients(), got = wiped.gradients();
  std::size_t same = 0;
  for (std::size_t i = 0; i < kBranches; ++i) same += at::equal(wanted[3 * i], got[3 * i]);  // dq
  return same == 0 ? Taken::by_none : same == kBranches ? Taken::by_all : Taken::by_some;
}

TEST_F(CudaKernels, HandedSumsChangeNoMoreThanTheOrderOfASum) {
  std::vector<CudaShape> shapes = {{.S = 100, .h = 3},
                                   {.S = 65, .h = 6, .Dk = 128, .Dv = 128, .G = 1, .B = 2, .type = at::kHalf},
                                   {.S = 33, .h = 2, .Dk = 32, .Dv = 32},
                                   {.S = 70, .h = 4, .Dk = 192, .Dv = 128, .G = 1}};
  if (device().is_cuda()) shapes.push_back({.S = 3000, .h = 16, .Dk = 128, .Dv = 128});
  for (const CudaShape& s : shapes) {
    SCOPED_TRACE(s.name());
    Step own(s);
    own.hook(copied);
    const auto wanted = own.gradients(), got = Step(s).gradients();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const bool no_sum_in_it = i % 3 == 2 || i == wanted.size() - 1;  // dv, dgates
      EXPECT_TRUE(!no_sum_in_it || at::equal(got[i], wanted[i])) << i;
      EXPECT_LE(relative_error(got[i], wanted[i]), 1e-4) << i;
    }
  }
}

TEST_F(CudaKernels, HandedSumsAreTakenWithTheVeryGradient) {
  EXPECT_EQ(taken([](Step&) {}), Taken::by_all);
  EXPECT_EQ(taken([](Step& s) { s.hook([](const at::Tensor& g) { return g; }); }), Taken::by_all);
  const auto retain = [](Step& s) {
    for (const auto& branch : s.branches) branch.retain_grad();
  };
  EXPECT_EQ(taken(retain), Taken::by_all);
}

TEST_F(CudaKernels, HandedSumsAreNotTakenWithAnotherGradient) {
  EXPECT_EQ(taken([](Step& s) { s.hook(copied); }), Taken::by_none);
  EXPECT_EQ(taken([](Step& s) { s.hook([](const at::Tensor& g) { return g.view_as(g); }); }), Taken::by_none);
  EXPECT_EQ(taken([](Step& s) { s.hook([](const at::Tensor& g) { g.mul_(2); }); }), Taken::by_none) << "in place";
  EXPECT_EQ(taken([](Step&) {}, [](const at::Tensor& o) { return o * 1; }), Taken::by_none) << "not straight";
  EXPECT_EQ(taken([](Step&) {}, [](const at::Tensor& o) { return o.view_as(o); }), Taken::by_none) << "a view";
}

// The pass of the later use comes first: the gradient that is added to is once combine's and once the other one.
TEST_F(CudaKernels, HandedSumsAreNotTakenWhereAnOutputHasASecondUse) {
  const auto use = [](Step& s, const Tensors& used) {
    for (const auto& x : used) {
      s.outputs.push_back(x);
      s.weights.push_back(at::ones_like(x));
    }
  };
  const auto after = [&](Step& s) {
    for (const auto& branch : s.branches) use(s, {branch * 3});
  };
  EXPECT_EQ(taken(after), Taken::by_none);
  for (const bool wipe : {false, true}) {
    Tensors used;
    const auto before = [&](const at::Tensor& o) {
      used.push_back(o * 3);
      return o;
    };
    Step s(kFew, before), own;
    use(s, used);
    after(own);
    own.hook(copied);
    if (wipe)
      for (const auto& branch : s.branches) branch.register_hook([o = branch.data()](const at::Tensor&) { o.zero_(); });
    EXPECT_EQ(same_bits(s.gradients(), own.gradients()), !wipe);
  }
  const auto twice = [](bool wipe) {  // one output as all three branches
    const auto c = cuda_cases(kFew);
    const auto q = c[3].inputs[0].detach().requires_grad_();
    const auto o = c[3].call(ops(), {q, c[3].inputs[1], c[3].inputs[2]})[0];
    if (wipe) o.register_hook([data = o.data()](const at::Tensor&) { data.zero_(); });
    const auto sum = combine({c.back().inputs[0], o, o, o});
    return torch::autograd::grad({sum}, {q}, {on_device(sum.sizes(), 20, at::kBFloat16)})[0];
  };
  EXPECT_FALSE(at::equal(twice(false), twice(true)));
}

TEST_F(CudaKernels, HandedSumsAreMadeAnewForEveryPass) {
  Step s;
  const auto first = s.gradients(/*keep=*/true);
  EXPECT_TRUE(same_bits(s.gradients(true), first));
  s.weights[0] = on_device(s.o.sizes(), 21, at::kBFloat16);
  Step other;
  other.weights = s.weights;
  EXPECT_TRUE(same_bits(s.gradients(), other.gradients()));
}

// Autograd's thread of the device may still be letting go of what a pass has returned.
template <typename Condition>
bool soon(Condition&& holds) {
  for (int wait = 0; wait < 1000 && !holds(); ++wait) std::this_thread::sleep_for(1ms);
  return holds();
}

TEST_F(CudaKernels, NobodyKeepsTheGradientOfHandedSums) {
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  for (const bool replace : {false, true}) {
    Step s;
    std::vector<Weak> seen;
    s.hook([&](const at::Tensor& g) {
      seen.emplace_back(g.getIntrusivePtr());
      return replace ? g.clone() : g;
    });
    (void)s.gradients(/*keep=*/true);
    ASSERT_EQ(seen.size(), kBranches);
    for (const auto& gradient : seen) EXPECT_TRUE(soon([&] { return gradient.expired(); }));
  }
  const Step s;  // a pass that ends at the branches' outputs: nobody would take the sums
  for (const auto& gradient : torch::autograd::grad({s.o}, s.branches, s.weights, /*retain_graph=*/true))
    EXPECT_TRUE(soon([&] { return gradient.use_count() == 1; }));
  EXPECT_TRUE(same_bits(s.gradients(), Step().gradients()));
}

}  // namespace
}  // namespace nsa::cuda
