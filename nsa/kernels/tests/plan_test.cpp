// What is planned (plan/README.md); nothing is launched. That attention's planned kernels are those that run is the
// oracle's to see, in every test of attention_test.cpp.
#include "nsa/kernels/plan/attention_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nsa/kernels/plan/norm_plan.hpp"
#include "nsa/kernels/plan/pool_plan.hpp"
#include "nsa/kernels/plan/select_plan.hpp"
#include "nsa/kernels/selected/lists_plan.hpp"
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

AttentionBackward parameters_of(const Problem& x) {
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
  return p;
}
Plans plans_of(const Problem& x) {
  const AttentionBackward p = parameters_of(x);
  return {plan_forward(p.forward, x.device), plan_backward(p, x.device).main};
}
bool same(const AttentionPlan& a, const AttentionPlan& b) {
  return a.variant == b.variant && a.rows_ahead == b.rows_ahead && a.workspace == b.workspace &&
         a.launches == b.launches && a.why == b.why;
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
TEST(AttentionPlan, PiecesAreCutByTheDevicesLimits) {
  const auto launches = [](Mask mask, const Limits& limits) {
    return plans_of({.S = 2048, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .mask = mask, .device = with(limits)})
        .backward.launches;
  };
  EXPECT_EQ(launches(Mask::window, {}), 3);
  EXPECT_EQ(launches(Mask::window, {.interval_piece_rows = 4096}), 2);  // a tile has 3456
  EXPECT_EQ(launches(Mask::window, {.wanted_ctas = 64}), 2);            // its 64 tiles are enough
  EXPECT_EQ(launches(Mask::window, {.resident_ctas = 64}), 2);          // a wave
  EXPECT_EQ(launches(Mask::selected, {}), launches(Mask::selected, {.shortest_piece = 2048}) + 1);
}

// Lists take one launch where they are small, which 45 blocks' bits of 90 words are, and three beyond.
TEST(AttentionPlan, CountsTheLaunchesOfItsLists) {
  const auto of_lists = [](int S) { return plans_of({.S = S, .dq = false}).backward.launches; };
  EXPECT_EQ(of_lists(2881), of_lists(2880) + 2);
}

// Where joint_kernel runs, Q and dO of the next tile of rows come ahead if there is room for them besides.
TEST(AttentionPlan, RowsComeAheadWhereTheyHaveRoom) {
  const auto ahead = [](const Problem& x) {
    const Plans plans = plans_of(x);
    return std::pair(plans.forward.rows_ahead, plans.backward.rows_ahead);
  };
  using Both = std::pair<bool, bool>;
  EXPECT_EQ(ahead({.S = 1600}), Both(true, false));  // 25 blocks
  EXPECT_EQ(ahead({.S = 1601}), Both(false, false));
  const auto m7c = [](int S, const Device& device) {
    return Problem{.S = S, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .device = device};
  };
  EXPECT_EQ(ahead(m7c(2048, with({}))), Both(true, true));
  EXPECT_EQ(ahead(m7c(65536, with({}))), Both(true, true));  // of what goes jointly as the device decides
  EXPECT_EQ(ahead(m7c(2048, kWithoutWgmma)), Both(false, false));
  EXPECT_EQ(ahead({.S = 1600, .expanded = true}), Both(false, false));  // nothing goes jointly
  EXPECT_EQ(ahead({.S = 1600, .mask = Mask::window}), Both(false, false));
  std::int64_t few = 0, enough = Limits().joint_bytes;
  while (enough - few > 1) {
    const std::int64_t middle = (few + enough) / 2;
    (ahead(m7c(2048, with({.joint_bytes = middle}))).first ? enough : few) = middle;
  }
  EXPECT_EQ(plans_of(m7c(2048, with({.joint_bytes = few}))).forward.variant, joint);  // a byte less: not ahead
}

TEST(AttentionPlan, DqGoesBesideDkAndDvWhereNoKernelMakesAll) {
  const auto beside = [](const Problem& x) {
    AttentionBackward p = parameters_of(x);
    p.forward.N = x.S;
    return plan_backward(p, x.device, /*captured=*/true).keys.has_value();
  };
  for (const Mask mask : {Mask::window, Mask::compressed, Mask::selected}) {
    const auto m7c = [&](int S, int B, const Limits& limits = {}) {
      return Problem{.S = S, .h = 6, .G = 2, .Dk = 64, .Dv = 64, .B = B, .mask = mask, .device = with(limits)};
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
    // Limits in rows.
    EXPECT_FALSE(beside({.S = 8192, .h = 8, .mask = mask, .device = with({.beside_rows = 8192 * 32 - 1})}));
    EXPECT_TRUE(beside({.S = 8192, .h = 8, .mask = mask, .device = with({.beside_rows = 8192 * 32})}));
    EXPECT_TRUE(beside(m7c(2048, 22, {.most_beside_rows = 2048 * 22 * 12})));
    EXPECT_FALSE(beside(m7c(2048, 22, {.most_beside_rows = 2048 * 22 * 12 - 1})));
  }
}
// Two parts are planned as calls of their own; in one goes what is not captured, and the plan of it is the same.
TEST_F(EveryPlan, GoesInOneUnlessCapturedAndThenInPartsOfItsOwn) {
  int parts = 0;
  for_all({.hopper = true, .sm_count = 132}, [&](const Problem& x, const Plans& plans) {
    const AttentionBackward p = parameters_of(x);
    EXPECT_FALSE(plan_backward(p, x.device, /*captured=*/false).keys);
    const BackwardPlan captured = plan_backward(p, x.device, /*captured=*/true);
    if (!captured.keys) {
      EXPECT_TRUE(same(captured.main, plans.backward));
      return;
    }
    ++parts;
    EXPECT_TRUE(same(captured.main, plan_backward(only_dq(p), x.device).main));
    EXPECT_TRUE(same(*captured.keys, plan_backward(only_dkv(p), x.device).main));
    EXPECT_EQ(captured.keys->variant == lists, x.mask == Mask::selected && x.Dk != 32);
  });
  EXPECT_GT(parts, 100);
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

Inverse table(int S, int J, int n = 3) {
  Inverse p;
  p.geometry.n = n;
  p.B = 2, p.S = S, p.G = 2, p.J = J;
  return p;
}

TEST(InversePlan, TakesOneLaunchWhereListsAreSmall) {
  const auto launches = [](const Inverse& p) { return InversePlan(p).launches; };
  EXPECT_EQ(launches(table(64, 512)), 1);
  EXPECT_EQ(launches(table(64, 513)), 3);
  EXPECT_EQ(launches(table(32 * 64, 64)), 1);  // 4096 words of bits
  EXPECT_EQ(launches(table(32 * 64 + 1, 64)), 3);
  EXPECT_EQ(launches(table(4096, 32, 16)), 1);  // 65,536 numbers
  EXPECT_EQ(launches(table(4096, 32, 17)), 3);
  EXPECT_EQ(launches(table(0, 64)), 0);
  EXPECT_EQ(launches(table(64, 0)), 0);
  // A set is small or not, however many there are.
  Inverse p = table(100000, 32, 16);
  EXPECT_EQ(launches(p), 3);
  p.stretch = 4096;
  EXPECT_EQ(launches(p), 1);
  EXPECT_EQ(InversePlan(p).sets, 2 * 2 * 25);
}

// The workspace and the launches of the most pairs and tokens do for fewer, as a last slice or range has.
TEST(InversePlan, OfLessNeedsNoMore) {
  for (const int J : {1, 64, 500, 513, 3000, 20000})
    for (const int S : {1, 300, 4096, 70000}) {
      const InversePlan most(table(S, J));
      for (int end = 1; end < S; end += 1 + S / 20)
        for (const int B : {1, 2}) {
          Inverse p = table(S, J);
          p.B = B, p.end = end;
          const InversePlan own(p);
          EXPECT_LE(own.launches, most.launches) << J << " " << S << " " << end;
          const std::int64_t needed = (own.sets + own.sets * own.chunks * J) * 4;
          EXPECT_LE(needed, most.workspace) << J << " " << S << " " << end;
          if (own.launches == 3) {
            EXPECT_GE(own.chunks * own.parts * InversePlan::kPartTokens, own.stretch);
          }
        }
    }
}

TEST(PoolPlan, FewOutputsAreFewerThanTwoCtasForEachSm) {
  Pool p;
  p.count = 2, p.tensors[0].D = 64, p.tensors[1].D = 128;  // 16 threads for the wider one's row
  p.B = 1, p.G = 2;
  p.N = 1055;
  EXPECT_TRUE(pools_few(p));
  p.N = 1056;  // 264 * 256 threads
  EXPECT_FALSE(pools_few(p));
  p.count = 1;
  EXPECT_TRUE(pools_few(p));
}

TEST(NormPlan, TakesTheSmallestTeamThatHoldsARow) {
  struct Held {
    int width, warps, chunks;
  };
  for (const Held& x : {Held{8, 1, 1},
                        {256, 1, 1},
                        {264, 1, 2},
                        {512, 1, 2},
                        {520, 1, 3},
                        {768, 1, 3},
                        {776, 1, 4},
                        {1024, 1, 4},
                        {1032, 4, 2},
                        {2048, 4, 2},
                        {2056, 4, 4},
                        {4096, 4, 4},
                        {4104, 8, 4},
                        {kWidestNorm, 8, 4}}) {
    EXPECT_EQ(norm_team(x.width).warps, x.warps) << x.width;
    EXPECT_EQ(norm_team(x.width).chunks, x.chunks) << x.width;
  }
}
TEST(NormPlan, ItsCtasAreAllOnTheirSmsAtOnce) {
  const auto ctas = [](std::int64_t rows, int width) { return plan_norm_backward(rows, width, kWithWgmma).ctas; };
  EXPECT_EQ(ctas(0, 768), 0);
  EXPECT_EQ(ctas(1, 768), 1);
  EXPECT_EQ(ctas(17, 768), 2);  // 8 teams of a CTA have two rows each
  EXPECT_EQ(ctas(1 << 20, 768), 2 * 132);
  EXPECT_EQ(ctas(17, 2048), 9);  // one team
  EXPECT_EQ(ctas(1 << 20, 2048), 4 * 132);
  EXPECT_EQ(ctas(1 << 20, kWidestNorm), 2 * 132);
  EXPECT_EQ(plan_norm_backward(17, 768, kWithWgmma).workspace, 2 * 768);
  EXPECT_TRUE(plan_norm_backward(17, 768, kWithWgmma).early);
  EXPECT_FALSE(plan_norm_backward(0, 768, kWithWgmma).early);
  EXPECT_FALSE(plan_norm_backward(17, 768, kWithoutWgmma).early);
}

}  // namespace
}  // namespace nsa::kernels
