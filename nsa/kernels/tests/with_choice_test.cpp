// The compressed branch and the choice of blocks in one kernel, emulated (nsa/kernels/tests/emulation): the bits of
// attention_forward and select_blocks, which have tests against fp64 of their own.
#include <gtest/gtest.h>

#include "nsa/kernels/plan/attention_plan.hpp"
#include "nsa/kernels/plan/select_plan.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"
#include "nsa/kernels/tests/tensors.hpp"

namespace nsa::kernels {
namespace {

struct Problem {
  int B = 1, S = 600, h = 6, G = 1;
  Geometry geometry{8, 4, 16, 5, 512};
  double size = 1;  // of the queries: 0 makes every score equal
  Storage storage = Storage::bf16;
  int nan_query = -1, nan_key = -1, nan_value = -1;  // of the first head or group
  double infinite_key = 0;                           // what stands in one element of a key, unless 0
};

constexpr int D = 64;

Device hopper() {
  Device device = current_device();
  device.hopper = true;
  return device;
}

struct Outputs {
  Tensor o;
  std::vector<float> stats;
  std::vector<int> blocks;
  explicit Outputs(const Problem& x)
      : o(x.storage, x.B, x.S, x.h * x.G, D, Tensor::Order::heads_outside, 8),
        stats(static_cast<std::size_t>(x.B) * x.h * x.G * x.S * 2, -7.f),
        blocks(static_cast<std::size_t>(x.B) * x.S * x.G * x.geometry.n, -99) {}
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
         });
}

// What differs, as a sentence.
std::string differences(const Problem& x) {
  const Geometry& g = x.geometry;
  const int N = (x.S - g.l) / g.d + 1;
  std::mt19937 random(7);
  Tensor q(x.storage, x.B, x.S, x.h * x.G, D, Tensor::Order::tokens_outside, 8);
  Tensor k(x.storage, x.B, N, x.G, D, Tensor::Order::heads_outside, 8), v(x.storage, x.B, N, x.G, D);
  q.fill(random, x.size);
  k.fill(random, 1);
  v.fill(random, 1);
  if (x.nan_query >= 0) q.set(0, x.nan_query, 0, 1, NAN);
  if (x.nan_key >= 0) k.set(0, x.nan_key, 0, 1, NAN);
  if (x.nan_value >= 0) v.set(0, x.nan_value, 0, 1, NAN);
  if (x.infinite_key != 0) k.set(0, N / 2, 0, 3, x.infinite_key);
  Outputs apart(x), together(x);
  AttentionForward p;
  p.q = q.rows(), p.k = k.rows(), p.v = v.rows();
  p.geometry = g;
  p.B = x.B, p.S = x.S, p.N = N, p.Hq = x.h * x.G, p.G = x.G, p.Dk = p.Dv = D;
  p.scale = static_cast<float>(1 / std::sqrt(D));
  p.storage = x.storage;
  p.mask = Mask::compressed;
  Select s;
  s.q = p.q, s.k_cmp = p.k, s.geometry = g;
  s.B = p.B, s.S = p.S, s.N = N, s.Hq = p.Hq, s.G = p.G, s.Dk = D, s.scale = p.scale, s.storage = p.storage;

  p.o = apart.o.rows(), p.stats = apart.stats.data();
  const AttentionPlan first = plan_forward(p, hopper());
  const SelectPlan second = plan_select(s, hopper());
  if (first.variant != Variant::intervals || second.variant != SelectVariant::wgmma) return "not by the two kernels";
  attention_forward(p, first, nullptr);
  s.stats = apart.stats.data(), s.blocks = apart.blocks.data();
  select_blocks(s, second, nullptr);
  p.o = together.o.rows(), p.stats = together.stats.data();
  const AttentionPlan plan = plan_forward_and_select(p, hopper());
  if (plan.variant != Variant::intervals_and_choice) return "planned " + std::string(to_string(plan.variant));
  (void)emulation::take_launched();
  forward_and_select(p, together.blocks.data(), plan, nullptr);
  const auto launched = emulation::take_launched();
  if (launched.kernels != plan.launches) return std::to_string(launched.kernels) + " kernels";

  std::string what;
  if (!together.o.same_bits(apart.o)) what += "o; ";
  if (!same_bits(together.stats, apart.stats)) what += "statistics; ";
  int wrong = 0;
  for (std::size_t i = 0; i < apart.blocks.size(); ++i) wrong += apart.blocks[i] != together.blocks[i];
  if (wrong) what += std::to_string(wrong) + " blocks; ";
  return what;
}

