// What is planned for a call of attention (plan/attention_plan.hpp); nothing is launched. That the planned kernels are
// those that run is the oracle's to see, in every test of attention_test.cpp.
#include "nsa/kernels/plan/attention_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "nsa/kernels/plan/select_plan.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"
// It wants CUDA's words.
#include "nsa/kernels/device/rounds.cuh"

namespace nsa::kernels {
namespace {

using enum Variant;

struct Problem {
  int S = 8192, h = 16, G = 4, Dk = 128, Dv = 128, B = 1;
  Mask mask = Mask::selected;
  bool packed = false, expanded = false;
  bool dq = true, dk = true, dv = true;
  Device device = {.hopper = true, .sm_count = 132};
};
struct Plans {
  AttentionPlan forward, backward;
};

Plans plans_of(const Problem& x) {
  static char memory = 0;
  static const int document = 0;
  const Rows some{&memory, 1 << 30, 8192, 128};
  AttentionBackward p{{}, some, nullptr, some, some, some, nullptr};
  AttentionForward& f = p.forward;
  f.q = f.k = f.v = some;
  if (x.expanded) f.k.head = 0;
  if (x.packed) f.packed.first_token = &document;
  if (!x.dq) p.dq = {};
  if (!x.dk) p.dk = {};
  if (!x.dv) p.dv = {};
  f.mask = x.mask;
  f.B = x.B, f.S = x.S, f.Hq = x.h * x.G, f.G = x.G, f.Dk = x.Dk, f.Dv = x.Dv;
  f.N = x.mask == Mask::compressed ? std::max(0, (x.S - f.geometry.l) / f.geometry.d + 1) : x.S;
  return {plan_forward(f, x.device), plan_backward(p, x.device)};
}

Device with(const Limits& limits) { return {.hopper = true, .sm_count = 132, .limits = limits}; }
constexpr Device kWithoutWgmma{.hopper = false, .sm_count = 108};

struct Row {
  Problem problem;
  Variant forward, backward;
};

TEST(AttentionPlan, TakesTheVariantOfItsTable) {
  const std::vector<Row> rows = {
      // Up to 11 tiles of keys a head jointly, 192 at most; backward up to 80.
      {{.S = 1}, joint, joint},
      {{.S = 5120}, joint, joint},
      {{.S = 5121}, joint, joint_or_merged_parts},
      {{.S = 11264}, joint, joint_or_merged_parts},
      {{.S = 11265}, joint_or_parts, joint_or_merged_parts},
      {{.S = 131072}, joint_or_parts, joint_or_merged_parts},
      {{.S = 262144}, joint_or_parts, joint_or_parts},  // a pair's sums are too large
      {{.S = 1000000}, joint_or_parts, joint_or_parts},
      {{.S = 4224, .h = 6}, joint, joint},
      {{.S = 4225, .h = 6}, joint_or_parts, joint_or_merged_parts},
      {{.S = 704, .h = 1}, joint, joint},
      {{.S = 4096, .h = 1}, joint, joint},  // as many as always go jointly
      {{.S = 4097, .h = 1}, joint_or_parts, joint_or_merged_parts},
      {{.S = 262144, .Dk = 64, .Dv = 64}, joint_or_parts, joint_or_merged_parts},
      {{.S = 524288, .Dk = 64, .Dv = 64}, joint_or_parts, joint_or_parts},
      // Wider heads have no merged pass, width 32 no wgmma.
      {{.S = 4096, .Dk = 192}, joint, joint},
      {{.S = 65536, .Dk = 192}, joint_or_parts, joint_or_parts},
      {{.Dk = 32, .Dv = 32}, mma_sync, mma_sync},
      {{.Dk = 32, .Dv = 32, .mask = Mask::window}, mma_sync, mma_sync},
      // Some gradients alone.
      {{.S = 65536, .dk = false, .dv = false}, joint_or_parts, joint_or_parts},
      {{.S = 65536, .dq = false}, joint_or_parts, lists},
      {{.S = 65536, .dv = false}, joint_or_parts, joint_or_parts},
      // What jointly cannot be.
      {{.expanded = true}, parts, merged_parts},
      {{.S = 100, .expanded = true}, parts, merged_parts},
      {{.S = 65536, .Dk = 192, .expanded = true}, parts, parts},
      {{.device = with({.joint_bytes = 0})}, parts, merged_parts},
      {{.device = with({.joint_bytes = 0, .sums_bytes = 0})}, parts, parts},
      {{.S = 65536, .device = with({.sums_bytes = 0})}, joint_or_parts, joint_or_parts},
      {{.S = 65536, .device = with({.joint_tiles = 1 << 20, .joint_tiles_a_head = 1 << 20})},
       joint,
       joint_or_merged_parts},
      {{.S = 8192, .packed = true}, joint, joint_or_merged_parts},
      // Over intervals.
      {{.mask = Mask::window}, intervals, merged_intervals},
      {{.mask = Mask::compressed}, intervals, merged_intervals},
      {{.S = 512, .mask = Mask::window}, intervals, intervals},
      {{.S = 1 << 20, .mask = Mask::window}, intervals, intervals},
      {{.S = 16, .mask = Mask::compressed}, intervals, intervals},
      {{.Dk = 192, .mask = Mask::window}, intervals, intervals},
      {{.Dk = 64, .Dv = 64, .mask = Mask::window}, intervals, intervals},
      {{.S = 2079, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .B = 8, .mask = Mask::compressed}, intervals, merged_intervals},
      {{.S = 2080, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .B = 8, .mask = Mask::compressed}, intervals, intervals},
      {{.S = 2048, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .mask = Mask::compressed}, intervals, intervals},
      {{.mask = Mask::window, .packed = true}, intervals, intervals},
      {{.mask = Mask::window, .expanded = true}, mma_sync, intervals},
      {{.mask = Mask::window, .dv = false}, intervals, intervals},
      {{.S = 512, .mask = Mask::window, .device = with({.interval_steps = 0})}, intervals, merged_intervals},
      {{.mask = Mask::window, .device = with({.interval_bytes = 1 << 20})}, intervals, intervals},
      {{.device = kWithoutWgmma}, mma_sync, mma_sync},
      {{.mask = Mask::window, .device = kWithoutWgmma}, mma_sync, mma_sync},
      {{.mask = Mask::compressed, .device = kWithoutWgmma}, mma_sync, mma_sync},
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [forward, backward] = plans_of(rows[i].problem);
    EXPECT_EQ(to_string(forward.variant), to_string(rows[i].forward)) << i << ", because: " << forward.why;
    EXPECT_EQ(to_string(backward.variant), to_string(rows[i].backward)) << i << ", because: " << backward.why;
  }
}

class EveryPlan : public testing::Test {
 protected:
  // Calls each(problem, its plans) for problems of all sizes.
  template <typename Each>
  static void for_all(const Device& device, Each&& each) {
    struct Widths {
      int Dk, Dv;
    };
    for (const auto& [Dk, Dv] : {Widths{32, 32}, {64, 64}, {128, 128}, {192, 128}})
      for (const Mask mask : {Mask::window, Mask::compressed, Mask::selected})
        for (const int h : {1, 2, 3, 4, 6, 8, 13, 16})
          for (const int S : {1, 63, 64, 65, 500, 4096, 4097, 11265, 32768, 100000, 1000000})
            for (const bool odd : {false, true}) {
              const Problem x{
                  .S = S, .h = h, .Dk = Dk, .Dv = Dv, .mask = mask, .packed = odd, .expanded = odd, .device = device};
              SCOPED_TRACE("mask " + std::to_string(static_cast<int>(mask)) + ", S " + std::to_string(S) + ", h " +
                           std::to_string(h) + ", widths " + std::to_string(Dk) + "/" + std::to_string(Dv));
              each(x, plans_of(x));
            }
  }
};

TEST_F(EveryPlan, StaysWithinItsBoundsAndSaysWhy) {
  for_all({.hopper = true, .sm_count = 132}, [](const Problem&, const Plans& plans) {
    for (const AttentionPlan& plan : {plans.forward, plans.backward}) {
      EXPECT_GE(plan.workspace, 0);
      EXPECT_LE(plan.workspace, std::int64_t{512} << 20);
      EXPECT_GE(plan.launches, 1);
      EXPECT_FALSE(plan.why.empty());
    }
  });
}
TEST_F(EveryPlan, IsTheSameTheSecondTime) {
  for_all({.hopper = true, .sm_count = 132}, [](const Problem& x, const Plans& plans) {
    const Plans again = plans_of(x);
    const auto same = [](const AttentionPlan& a, const AttentionPlan& b) {
      return a.variant == b.variant && a.workspace == b.workspace && a.launches == b.launches && a.why == b.why;
    };
    EXPECT_TRUE(same(plans.forward, again.forward) && same(plans.backward, again.backward));
  });
}
TEST_F(EveryPlan, NeedsNoWgmmaWhereThereIsNone) {
  for_all(kWithoutWgmma, [](const Problem&, const Plans& plans) {
    EXPECT_EQ(plans.forward.variant, mma_sync);
    EXPECT_EQ(plans.backward.variant, mma_sync);
  });
}

// Kernels of mma.sync that device/hopper.hpp leaves out of sm_90a's code.
TEST_F(EveryPlan, LaunchesNothingThatHopperHasNoCodeOf) {
  for_all({.hopper = true, .sm_count = 132}, [](const Problem& x, const Plans& plans) {
    if (x.Dk % 64 != 0) return;
    if (x.mask == Mask::selected) {
      EXPECT_NE(plans.forward.variant, mma_sync);
    }
    EXPECT_NE(plans.backward.variant, mma_sync);
  });
}

TEST(AttentionPlan, CountsItsKernels) {
  EXPECT_EQ(plans_of({.S = 4096}).forward.launches, 1);
  EXPECT_EQ(plans_of({.mask = Mask::window}).forward.launches, 1);
  // Two that decide and go jointly; for each chunk of 4096 tokens behind the first one and each of 4 groups two more.
  EXPECT_GE(plans_of({.S = 65536}).forward.launches, 2 + 15 * 4 * 2);
  EXPECT_LE(plans_of({.S = 65536}).forward.launches, 200);
}

// Where CTAs of a window's tiles of keys fill whole waves nothing is cut, and no launch adds pieces.
TEST(AttentionPlan, AWindowIsCutAsWavesWant) {
  const auto launches = [](int S, int B) {
    return plans_of({.S = S, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .B = B, .mask = Mask::window}).backward.launches;
  };
  EXPECT_EQ(launches(2048, 1), 3);  // 64 tiles of keys
  EXPECT_EQ(launches(2048, 2), 3);
  EXPECT_EQ(launches(2048, 4), 2);  // 256
  EXPECT_EQ(launches(2048, 8), 2);
  EXPECT_EQ(launches(8192, 1), 2);
  EXPECT_EQ(launches(65536, 1), 2);
}

TEST(AttentionPlan, DqGoesBesideDkAndDvWhereNoKernelMakesAll) {
  const auto beside = [](const Problem& x) {
    const Rows some{const_cast<Problem*>(&x), 1 << 30, 8192, 128};
    AttentionBackward p{{}, some, nullptr, x.dq ? some : Rows{}, x.dk ? some : Rows{}, x.dv ? some : Rows{}, nullptr};
    AttentionForward& f = p.forward;
    f.q = f.k = f.v = some, f.mask = x.mask;
    f.B = x.B, f.S = x.S, f.N = x.S, f.Hq = x.h * x.G, f.G = x.G, f.Dk = x.Dk, f.Dv = x.Dv;
    return goes_beside(p, x.device);
  };
  for (const Mask mask : {Mask::window, Mask::compressed, Mask::selected}) {
    const auto m7c = [&](int S, int B) {
      return Problem{.S = S, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .B = B, .mask = mask};
    };
    EXPECT_TRUE(beside(m7c(2048, 1)));
    EXPECT_TRUE(beside(m7c(2048, 8)));
    EXPECT_TRUE(beside(m7c(2048, 21)));
    EXPECT_FALSE(beside(m7c(2048, 22)));  // too long for the last CTAs to matter
    Problem some = m7c(2048, 8);
    some.dq = false;
    EXPECT_FALSE(beside(some));
    some.dq = true, some.dk = false;
    EXPECT_TRUE(beside(some));
    some.dv = false;
    EXPECT_FALSE(beside(some));
    // One kernel makes all three, but for the selected branch up to 80 tiles of keys.
    EXPECT_EQ(beside({.S = 4096, .mask = mask}), mask == Mask::selected);
    EXPECT_FALSE(beside({.S = 8192, .h = 8, .mask = mask}));
    EXPECT_TRUE(beside({.S = 1024, .mask = mask}));  // few rows, whatever kernel
  }
}

// Note [There and back]
TEST(Rounds, TakeEveryTileOnceAndShareFallingCosts) {
  for (const int ctas : {1, 2, 3, 132})
    for (const int tiles : {1, 2, 5, 131, 132, 133, 1024}) {
      std::vector<int> taken(static_cast<std::size_t>(tiles));
      std::vector<std::int64_t> cost(static_cast<std::size_t>(ctas));
      for (int cta = 0; cta < ctas; ++cta)
        for (int round = 0, tile = 0; (tile = hopper::tile_of_round(round, cta, ctas)) < tiles; ++round) {
          ++taken[static_cast<std::size_t>(tile)];
          cost[static_cast<std::size_t>(cta)] += tiles - tile;
        }
      EXPECT_TRUE(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }))
          << tiles << " " << ctas;
      if (tiles < 7 * ctas) continue;
      const double mean = 0.5 * tiles * (tiles + 1) / ctas;
      EXPECT_LE(static_cast<double>(*std::max_element(cost.begin(), cost.end())), 1.03 * mean) << tiles << " " << ctas;
    }
}

