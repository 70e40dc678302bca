#include "nsa/sdpa/sdpa.hpp"

#include "nsa/tests/fixtures.hpp"

namespace nsa::sdpa {
namespace {

using fixtures::cu;
using fixtures::distance;
using fixtures::gradients;
using fixtures::Inputs;
using fixtures::kHeads;
using fixtures::kLengths;
using fixtures::random;
using fixtures::Shape;
using fixtures::tolerance;

const std::vector<Selection> kSelections{Selection::packed, Selection::packed_safe, Selection::masked};

std::string title(const Shape& s) {
  return "B" + std::to_string(s.B) + " S" + std::to_string(s.S) + " G" + std::to_string(s.G) + " h" +
         std::to_string(s.h);
}

// Every function against the oracle, on the same numbers.
void expect_forward(const Inputs& in) {
  const auto type = in.q.scalar_type();
  const Inputs wide = in.wide();
  const auto kv = reference::compress(wide.compress());
  const auto own = compress(in.compress());
  EXPECT_LE(distance(own.k, kv.k), tolerance(type)) << "compress k";
  EXPECT_LE(distance(own.v, kv.v), tolerance(type)) << "compress v";

  const Compressed same{own.k.to(at::kDouble), own.v.to(at::kDouble)};
  EXPECT_LE(distance(attend_compressed(in.compressed(own)).o, reference::attend_compressed(wide.compressed(same)).o),
            tolerance(type))
      << "attend_compressed";
  EXPECT_LE(distance(attend_window(in.window()).o, reference::attend_window(wide.window()).o), tolerance(type))
      << "attend_window";

  const auto blocks = in.blocks();
  const auto wanted = reference::attend_selected(wide.selected(blocks)).o;
  for (const auto how : kSelections)
    EXPECT_LE(distance(attend_selected(in.selected(blocks), how).o, wanted), tolerance(type))
        << "selection " << static_cast<int>(how);
  EXPECT_LE(distance(combine({in.gates, in.q, in.q, in.q}), wide.q), tolerance(type))
      << "combine";  // the gates sum to 1
}

class Types : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(Types, EveryLengthAndGrouping) {
  const at::NoGradGuard no_grad;
  for (const auto S : kLengths)
    for (const auto& [G, h] : kHeads) {
      const Shape shape{.B = S % 2 == 0 ? 2 : 1, .S = S, .G = G, .h = h};
      SCOPED_TRACE(title(shape));
      expect_forward(Inputs(shape, static_cast<std::uint64_t>(S), GetParam()));
    }
}

TEST_P(Types, KeysAndValuesOfOtherWidths) {
  const at::NoGradGuard no_grad;
  for (const std::int64_t S : {3, 9, 40}) {
    const Shape shape{.B = 2, .S = S, .G = 2, .h = 3, .Dk = 12, .Dv = 5};
    SCOPED_TRACE(title(shape));
    expect_forward(Inputs(shape, 11, GetParam()));
  }
}

TEST_P(Types, PackedWithEmptyAndOneTokenDocuments) {
  const at::NoGradGuard no_grad;
  Inputs in({.S = 90, .G = 2, .h = 2}, 13, GetParam());
  in.cu_seqlens = cu({0, 0, 1, 4, 4, 8, 17, 18, 90, 90});
  expect_forward(in);
}

TEST_P(Types, AnyStrides) {
  const at::NoGradGuard no_grad;
  Inputs in({.B = 2, .S = 30, .G = 2, .h = 2}, 17, GetParam());
  for (auto* t : {&in.q, &in.k, &in.v}) *t = t->permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0});
  ASSERT_FALSE(in.q.is_contiguous());
  expect_forward(in);
}