TEST(EmulatedWithChoice, Heads) {
  for (int h = 1; h <= 16; ++h)
    EXPECT_EQ(differences({.S = 80 + h,
                           .h = h,
                           .geometry = {4, 2, 8, 5, 512},
                           .storage = h % 3 == 0 ? Storage::bf16 : Storage::fp16}),
              "")
        << h;
}
TEST(EmulatedWithChoice, Lengths) {  // up to the last that has 128 keys, about every edge of keys, blocks and tiles
  for (const int S : {8, 9, 15, 17, 79, 80, 81, 263}) EXPECT_EQ(differences({.S = S}), "") << S;
  EXPECT_EQ(differences({.S = 519, .h = 6, .geometry = {8, 4, 16, 16, 512}}), "");
  EXPECT_EQ(differences({.S = 2079, .h = 1, .geometry = {32, 16, 64, 4, 512}}), "");
}
TEST(EmulatedWithChoice, BatchesAndGroups) {
  EXPECT_EQ(differences({.B = 3, .S = 131, .h = 3, .G = 2}), "");
  EXPECT_EQ(differences({.B = 2, .S = 117, .h = 5, .G = 3, .geometry = {4, 2, 8, 4, 512}, .storage = Storage::fp16}),
            "");
}
TEST(EmulatedWithChoice, NumbersOfBlocks) {
  for (const int n : {3, 4, 16, 31, 32, 33, 64})
    EXPECT_EQ(differences({.S = 519, .h = 4, .geometry = {8, 4, 16, n, 512}}), "") << n;
}
TEST(EmulatedWithChoice, Ties) {
  for (const int h : {6, 16}) EXPECT_EQ(differences({.S = 300, .h = h, .size = 0}), "") << h;
}
TEST(EmulatedWithChoice, LargeScores) {
  for (const double size : {30., 3000.}) EXPECT_EQ(differences({.S = 300, .size = size}), "") << size;
}
TEST(EmulatedWithChoice, NotANumber) {
  EXPECT_EQ(differences({.S = 300, .nan_query = 280, .nan_key = 30}), "");
  EXPECT_EQ(differences({.B = 2, .S = 150, .G = 2, .nan_value = 20}), "");
  for (const double x : {INFINITY, -INFINITY}) EXPECT_EQ(differences({.S = 300, .infinite_key = x}), "") << x;
}

// Everything that is left to the two kernels.
TEST(PlanWithChoice, Refusals) {
  AttentionForward p;
  p.mask = Mask::compressed;
  p.B = 2, p.S = 2048, p.N = 127, p.Hq = 12, p.G = 2, p.Dk = p.Dv = 64;
  p.k = p.v = {nullptr, 127 * 128, 128, 64};
  const auto together = [&](auto&& change) {
    AttentionForward own = p;
    Device device = hopper();
    change(own, device);
    return plan_forward_and_select(own, device).variant == Variant::intervals_and_choice;
  };
  EXPECT_TRUE(together([](auto&, auto&) {}));
  EXPECT_TRUE(together([](auto& own, auto&) { own.S = 2079, own.N = 128; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.S = 2080, own.N = 129; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.N = 0; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.S = 2080; }));  // sees more keys than there are
  EXPECT_FALSE(together([](auto&, auto& device) { device.hopper = false; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.Dk = own.Dv = 128; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.geometry.l = 16; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.geometry.l_sel = 128; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.k.head = 0; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.v.token = 0; }));
  EXPECT_TRUE(together([](auto& own, auto&) { own.Hq = 16 * 2; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.Hq = 17 * 2; }));
  EXPECT_TRUE(together([](auto& own, auto&) { own.B = 65535; }));
  EXPECT_FALSE(together([](auto& own, auto&) { own.B = 65536; }));
  for (const auto& [n, serves] : {std::pair{2, false}, {3, true}, {64, true}, {65, false}})
    EXPECT_EQ(together([&](auto& own, auto&) { own.geometry.n = n; }), serves) << n;
  for (const auto& [S, serves] : {std::pair{4 * 65535, true}, {4 * 65535 + 1, false}})  // four tokens a tile
    EXPECT_EQ(together([&](auto& own, auto&) {
                own.S = S, own.Hq = 16 * 2;
                own.geometry = {8192, 4096, 16384, 16, 512};
                own.N = (S - 8192) / 4096 + 1;
              }),
              serves)
        << S;
  int token = 0;
  EXPECT_FALSE(together([&](auto& own, auto&) { own.packed.first_token = &token; }));
}

}  // namespace
}  // namespace nsa::kernels