TEST(AttentionPlan, RefusesWidthsThatNoKernelHas) {
  for (const Mask mask : {Mask::window, Mask::selected})
    EXPECT_THROW(static_cast<void>(plans_of({.Dk = 48, .Dv = 48, .mask = mask})), std::invalid_argument);
}

Select choice(int Dk, int h, Geometry geometry = {}) {
  static char memory = 0;
  Select p;
  p.q = p.k_cmp = Rows{&memory, 1 << 30, 8192, 128};
  p.geometry = geometry;
  p.B = 1, p.S = 8192, p.N = 511, p.Hq = 2 * h, p.G = 2, p.Dk = Dk;
  return p;
}
constexpr Device kWithWgmma{.hopper = true, .sm_count = 132};

TEST(SelectPlan, TakesTheKernelOfItsTable) {
  const auto expect = [](const Select& p, const Device& device, SelectVariant variant, const char* why) {
    const SelectPlan plan = plan_select(p, device);
    EXPECT_EQ(to_string(plan.variant), to_string(variant)) << why;
    EXPECT_EQ(plan.why, why);
    EXPECT_EQ(plan.launches, 1);
  };
  for (const int Dk : {64, 128, 192}) expect(choice(Dk, 6), kWithWgmma, SelectVariant::wgmma, "the device has wgmma");
  expect(choice(32, 6), kWithWgmma, SelectVariant::mma_sync, "width 32");
  expect(choice(64, 6), kWithoutWgmma, SelectVariant::mma_sync, "the device has no wgmma");
  expect(choice(64, 6, {16, 16, 64, 16, 512}), kWithWgmma, SelectVariant::mma_sync,
         "not the paper's proportions (l = 2d, l' = 4d)");
  Select p = choice(64, 6);
  p.N = 0;
  expect(p, kWithWgmma, SelectVariant::mma_sync, "no compressed keys");
  p = choice(64, 6);
  p.k_cmp.head = 0;
  expect(p, kWithWgmma, SelectVariant::mma_sync, "the compressed keys are expanded");
  p = choice(64, 6);
  p.B = 1 << 17;
  expect(p, kWithWgmma, SelectVariant::mma_sync, "2^31 tokens and groups");
}

