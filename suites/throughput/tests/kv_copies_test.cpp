#include "suites/throughput/kv_copies.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace suites::throughput_cases {
namespace {

constexpr std::int64_t B = 2, S = 13, G = 2, D = 8, h = 3;
constexpr std::int64_t kOnce = B * S * G * D * 4;

KvPattern pattern(at::ScalarType type = at::kFloat) { return kv_pattern({B, S, G, D}, {B, S, G, D}, at::dtype(type)); }

TEST(KvCopies, ViewsAreNone) {
  const KvPattern p = pattern();
  EXPECT_TRUE(kv_copies(p, [&] {
                (void)p.k.transpose(1, 2).unsqueeze(2).expand({B, G, h, S, D});
                (void)p.v.narrow(1, 3, 4).permute({0, 2, 1, 3});
              }).empty());
}

TEST(KvCopies, AnExpansionIsCountedOnceForEveryHeadAndNamed) {
  const KvPattern p = pattern();
  const auto copies = kv_copies(p, [&] { (void)p.k.repeat_interleave(h, 2).contiguous().transpose(1, 2); });
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(copies[0].bytes, h * kOnce);
  EXPECT_EQ(copies[0].op, "aten::repeat_interleave");
}

TEST(KvCopies, ExpandAndReshapeIsSeenForValuesToo) {
  const KvPattern p = pattern();
  const auto copies = kv_copies(p, [&] {
    (void)p.v.unsqueeze(3).expand({B, S, G, h, D}).reshape({B, S, G * h, D}).sum();
  });
  EXPECT_EQ(total_bytes(copies), h * kOnce);
}

TEST(KvCopies, ACopyInAnotherTypeOrWithPaddingIsOne) {
  const KvPattern p = pattern(at::kBFloat16);
  const auto copies = kv_copies(p, [&] {
    (void)p.k.to(at::kFloat);
    (void)at::constant_pad_nd(p.v.reshape({-1, D}), {0, 0, 0, 5});
  });
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(total_bytes(copies), kOnce + (B * S * G + 5) * D * 2);
}

TEST(KvCopies, WhatIsComputedFromKAndVIsNone) {
  const KvPattern p = pattern();
  const at::Tensor q = at::randn({B, G, S, D});
  const auto copies = kv_copies(p, [&] {
    (void)at::scaled_dot_product_attention(q, p.k.transpose(1, 2), p.v.transpose(1, 2), {}, 0, /*is_causal=*/true);
    (void)(p.k * q.transpose(1, 2));
  });
  EXPECT_EQ(total_bytes(copies), 0) << copies[0].op;
}

TEST(KvCopies, MemoryThatIsReusedIsRecognisedAndFreshMemoryNever) {
  const KvPattern p = pattern();
  at::Tensor workspace = at::empty({B * S * G, D});
  const at::Tensor index = at::arange(B * S * G);
  const auto reuse = [&] {
    return kv_copies(p, [&] { at::index_select_out(workspace, p.k.view({-1, D}), 0, index); });
  };
  const auto fresh = [&] { return kv_copies(p, [&] { (void)p.k.view({-1, D}).index_select(0, index); }); };
  const auto a = reuse(), b = reuse(), c = fresh(), d = fresh();
  ASSERT_EQ(a.size(), 1U);
  ASSERT_EQ(d.size(), 1U);
  EXPECT_TRUE(a[0].same_memory(b[0]));
  EXPECT_FALSE(c[0].same_memory(d[0]));
  EXPECT_FALSE(a[0].same_memory(c[0]));
}

TEST(KvCopies, AFailingCallEndsTheRecording) {
  const KvPattern p = pattern();
  EXPECT_THROW((void)kv_copies(p, [&] { (void)p.k.matmul(at::ones({3})); }), c10::Error);
  EXPECT_EQ(total_bytes(kv_copies(p, [&] { (void)p.k.clone(); })), kOnce);
}

}  // namespace
}  // namespace suites::throughput_cases
