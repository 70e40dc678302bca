#include "nsa/route.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "nsa/tests/gpu_call.hpp"

namespace {

using nsa::Backend;
using nsa::Call;
using nsa::EffectiveFlags;
using nsa::Op;
using nsa::Precision;
using nsa::RouteVariant;
using nsa::fixtures::gpu_call;
using testing::HasSubstr;

// Our own kernels, which take what nobody asked for by name, have tests of their own (cuda_features_test.cpp).
EffectiveFlags resolve(nsa::Environment environment) {
  environment.emplace("NSA_USE_CUDA", "0");
  return nsa::resolve(environment);
}

EffectiveFlags flash_flags() { return resolve({{"NSA_USE_FA2", "1"}}); }

TEST(Route, WithoutOurKernelsItIsSdpaAndSaysWhy) {
  const auto route = nsa::route(resolve({}), gpu_call());
  for (const Op op : nsa::kAllOps) EXPECT_EQ(route[op].backend, Backend::sdpa) << to_string(op);
  EXPECT_EQ(route[Op::attend_window].why, "flash not asked for (default)");
  EXPECT_EQ(route[Op::attend_selected].variant, RouteVariant::packed);
}

TEST(Route, FlashWhereItIsAskedForAndServed) {
  const auto route = nsa::route(flash_flags(), gpu_call());
  EXPECT_EQ(route[Op::attend_window].backend, Backend::flash);
  EXPECT_EQ(route[Op::attend_window].variant, RouteVariant::dense);
  EXPECT_EQ(route[Op::attend_window].why, "NSA_USE_FA2=1");
  EXPECT_EQ(route[Op::attend_compressed].backend, Backend::flash);
  EXPECT_EQ(route[Op::attend_compressed].variant, RouteVariant::varlen);
  for (const Op op : {Op::compress, Op::select, Op::attend_selected, Op::combine})
    EXPECT_EQ(route[op].backend, Backend::sdpa) << to_string(op);
}

TEST(Route, ABranchFollowsItsOwnFlag) {
  const auto no_window = nsa::route(resolve({{"NSA_USE_FA2", "1"}, {"NSA_USE_FA2_WIN", "0"}}), gpu_call());
  EXPECT_EQ(no_window[Op::attend_window].backend, Backend::sdpa);
  EXPECT_EQ(no_window[Op::attend_window].why, "flash not asked for (NSA_USE_FA2_WIN=0)");
  EXPECT_EQ(no_window[Op::attend_compressed].backend, Backend::flash);
  const auto window = nsa::route(resolve({{"NSA_USE_FA2_WIN", "1"}}), gpu_call());
  EXPECT_EQ(window[Op::attend_window].backend, Backend::flash);
  EXPECT_EQ(window[Op::attend_compressed].backend, Backend::sdpa);
}

TEST(Route, RefusalsGoToSdpaInWords) {
  const auto why = [](auto change) {
    Call call = gpu_call();
    change(call);
    const auto route = nsa::route(flash_flags(), call);
    EXPECT_EQ(route[Op::attend_window].backend, Backend::sdpa);
    EXPECT_EQ(route[Op::attend_compressed].backend, Backend::sdpa);
    EXPECT_EQ(route[Op::attend_window].why, route[Op::attend_compressed].why);
    return route[Op::attend_window].why;
  };
  EXPECT_EQ(why([](Call& c) { c.cuda = false; }), "flash refused: device is cpu");
  EXPECT_EQ(why([](Call& c) { c.cuda_major = 7, c.cuda_minor = 5; }),
            "flash refused: compute capability 7.5 is below 8.0");
  EXPECT_EQ(why([](Call& c) { c.precision = Precision::fp32; }), "flash refused: precision is fp32, bf16 is needed");
  EXPECT_EQ(why([](Call& c) { c.precision = Precision::fp64; }), "flash refused: precision is fp64, bf16 is needed");
  EXPECT_EQ(why([](Call& c) { c.Dk = 192, c.Dv = 128; }), "flash refused: d_k 192 differs from d_v 128");
  EXPECT_THAT(why([](Call& c) { c.Dk = c.Dv = 20; }), HasSubstr("head width 20 is not a multiple of 8"));
  EXPECT_THAT(why([](Call& c) { c.Dk = c.Dv = 264; }), HasSubstr("head width 264"));
  EXPECT_THAT(why([](Call& c) { c.Dk = c.Dv = 208, c.cuda_major = 8, c.cuda_minor = 9, c.training = true; }),
              HasSubstr("no backward for head width 208 on compute capability 8.9"));
}

TEST(Route, WidthsThatFlashServes) {
  for (const std::int64_t width : {8, 16, 64, 128, 256}) {
    Call call = gpu_call();
    call.Dk = call.Dv = width;
    call.training = true;
    EXPECT_EQ(nsa::flash_refusal(call, Op::attend_window), "") << width;
  }
  EXPECT_THAT(nsa::flash_refusal(gpu_call(), Op::select), HasSubstr("does not serve select"));
}

TEST(Route, MinimalLengths) {
  const auto backend = [](std::int64_t S, const char* min_len) {
    Call call = gpu_call();
    call.S = S;
    return nsa::route(resolve({{"NSA_USE_FA2", "1"}, {"NSA_FA2_MIN_LEN_WIN", min_len}}), call)[Op::attend_window];
  };
  EXPECT_EQ(backend(512, "512").backend, Backend::flash);
  EXPECT_EQ(backend(511, "512").why, "flash refused: length 511 is below NSA_FA2_MIN_LEN_WIN=512");
  EXPECT_EQ(backend(2048, "0").why, "flash refused: NSA_FA2_MIN_LEN_WIN=0 disables it");
  EXPECT_EQ(backend(2048, "-1").backend, Backend::sdpa);
}

TEST(Route, NoCompressedBlockNoFlash) {
  Call call = gpu_call();
  call.S = 31;
  const auto route = nsa::route(flash_flags(), call);
  EXPECT_EQ(route[Op::attend_window].backend, Backend::flash);
  EXPECT_EQ(route[Op::attend_compressed].why, "flash refused: no compressed block at length 31 (l = 32)");
  const nsa::Refused refused{Op::attend_compressed, Backend::flash, "no compressed block at length 31 (l = 32)"};
  for (const Op op : nsa::kAllOps) {
    const bool has_it = op == Op::attend_compressed || op == Op::attend;  // attend has its parts'
    EXPECT_EQ(route[op].refused, has_it ? std::vector{refused} : std::vector<nsa::Refused>{}) << to_string(op);
  }
}

TEST(Route, EntryPointOfTheWindow) {
  Call packed = gpu_call();
  packed.packed = true;
  EXPECT_EQ(nsa::route(flash_flags(), packed)[Op::attend_window].variant, RouteVariant::varlen);
  const auto forced = resolve({{"NSA_USE_FA2", "1"}, {"NSA_FA2_FORCE_VARLEN", "1"}});
  EXPECT_EQ(nsa::route(forced, gpu_call())[Op::attend_window].variant, RouteVariant::varlen);
  const auto dense = resolve({{"NSA_USE_FA2", "1"}, {"NSA_FA2_FORCE_DENSE", "1"}});
  EXPECT_EQ(nsa::route(dense, gpu_call())[Op::attend_window].variant, RouteVariant::dense);
  EXPECT_THAT(nsa::route(dense, packed)[Op::attend_window].why, HasSubstr("a packed batch needs the varlen entry"));
}

TEST(Route, ForceParityIsReferenceEverywhere) {
  const auto flags = resolve({{"NSA_FORCE_PARITY", "1"}, {"NSA_USE_FA2", "1"}, {"NSA_FORCE_SEL_MASK", "1"}});
  const auto route = nsa::route(flags, gpu_call());
  for (const Op op : nsa::kAllOps) {
    EXPECT_EQ(route[op].backend, Backend::reference) << to_string(op);
    EXPECT_EQ(route[op].why, "NSA_FORCE_PARITY");
  }
}

TEST(Route, WaysOfTheSelectedBranch) {
  const auto choice = [](const nsa::Environment& environment, bool training) {
    Call call = gpu_call();
    call.training = training;
    return nsa::route(resolve(environment), call)[Op::attend_selected];
  };
  EXPECT_EQ(choice({}, false).variant, RouteVariant::packed);
  EXPECT_EQ(choice({}, true).variant, RouteVariant::packed_safe);
  EXPECT_EQ(choice({{"NSA_TRAIN_SAFE_PACK", "1"}}, false).variant, RouteVariant::packed_safe);
  EXPECT_EQ(choice({{"NSA_FORCE_SEL_MASK", "1"}}, true).variant, RouteVariant::masked);
  EXPECT_EQ(choice({{"NSA_FORCE_SEL_MASK", "1"}}, true).why, "NSA_FORCE_SEL_MASK=1");
  EXPECT_EQ(choice({{"NSA_USE_SEL_PACK", "0"}, {"NSA_USE_SEL_MASK", "1"}}, false).variant, RouteVariant::masked);
}

TEST(Route, GatheredBytesByHand) {
  Call call = gpu_call();
  // 128 values of 2 bytes, 16 blocks of 64 tokens: 262144 bytes a row; 4096 rows, with gradients and without.
  EXPECT_EQ(nsa::gathered_selection_bytes(call), std::int64_t{1} << 30);
  call.training = true;
  EXPECT_EQ(nsa::gathered_selection_bytes(call), std::int64_t{1} << 30);
  call.S = 8192;
  EXPECT_EQ(nsa::gathered_selection_bytes(call), std::int64_t{1} << 32);
  call.training = false;
  EXPECT_EQ(nsa::gathered_selection_bytes(call), std::int64_t{1} << 30);
  call.precision = Precision::fp64;
  call.S = 3;
  EXPECT_EQ(nsa::gathered_selection_bytes(call), 3 * 2 * 128 * 8 * 1024);
  call.B = call.S = std::numeric_limits<std::int64_t>::max() / 2;
  call.training = true;
  EXPECT_EQ(nsa::gathered_selection_bytes(call), std::numeric_limits<std::int64_t>::max());
}

TEST(Route, GatheringBeyondTheBudgetIsRefusedWithItsBytes) {
  Call call = gpu_call();
  call.training = true;
  call.S = 4096;  // exactly the budget
  EXPECT_EQ(nsa::route(resolve({}), call)[Op::attend_selected].variant, RouteVariant::packed_safe);
  call.S = 4097;
  const auto choice = nsa::route(resolve({}), call)[Op::attend_selected];
  EXPECT_EQ(choice.variant, RouteVariant::masked);
  EXPECT_EQ(choice.why, "gathering refused: it would hold 2148007936 bytes, the budget is 2147483648");
}

}  // namespace
