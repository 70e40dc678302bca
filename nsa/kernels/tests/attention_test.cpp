// The attention kernels, emulated, on problems of every kind and by every way; and what workspace they ask for.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "nsa/kernels/attention.hpp"
#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/oracle.hpp"

namespace nsa::kernels {
namespace {

using enum Tensor::Order;

constexpr Limits kLimits;
// kLowLimits, changed.
template <typename Change>
Limits low(Change&& change) {
  Limits limits = emulation::kLowLimits;
  change(limits);
  return limits;
}

const Problem kIntervals[] = {
    {.S = 1, .h = 1},
    {.S = 20},
    {.B = 2, .storage = Storage::bf16, .room = 8},
    {.S = 170, .h = 6, .G = 1, .order = heads_outside, .room = 8},
    {.S = 90, .h = 16, .G = 1, .geometry = {4, 2, 4, 3, 70}},
    {.h = 6, .G = 1, .boundaries = {0, 5, 6, 77, 77, 141, 200}},
    {.S = 180, .h = 6, .G = 1, .geometry = {4, 2, 64, 4, 300}},  // dK, dV in pieces
};
// Many tiles of queries a CTA, and many steps of keys a tile: every place of
// interval/sm90_forward/forward.cuh's rings is used several times.
const Problem kRings[] = {
    {.S = 401, .h = 1, .G = 1, .geometry = {4, 2, 64, 4, 255}},  // token 255 alone does not see key 0
    {.B = 2, .S = 131, .h = 5, .geometry = {8, 1, 64, 4, 131}, .storage = Storage::bf16, .room = 8},
    {.S = 65, .h = 16, .G = 1, .geometry = {2, 1, 64, 4, 512}, .order = heads_outside},
    {.h = 7, .G = 1, .geometry = {2, 1, 64, 4, 200}, .boundaries = {0, 3, 150, 151, 300}},
};
const Problem kSelected[] = {
    {.S = 1, .h = 1},
    {.S = 33, .geometry = {16, 8, 32, 3, 50}},
    {.B = 2, .S = 90, .storage = Storage::bf16, .room = 8},
    {.S = 170, .h = 6, .G = 1, .geometry = {16, 8, 64, 3, 50}, .order = heads_outside, .room = 8},
    {.S = 100, .h = 16, .G = 1, .geometry = {16, 8, 32, 16, 50}},
    {.S = 200, .h = 1, .geometry = {16, 8, 128, 3, 50}},
    {.h = 6, .G = 1, .geometry = {16, 8, 32, 5, 50}, .boundaries = {0, 5, 6, 77, 77, 141, 200}},
    {.geometry = {16, 8, 128, 3, 50}, .boundaries = {0, 130, 131, 300}},
    {.S = 20, .h = 16, .G = 1, .empty = 1},
    {.S = 20, .h = 2, .G = 1, .geometry = {16, 8, 192, 64, 50}},  // many parts a query
    {.S = 230, .h = 3, .G = 1, .geometry = {16, 8, 4, 40, 50}},   // more than join_forward weighs together
    {.B = 2, .S = 300, .h = 1, .geometry = {16, 8, 32, 6, 50}},   // chunks, turns, pieces
};

// Long enough for the device to decide: chunks of 64 tokens from the 64th on, each by the 64 before it.
const Problem kWays[] = {
    {.S = 230, .h = 2, .G = 1, .geometry = {16, 8, 4, 4, 50}, .empty = 999, .alike_from = 128, .ways = {0, 0, 1}},
    {.B = 2,
     .S = 200,
     .geometry = {16, 8, 4, 4, 50},
     .storage = Storage::bf16,
     .empty = 999,
     .alike_from = 64,
     .ways = {0, 1, 1}},
    {.h = 6, .G = 1, .geometry = {16, 8, 4, 4, 50}, .boundaries = {0, 5, 5, 160, 200}, .ways = {0, 0, 0}},
};

// For interval/sm90_backward/backward.cuh: several chunks of rows and tiles of keys, tiles of 64 rows and of fewer.
const Problem kMeetings[] = {
    {.S = 401, .h = 1, .G = 1, .geometry = {4, 2, 64, 4, 255}},
    {.B = 2, .S = 150, .h = 16, .geometry = {2, 1, 64, 4, 140}, .storage = Storage::bf16, .room = 8},
    {.S = 330, .h = 7, .G = 1, .geometry = {2, 1, 64, 4, 512}, .order = heads_outside},
    {.S = 129, .h = 13, .geometry = {8, 4, 64, 4, 1}},
};

struct Widths {
  int Dk, Dv;
};
void PrintTo(const Widths& x, std::ostream* out) { *out << x.Dk << "/" << x.Dv; }
class Emulated : public testing::TestWithParam<Widths> {
 protected:
  template <std::size_t N>
  static void check(const Problem (&problems)[N], const Call& call, std::size_t count = N) {
    for (std::size_t i = 0; i < count; ++i) {
      SCOPED_TRACE("problem " + std::to_string(i));
      emulation::set_order(i);
      Problem x = problems[i];
      x.Dk = GetParam().Dk;
      x.Dv = GetParam().Dv;
      x.call = call;
      EXPECT_EQ(differences(x), "");
    }
  }
};

TEST_P(Emulated, Window) { check(kIntervals, {.mask = Mask::window, .adds = true, .combines = true}); }
TEST_P(Emulated, Compressed) { check(kIntervals, {.mask = Mask::compressed}); }
TEST_P(Emulated, WindowRings) { check(kRings, {.mask = Mask::window, .forward_alone = true, .combines = true}); }
TEST_P(Emulated, CompressedRings) { check(kRings, {.mask = Mask::compressed, .forward_alone = true}); }
TEST_P(Emulated, NaNElsewhere) {
  const Geometry geometry{4, 2, 64, 4, 50};
  const Problem spoiled[] = {{.S = 401, .h = 6, .G = 1, .geometry = geometry, .nan_key = 200},
                             {.S = 401, .h = 6, .G = 1, .geometry = geometry, .nan_value = 200}};
  check(spoiled, {.mask = Mask::window, .forward_alone = true});
  const Problem first[] = {{.S = 40, .nan_value = 0}};  // that the first rows, which see nothing, load
  check(first, {.mask = Mask::compressed, .forward_alone = true});
  // By parts, in one document and in the first of two, whose neighbour starts in the same tile of rows.
  const Problem selected[] = {
      {.S = 401, .h = 6, .G = 1, .geometry = {4, 2, 16, 6, 50}, .nan_value = 200},
      {.h = 6, .G = 1, .geometry = {4, 2, 16, 5, 50}, .boundaries = {0, 130, 300}, .nan_value = 125},
      {.h = 16, .G = 1, .geometry = {4, 2, 64, 3, 50}, .boundaries = {0, 130, 300}, .nan_value = 129}};
  check(selected, {.mask = Mask::selected, .forward_alone = true});
}
TEST_P(Emulated, LargestLogits) {  // so large that what rounding takes off them is beyond the range of powers
  const Problem largest[] = {
      {.S = 170, .h = 6, .G = 1, .storage = Storage::bf16, .size = 1e17},
      {.S = 170, .h = 6, .G = 1, .storage = Storage::bf16, .size = 80}};  // some rows beyond 2^14
  for (const Mask mask : {Mask::window, Mask::compressed, Mask::selected})
    check(largest, {.mask = mask, .forward_alone = true});
  check(largest, {.mask = Mask::selected, .forward_alone = true, .limits = kLimits});
}
TEST_P(Emulated, WindowForwardByMma) {
  check(kIntervals, {.mask = Mask::window, .hopper = false, .forward_alone = true, .combines = true});
}
TEST_P(Emulated, CompressedForwardByMma) {
  check(kIntervals, {.mask = Mask::compressed, .hopper = false, .forward_alone = true});
}
TEST_P(Emulated, SelectedTogether) { check(kSelected, {.mask = Mask::selected, .adds = true, .limits = kLimits}); }
TEST_P(Emulated, SelectedInParts) { check(kSelected, {.mask = Mask::selected, .adds = true}); }
TEST_P(Emulated, SelectedInPartsWithAllListsInOneGo) {
  const Limits limits = low([](Limits& x) { x.lists_bytes = kLimits.lists_bytes; });
  check(kSelected, {.mask = Mask::selected, .limits = limits});
}
const Problem kBatches[] = {{.B = 3, .S = 90}, {.B = 2, .S = 300, .h = 1, .geometry = {16, 8, 32, 6, 50}}};
TEST_P(Emulated, SelectedInPartsAllPairsInOneTurn) {
  check(kBatches, {.mask = Mask::selected, .limits = {.joint_bytes = 0, .sums_bytes = 0}});
}

TEST_P(Emulated, SelectedAsTheDeviceDecides) {
  Limits limits = low([](Limits& x) { x.joint_bytes = kLimits.joint_bytes, x.fewest_queries = 64; });
  check(kWays, {.mask = Mask::selected, .limits = limits});
  limits.lists_bytes = kLimits.lists_bytes;
  check(kWays, {.mask = Mask::selected, .limits = limits});
}

// dQ, dK and dV in one walk (selected/sm90_backward/parts_backward.cuh).
class EmulatedMerged : public Emulated {
 protected:
  static Call by(const Limits& limits) {
    return {.mask = Mask::selected, .again = true, .adds = true, .limits = limits};
  }
  Limits limits_ = low([](Limits& x) { x.sums_bytes = kLimits.sums_bytes; });
};
TEST_P(EmulatedMerged, InParts) { check(kSelected, by(limits_)); }
TEST_P(EmulatedMerged, AllPairsInOneTurn) { check(kBatches, by({.joint_bytes = 0})); }
TEST_P(EmulatedMerged, SomePairsInATurn) {  // two whole entries, then one; two groups of three, then one
  const Problem batches[] = {{.B = 3, .S = 80, .h = 2}, {.B = 2, .S = 90, .h = 2, .G = 3}};
  limits_.parts_bytes = 1 << 30;
  for (const int pairs : {1, 2, 4}) {
    const int sums = GetParam().Dk == 64 ? 32 << 10 : 64 << 10;  // of a tile of keys
    limits_.sums_bytes = std::int64_t{sums} * pairs * 7;
    check(batches, by(limits_));
  }
}
TEST_P(EmulatedMerged, InOneLane) {  // a chain of early kernels, over all chunks
  limits_.lane_tokens = 0;
  limits_.lists_bytes = kLimits.lists_bytes;
  check(kSelected, by(limits_));
}
TEST_P(EmulatedMerged, ManyPieces) {  // more than add_pieces asks for at once
  limits_.piece_rows = 64;
  const Problem pieces[] = {{.S = 70, .h = 16, .G = 1, .geometry = {16, 8, 128, 3, 50}, .storage = Storage::bf16},
                            {.S = 150, .h = 6, .G = 1, .geometry = {16, 8, 64, 2, 50}, .room = 8}};
  check(pieces, by(limits_));
}
TEST_P(EmulatedMerged, AsTheDeviceDecides) {
  limits_.joint_bytes = kLimits.joint_bytes;
  limits_.fewest_queries = 64;
  check(kWays, by(limits_));
  limits_.lists_bytes = kLimits.lists_bytes;
  check(kWays, by(limits_));
}

class EmulatedIntervals : public Emulated {};
TEST_P(EmulatedIntervals, Window) { check(kMeetings, {.mask = Mask::window, .again = true, .adds = true}); }
TEST_P(EmulatedIntervals, Compressed) { check(kMeetings, {.mask = Mask::compressed, .again = true, .adds = true}); }
TEST_P(EmulatedIntervals, SumsWithoutAWait) {  // room for all of them
  const Limits limits = low([](Limits& x) { x.interval_sums_bytes = kLimits.interval_sums_bytes; });
  check(kMeetings, {.mask = Mask::compressed, .limits = limits}, 2);
  check(kMeetings, {.mask = Mask::window, .limits = limits}, 2);
}
TEST_P(EmulatedIntervals, NaNInAGradient) {  // reaches dK of the keys that its row sees, and of no other
  const Problem spoiled[] = {{.S = 401, .h = 6, .G = 1, .geometry = {4, 2, 64, 4, 50}, .nan_gradient = 200}};
  check(spoiled, {.mask = Mask::window});
  check(spoiled, {.mask = Mask::compressed});
}
TEST_P(EmulatedIntervals, SumsOfChunksInTurn) {  // no room for one of each
  const Limits limits = low([](Limits& x) { x.interval_key_bytes = 0; });
  check(kMeetings, {.mask = Mask::compressed, .again = true, .limits = limits});
}

// Width 64 with all keys in one tile.
class EmulatedFewKeys : public Emulated {};
TEST_P(EmulatedFewKeys, Compressed) {
  const Problem few[] = {
      {.S = 401, .h = 1, .G = 1, .geometry = {8, 4, 64, 4, 50}},
      {.B = 2, .S = 150, .h = 16, .geometry = {4, 2, 64, 4, 50}, .storage = Storage::bf16, .room = 8},
      {.S = 258, .h = 6, .G = 1, .geometry = {4, 2, 64, 4, 50}, .order = heads_outside}};
  check(few, {.mask = Mask::compressed, .again = true, .adds = true});
  const Problem spoiled[] = {{.S = 200, .h = 6, .G = 1, .geometry = {4, 2, 64, 4, 50}, .nan_gradient = 100}};
  check(spoiled, {.mask = Mask::compressed});
}

class EmulatedMma : public Emulated {};
TEST_P(EmulatedMma, Window) { check(kIntervals, {.mask = Mask::window, .hopper = false, .adds = true}); }
TEST_P(EmulatedMma, Compressed) { check(kIntervals, {.mask = Mask::compressed, .hopper = false}); }
TEST_P(EmulatedMma, ManyPieces) {  // more than sum_pieces_kernel asks for at once
  const Problem pieces[] = {{.S = 300, .h = 16, .G = 1, .geometry = {16, 8, 64, 4, 300}}};
  check(pieces, {.mask = Mask::compressed, .hopper = false});
}
TEST_P(EmulatedMma, Selected) { check(kSelected, {.mask = Mask::selected, .hopper = false, .adds = true}, 3); }
TEST_P(EmulatedMma, SelectedPacked) {  // the slowest: a CTA a token
  const Problem packed[] = {{.h = 16, .G = 1, .geometry = {16, 8, 32, 5, 50}, .boundaries = {0, 5, 6, 77, 77, 90}}};
  check(packed, {.mask = Mask::selected, .hopper = false});
}

// What a call needs beyond its tensors, in bytes; nothing is launched.
std::int64_t workspace_of(int Hq, int G, int Dk, int Dv, int S, Mask mask, const Limits& limits = kLimits) {
  char memory = 0;
  const Rows some{&memory, 1 << 30, 8192, 128};
  const Device device{true, 132, limits};
  AttentionForward f;
  f.k = f.v = some;
  f.mask = mask;
  f.B = 1, f.S = S, f.Hq = Hq, f.G = G, f.Dk = Dk, f.Dv = Dv;
  f.N = mask == Mask::compressed ? std::max(0, (S - f.geometry.l) / f.geometry.d + 1) : S;
  const AttentionBackward backward{f, some, nullptr, some, some, some, nullptr};
  return std::max(plan_forward(f, device).workspace, plan_backward(backward, device).main.workspace);
}

// Long sequences take the merged backward pass, those too long for its sums do not.
TEST(EmulatedWorkspace, MergedBackwardEndsAtItsBound) {
  const auto merged = [](int S, int D) {
    return workspace_of(64, 4, D, D, S, Mask::selected) !=
           workspace_of(64, 4, D, D, S, Mask::selected, {.sums_bytes = 0});
  };
  EXPECT_TRUE(merged(8192, 128) && merged(65536, 128) && merged(131072, 128) && merged(262144, 64));
  EXPECT_FALSE(merged(4096, 128) || merged(262144, 128) || merged(524288, 64));
}
TEST(EmulatedWorkspace, ShortSequencesGoInTwoLanes) {
  const auto two = [](int G, int S, int D) {
    return workspace_of(16 * G, G, D, D, S, Mask::selected) !=
           workspace_of(16 * G, G, D, D, S, Mask::selected, {.lane_tokens = 0});
  };
  EXPECT_TRUE(two(4, 8192, 128) && two(4, 16384, 128));
  EXPECT_FALSE(two(1, 8192, 128) || two(4, 16385, 128));
}
// What interval/sm90_backward/backward.cuh takes, and what it leaves to the kernels for dQ and for dK, dV.
TEST(EmulatedWorkspace, IntervalsAreMergedWhereItSaysSo) {
  char memory = 0;
  const int document = 0;
  const Rows some{&memory, 1 << 30, 8192, 128};
  AttentionBackward p{{}, some, nullptr, some, some, some, nullptr};
  AttentionForward& f = p.forward;
  f.q = f.k = f.v = some;
  f.mask = Mask::window;
  f.B = 1, f.S = f.N = 8192, f.Hq = 64, f.G = 4, f.Dk = f.Dv = 128;
  const auto merged = [&](auto&& change) {
    AttentionBackward x = p;
    change(x, x.forward);
    return plan_backward(x, {.hopper = true}).main.variant == Variant::merged_intervals;
  };
  EXPECT_TRUE(merged([](auto&, auto&) {}));
  EXPECT_TRUE(merged([](auto&, auto& own) { own.mask = Mask::compressed, own.N = 511; }));
  EXPECT_FALSE(merged([](auto& x, auto&) { x.dq = {}; }));
  EXPECT_FALSE(merged([](auto& x, auto&) { x.dk = {}; }));
  EXPECT_FALSE(merged([](auto& x, auto&) { x.dv = {}; }));
  EXPECT_FALSE(merged([](auto&, auto& own) { own.mask = Mask::selected; }));
  EXPECT_FALSE(merged([](auto&, auto& own) { own.Dk = own.Dv = 64; }));
  EXPECT_FALSE(merged([](auto&, auto& own) { own.Dk = 192; }));
  EXPECT_FALSE(merged([&](auto&, auto& own) { own.packed.first_token = &document; }));
  EXPECT_FALSE(merged([](auto&, auto& own) { own.k.token = 0; }));
  EXPECT_FALSE(merged([](auto& x, auto&) { x.dout.head = 0; }));
  EXPECT_FALSE(merged([](auto&, auto& own) { own.S = own.N = 512; }));      // too little
  EXPECT_TRUE(merged([](auto&, auto& own) { own.S = own.N = 1 << 18; }));   // with a shorter ring
  EXPECT_FALSE(merged([](auto&, auto& own) { own.S = own.N = 1 << 20; }));  // too large a workspace
  EXPECT_FALSE(merged([](auto&, auto& own) { own.N = 0; }));
}
TEST(EmulatedWorkspace, StaysBelowItsBoundAtEveryLength) {
  struct Model {
    int Hq, G, Dk, Dv;
  };
  std::int64_t most = 0;
  for (const auto& [Hq, G, Dk, Dv] : {Model{12, 2, 64, 64}, {64, 4, 192, 128}, {64, 4, 128, 128}, {16, 16, 128, 128}})
    for (const Mask mask : {Mask::window, Mask::compressed, Mask::selected})
      for (int S = 1; S <= 1 << 20; S *= 2)
        for (const int odd : {0, 1, 63}) most = std::max(most, workspace_of(Hq, G, Dk, Dv, S + odd, mask));
  EXPECT_GT(most, 0);
  EXPECT_LE(most, std::int64_t{512} << 20);
}

std::string name_of(const testing::TestParamInfo<Widths>& x) {
  return std::to_string(x.param.Dk) + "_" + std::to_string(x.param.Dv);
}
INSTANTIATE_TEST_SUITE_P(Hopper, Emulated, testing::Values(Widths{64, 64}, Widths{128, 128}, Widths{192, 128}),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Hopper, EmulatedMerged, testing::Values(Widths{64, 64}, Widths{128, 128}), name_of);
INSTANTIATE_TEST_SUITE_P(Hopper, EmulatedIntervals, testing::Values(Widths{128, 128}), name_of);
INSTANTIATE_TEST_SUITE_P(Hopper, EmulatedFewKeys, testing::Values(Widths{64, 64}), name_of);
INSTANTIATE_TEST_SUITE_P(Mma, EmulatedMma, testing::Values(Widths{32, 32}, Widths{64, 64}), name_of);

}  // namespace
}  // namespace nsa::kernels