TEST(SelectPlan, HasRowsForAllHeadsOfAGroup) {
  for (int h = 1; h <= 16; ++h) {
    const int pairs = (h + 1) / 2, wgmma = plan_select(choice(128, h), kWithWgmma).pairs,
              mma = plan_select(choice(128, h), kWithoutWgmma).pairs;
    EXPECT_EQ(wgmma, pairs <= 3 ? 3 : pairs <= 4 ? 4 : pairs <= 6 ? 6 : 8) << h;
    EXPECT_EQ(mma, pairs <= 3 ? 3 : pairs <= 4 ? 4 : 8) << h;
  }
}

TEST(SelectPlan, WithoutTokensNothingIsLaunched) {
  Select p = choice(64, 6);
  p.S = 0;
  EXPECT_EQ(plan_select(p, kWithWgmma).launches, 0);
}

TEST(SelectPlan, RefusesWhatNoKernelServes) {
  for (const Select& p : {choice(96, 6), choice(64, 17), choice(64, 6, {32, 16, 64, 2, 512}),
                          choice(64, 6, {32, 16, 64, kMostBlocks + 1, 512}), choice(64, 6, {40, 16, 64, 16, 512}),
                          choice(64, 6, {32, 16, 16, 16, 512})})
    EXPECT_THROW((void)plan_select(p, kWithWgmma), std::invalid_argument);
}

}  // namespace
}  // namespace nsa::kernels
