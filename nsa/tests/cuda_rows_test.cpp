// What stands before a launch: layouts, and refusals by name. Needs no GPU.
#include "nsa/cuda/rows.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/tests/fixtures.hpp"

namespace nsa::cuda {
namespace {

using fixtures::cu;
using fixtures::Inputs;
using fixtures::message_of;
using fixtures::random;
using testing::AllOf;
using testing::HasSubstr;

at::Tensor rows(at::IntArrayRef sizes) { return random(sizes, 1, at::kBFloat16); }

TEST(CudaRows, WhatLiesWellIsNotCopied) {
  const auto plain = rows({2, 5, 4, 64});
  for (const auto& t : {plain, plain.narrow(1, 1, 3), plain.narrow(2, 1, 2), plain.narrow(3, 32, 32),
                        plain.transpose(1, 2), plain.narrow(0, 0, 1).expand({3, -1, -1, -1})}) {
    EXPECT_TRUE(aligned(t).is_same(t)) << t.sizes() << t.strides();
    const auto r = rows_of("q", t);
    EXPECT_EQ(r.data, t.data_ptr());
    EXPECT_EQ(r.token, t.stride(1));
    EXPECT_EQ(r.head, t.stride(2));
  }
}

TEST(CudaRows, ADimensionOfOneHasNoStride) {
  const auto t = rows({3, 64}).as_strided({1, 3, 1, 64}, {7, 64, 13, 1});
  EXPECT_TRUE(aligned(t).is_same(t));
  EXPECT_EQ(rows_of("q", t).batch, 0);
  EXPECT_EQ(rows_of("q", t).head, 0);
}

TEST(CudaRows, WhatDoesNotIsCopiedAndKeepsItsGraph) {
  const auto wide = rows({2, 5, 4, 72}).requires_grad_();
  const std::vector<at::Tensor> all = {wide.narrow(3, 1, 64), wide.narrow(3, 0, 64).transpose(2, 3).narrow(3, 0, 4),
                                       rows({2, 5, 4, 65}).narrow(3, 0, 64), rows({2, 5, 4, 1}).expand({2, 5, 4, 64}),
                                       rows({2 * 5 * 4 * 64 + 1}).narrow(0, 1, 2 * 5 * 4 * 64).view({2, 5, 4, 64})};
  for (const auto& t : all) {
    if (t.size(3) % 8 != 0) continue;
    const auto copy = aligned(t);
    EXPECT_FALSE(copy.is_same(t));
    EXPECT_TRUE(at::equal(copy, t));
    EXPECT_EQ(copy.requires_grad(), t.requires_grad());
    EXPECT_NO_THROW((void)rows_of("q", copy));
    EXPECT_THAT(
        message_of([&] { (void)rows_of("k_sel", t); }),
        AllOf(HasSubstr("k_sel is BFloat16"), HasSubstr("strides"), HasSubstr("allowed: a dense last dimension")));
  }
  EXPECT_THROW((void)rows_of("q", rows({1, 2, 3, 12})), ContractError);
}

TEST(CudaRefuses, TheCpuByNameAndSaysWhatInstead) {
  const Inputs in({.S = 40, .Dk = 64, .Dv = 64}, 1, at::kBFloat16);
  const auto kv = reference::compress(in.compress());
  const auto o = at::zeros({1, 40, 1, 64}, at::kBFloat16);
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"compress", [&] { (void)compress(in.compress()); }},
      {"attend_compressed", [&] { (void)attend_compressed(in.compressed(kv)); }},
      {"select", [&] { (void)select(in.select(kv)); }},
      {"attend_selected", [&] { (void)attend_selected(in.selected(in.blocks())); }},
      {"attend_window", [&] { (void)attend_window(in.window()); }},
      {"combine", [&] {
         (void)combine({at::ones({1, 40, 1, 3}, at::kBFloat16), o, o, o});
       }}};
  for (const auto& [op, call] : calls) {
    EXPECT_THROW(call(), Unsupported) << op;
    EXPECT_THAT(message_of(call),
                AllOf(HasSubstr("does not serve this " + op + ":"), HasSubstr("device is cpu"), HasSubstr("use sdpa")));
  }
}

TEST(CudaRefuses, ABrokenContractBeforeAnythingElse) {
  Inputs in({.S = 40, .Dk = 64, .Dv = 64}, 1, at::kBFloat16);
  in.cu_seqlens = cu({0, 39});
  EXPECT_THROW((void)attend_window(in.window()), ContractError);
  EXPECT_THROW((void)compress(in.compress()), ContractError);
}

TEST(CudaRefuses, StatisticsOfAnotherShape) {
  const Inputs in({.S = 40, .Dk = 64, .Dv = 64}, 1, at::kBFloat16);
  const auto kv = reference::compress(in.compress());
  for (const auto& stats :
       {at::zeros({1, 1, 40}), at::zeros({1, 1, 39, 2}), at::zeros({1, 1, 40, 2}, at::kDouble), at::Tensor()}) {
    SelectArgs args = in.select(kv);
    args.stats = stats;
    EXPECT_THAT(message_of([&] { (void)reference::select(args); }),
                AllOf(HasSubstr("select: stats is "), HasSubstr("allowed: Float [1, 1, 40, 2] on the device of q")));
  }
}

TEST(CudaRefuses, LearnedCompressionGoesToSdpa) {
  const Inputs in({.S = 12, .Dk = 8, .Dv = 8}, 1, at::kFloat);
  CompressArgs args = in.compress();
  const PhiWeights phi{random({4, 8}, 2, at::kFloat), random({8, 32}, 3, at::kFloat), random({8, 8}, 4, at::kFloat)};
  args.phi_k = args.phi_v = phi;
  EXPECT_LE(fixtures::distance(compress(args).k, reference::compress(args).k), 1e-5);
}

}  // namespace
}  // namespace nsa::cuda