INSTANTIATE_TEST_SUITE_P(Sdpa, Types, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST(Sdpa, WindowsLongerThanAChunk) {
  const at::NoGradGuard no_grad;
  for (const std::int64_t w : {1, 255, 256, 257, 300}) {
    const Inputs in({.S = 800, .h = 2}, 19, at::kDouble, {4, 2, 8, 3, w});
    EXPECT_LE(distance(attend_window(in.window()).o, reference::attend_window(in.window()).o), 1e-12) << w;
  }
}

TEST(Sdpa, QueriesLongerThanAChunk) {
  const at::NoGradGuard no_grad;
  const Inputs in({.S = 2100, .h = 2, .Dk = 4, .Dv = 4}, 23, at::kDouble, {32, 16, 64, 5, 8});
  const auto kv = compress(in.compress());
  EXPECT_LE(distance(attend_compressed(in.compressed(kv)).o, reference::attend_compressed(in.compressed(kv)).o), 1e-12);
  EXPECT_TRUE(at::equal(select(in.select(kv)), reference::select(in.select(kv))));
}

// ---- gradients ----------------------------------------------------------------------------------------------------

struct Branch {
  std::string name;
  std::function<at::Tensor(const Inputs&)> own, wanted;
};
std::vector<Branch> branches(const at::Tensor& blocks) {
  std::vector<Branch> result{
      {"compressed", [](const Inputs& in) { return attend_compressed(in.compressed(compress(in.compress()))).o; },
       [](const Inputs& in) {
         return reference::attend_compressed(in.compressed(reference::compress(in.compress()))).o;
       }},
      {"window", [](const Inputs& in) { return attend_window(in.window()).o; },
       [](const Inputs& in) { return reference::attend_window(in.window()).o; }}};
  for (const auto how : {Selection::packed_safe, Selection::masked})
    result.push_back({how == Selection::masked ? "masked" : "packed_safe",
                      [how, blocks](const Inputs& in) { return attend_selected(in.selected(blocks), how).o; },
                      [blocks](const Inputs& in) { return reference::attend_selected(in.selected(blocks)).o; }});
  return result;
}

void expect_gradients(const Inputs& plain, const at::Tensor& blocks, double bound) {
  for (const auto& branch : branches(blocks)) {
    Inputs in = plain, wide = plain.wide();
    for (auto* t : {&in.q, &in.k, &in.v}) *t = t->detach().clone();
    for (auto* t : {&wide.q, &wide.k, &wide.v}) *t = t->detach().clone();
    const auto got = gradients(branch.own(in.require_gradients()), in, 29);
    const auto wanted = gradients(branch.wanted(wide.require_gradients()), wide, 29);
    const char* names[] = {"q", "k", "v"};
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_LE(distance(got[i], wanted[i]), bound) << branch.name << " d" << names[i];
  }
}

TEST(SdpaGradients, EqualTheOracles) {
  for (const std::int64_t S : {1, 3, 4, 9, 25, 60}) {
    const Inputs in({.B = 2, .S = S, .G = 2, .h = 3, .Dk = 6, .Dv = S % 2 == 0 ? 6 : 4}, 31);
    SCOPED_TRACE(S);
    expect_gradients(in, in.blocks(), 1e-11);
  }
}

TEST(SdpaGradients, PackedAndWithEmptyRows) {
  Inputs in({.S = 50, .G = 2, .h = 2}, 37);
  in.cu_seqlens = cu({0, 0, 1, 3, 30, 50});
  auto blocks = in.blocks();
  for (const std::int64_t t : {0, 1, 20, 49}) blocks.select(1, t).fill_(-1);
  expect_gradients(in, blocks, 1e-11);
}

TEST(SdpaGradients, InBf16) {
  // Block 0 is read by every query: its gradient is a sum of 300 terms and must not be summed in bf16.
  const Inputs in({.S = 300, .G = 1, .h = 2}, 41, at::kBFloat16);
  expect_gradients(in, in.blocks(), 3e-2);
}

TEST(SdpaGradients, OfTheLearnedCompression) {
  const Inputs in({.B = 2, .S = 21, .G = 2}, 43);
  const auto weights = [](std::uint64_t seed) {
    return PhiWeights{random({4, 8}, seed).set_requires_grad(true),
                      (random({8, 32}, seed + 1) * 0.2).set_requires_grad(true),
                      random({8, 8}, seed + 2).set_requires_grad(true)};
  };
  const auto phi_k = weights(50), phi_v = weights(60);
  const CompressArgs args{in.k, in.v, in.g, {}, phi_k, phi_v};
  const auto of = [&](const Compressed& kv) {
    return torch::autograd::grad({(kv.k * random(kv.k.sizes(), 70)).sum() + (kv.v * random(kv.v.sizes(), 71)).sum()},
                                 {phi_k.position, phi_k.fc1, phi_k.fc2, phi_v.position, phi_v.fc1, phi_v.fc2});
  };
  const auto own = compress(args), wanted = reference::compress(args);
  EXPECT_LE(distance(own.k, wanted.k), 1e-12);
  const auto got = of(own), expected = of(wanted);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_LE(distance(got[i], expected[i]), 1e-11) << i;
}

}  // namespace
}  // namespace nsa::sdpa
