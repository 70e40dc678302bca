// FlashAttention-2 runs on a GPU only; on the CPU it says so.
#include "nsa/flash/flash.hpp"

#include <ATen/Context.h>

#include "nsa/tests/fixtures.hpp"

namespace nsa::flash {
namespace {

using fixtures::cu;
using fixtures::distance;
using fixtures::gradients;
using fixtures::Inputs;
using fixtures::kSmall;
using fixtures::message_of;
using fixtures::Shape;

TEST(Flash, OnTheCpuSaysWhyNotAndWhatInstead) {
  const Inputs in({.S = 20}, 1, at::kBFloat16);
  const auto window = [&] { static_cast<void>(attend_window(in.window(), Entry::dense)); };
  EXPECT_THROW(window(), Unsupported);
  EXPECT_NE(message_of(window).find("device is cpu"), std::string::npos) << message_of(window);
  EXPECT_NE(message_of(window).find("use sdpa"), std::string::npos);
  const auto kv = reference::compress(in.compress());
  EXPECT_THROW(static_cast<void>(attend_compressed(in.compressed(kv))), Unsupported);
  EXPECT_NO_THROW(ops().compress(in.compress()));  // served by sdpa
}

TEST(Flash, ChecksTheContractFirst) {
  Inputs in({.S = 20}, 1, at::kBFloat16);
  in.cu_seqlens = cu({0, 19});
  EXPECT_THROW(static_cast<void>(attend_window(in.window(), Entry::varlen)), ContractError);
}

class FlashOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device: FlashAttention-2 has no other implementation";
  }
  static constexpr double kBound = 3e-2;  // bf16

  static Inputs on_gpu(const Shape& shape, const Geometry& g, CuSeqlens cu_seqlens = {}) {
    Inputs in(shape, 7, at::kBFloat16, g);
    in.cu_seqlens = std::move(cu_seqlens);
    for (auto* t : {&in.q, &in.k, &in.v}) *t = t->to(at::kCUDA);
    return in;
  }
  // Forward, LSE and gradients of `own` against `wanted` in fp64 on the CPU.
  static void expect_equal(const Inputs& plain, const std::function<Attended(const Inputs&)>& own,
                           const std::function<Attended(const Inputs&)>& wanted) {
    Inputs in = plain, wide = plain.wide();
    for (auto* t : {&in.q, &in.k, &in.v}) *t = t->detach().clone();
    const auto got = own(in.require_gradients()), expected = wanted(wide.require_gradients());
    EXPECT_EQ(got.o.scalar_type(), at::kBFloat16);
    EXPECT_LE(distance(got.o, expected.o), kBound) << "o";
    EXPECT_LE(distance(got.lse, expected.lse), 1e-2) << "lse";
    const auto d_got = gradients(got.o, in, 11), d_expected = gradients(expected.o, wide, 11);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(distance(d_got[i], d_expected[i]), kBound) << "gradient " << i;
  }
  static void expect_window(const Inputs& in, Entry entry) {
    expect_equal(
        in, [entry](const Inputs& i) { return attend_window(i.window(), entry); },
        [](const Inputs& i) { return reference::attend_window(i.window()); });
  }
  static void expect_compressed(const Inputs& in) {
    expect_equal(
        in, [](const Inputs& i) { return attend_compressed(i.compressed(ops().compress(i.compress()))); },
        [](const Inputs& i) { return reference::attend_compressed(i.compressed(reference::compress(i.compress()))); });
  }
};

TEST_F(FlashOnGpu, Window) {
  for (const std::int64_t S : {1, 2, 5, 6, 7, 12, 127, 128, 129, 500})
    for (const std::int64_t w : {1, 6, 128, 600})
      for (const auto entry : {Entry::dense, Entry::varlen}) {
        SCOPED_TRACE("S " + std::to_string(S) + " w " + std::to_string(w) + " entry " +
                     std::to_string(static_cast<int>(entry)));
        expect_window(on_gpu({.B = 2, .S = S, .G = 2, .h = 3, .Dk = 64, .Dv = 64}, {4, 2, 8, 3, w}), entry);
      }
}

TEST_F(FlashOnGpu, PackedWindow) {
  for (const auto entry : {Entry::dense, Entry::varlen})
    expect_window(on_gpu({.S = 300, .G = 2, .h = 2, .Dk = 32, .Dv = 32}, kSmall, cu({0, 0, 1, 4, 4, 131, 300})), entry);
}

TEST_F(FlashOnGpu, Compressed) {
  for (const std::int64_t S : {4, 5, 6, 7, 8, 33, 127, 128, 129, 500}) {
    SCOPED_TRACE("S " + std::to_string(S));
    expect_compressed(on_gpu({.B = 2, .S = S, .G = 2, .h = 3, .Dk = 64, .Dv = 64}, kSmall));
  }
  expect_compressed(on_gpu({.S = 700, .G = 1, .h = 4, .Dk = 128, .Dv = 128}, {32, 16, 64, 16, 512}));
  expect_compressed(on_gpu({.S = 100, .G = 2, .h = 1, .Dk = 16, .Dv = 16}, {4, 4, 4, 3, 6}));
}

TEST_F(FlashOnGpu, PackedCompressed) {
  expect_compressed(on_gpu({.S = 300, .G = 2, .h = 2, .Dk = 32, .Dv = 32}, kSmall, cu({0, 0, 1, 4, 8, 11, 131, 300})));
  expect_compressed(on_gpu({.S = 9, .G = 2, .h = 2, .Dk = 32, .Dv = 32}, kSmall, cu({0, 4, 5, 9})));  // one block each
  expect_compressed(on_gpu({.S = 9, .G = 2, .h = 2, .Dk = 32, .Dv = 32}, kSmall, cu({0, 3, 6, 9})));  // none at all
}

TEST_F(FlashOnGpu, RefusesWhatItDoesNotServe) {
  auto in = on_gpu({.S = 20, .Dk = 64, .Dv = 64}, kSmall);
  for (auto* t : {&in.q, &in.k, &in.v}) *t = t->to(at::kFloat);
  EXPECT_NE(message_of([&] { static_cast<void>(attend_window(in.window(), Entry::dense)); }).find("bf16 is needed"),
            std::string::npos);
  const auto other = on_gpu({.S = 20, .Dk = 64, .Dv = 32}, kSmall);
  EXPECT_THROW(static_cast<void>(attend_window(other.window(), Entry::dense)), Unsupported);
  const auto brief = on_gpu({.S = 3, .Dk = 64, .Dv = 64}, kSmall);  // shorter than a block
  const auto kv = ops().compress(brief.compress());
  EXPECT_THROW(static_cast<void>(attend_compressed(brief.compressed(kv))), Unsupported);
}

}  // namespace
}  // namespace nsa::flash
