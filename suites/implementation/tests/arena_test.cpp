#include "suites/implementation/arena.hpp"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>

#include "suites/implementation/tests/support.hpp"
#include "suites/oracle/compare.hpp"

namespace suites::implementation::tests {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::string refusal_of(const Arena& arena, const Place& place) {
  const auto error = error_of([&] { (void)arena.take(place); });
  EXPECT_EQ(error.kind, "protocol");
  return error.message;
}

TEST(Arena, GivesBackTheBits) {
  Arena arena;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kInt}) {
    at::Tensor tensor = (at::randn({3, 5, 2}) * 100).to(dtype);
    if (dtype != at::kInt) tensor.view(-1).slice(0, 0, 2).copy_(at::tensor({std::nan("7"), -INFINITY}));
    EXPECT_TRUE(oracle::same_bits(arena.take(arena.put(tensor)), tensor)) << c10::toString(dtype);
  }
}

TEST(Arena, TakesAnyStrides) {
  Arena arena;
  const at::Tensor tensor = at::arange(24, at::kFloat).view({2, 3, 4});
  for (const at::Tensor& view :
       {tensor.transpose(0, 2), tensor.slice(1, 1, 3), tensor.select(0, 1).expand({5, 3, 4}), tensor.flip(0),
        at::tensor(3.0F), at::empty({2, 0, 4}), tensor.clone().requires_grad_()})
    EXPECT_TRUE(oracle::same_bits(arena.take(arena.put(view)), view.detach()));
}

TEST(Arena, WhatIsTakenIsItsOwn) {
  Arena arena;
  const Place place = arena.put(at::ones({4}));
  const at::Tensor taken = arena.take(place);
  arena.reset();
  (void)arena.put(at::zeros({4}));
  EXPECT_TRUE(at::equal(taken, at::ones({4})));
  EXPECT_TRUE(at::equal(arena.take(place), at::zeros({4})));
}

TEST(Arena, PlacesAreMultiplesOf64) {
  Arena arena;
  EXPECT_EQ(arena.put(at::ones({1})).at, 0);
  EXPECT_EQ(arena.put(at::ones({17})).at, 64);
  EXPECT_EQ(arena.room(), 192);
  EXPECT_EQ(arena.put(at::ones({0})).at, 192);
  EXPECT_EQ(arena.room(), 192);
  arena.reset();
  EXPECT_EQ(arena.room(), 0);
}

TEST(Arena, GrowsAndKeepsWhatItHolds) {
  Arena arena;
  const at::Tensor small = at::randn({100}), large = at::randn({1 << 20});
  const Place first = arena.put(small), second = arena.put(large);
  EXPECT_GE(arena.size(), 4 << 20);
  EXPECT_TRUE(oracle::same_bits(arena.take(first), small));
  EXPECT_TRUE(oracle::same_bits(arena.take(second), large));
}

TEST(Arena, IsWhatTheOtherSideSees) {
  Arena arena;
  (void)arena.put(at::ones({1}));
  const Place place = arena.put(at::tensor({1, 2, 3}, at::kInt));
  std::int32_t seen[3] = {};
  ASSERT_EQ(pread(arena.fd(), seen, sizeof seen, place.at), 12);
  EXPECT_EQ(seen[2], 3);
}

TEST(Arena, FollowsTheOtherSide) {
  Arena arena;
  const Place place{at::kInt, {1}, arena.size() + 64};
  EXPECT_THAT(refusal_of(arena, place), testing::HasSubstr("it would end outside"));
  ASSERT_EQ(ftruncate(arena.fd(), arena.size() + 4096), 0);
  const std::int32_t seven = 7;
  ASSERT_EQ(pwrite(arena.fd(), &seven, 4, place.at), 4);
  arena.follow(arena.size() + 4096);
  EXPECT_EQ(arena.take(place).item<int>(), 7);
  arena.follow(1);  // the other side may not have noticed
  EXPECT_EQ(arena.take(place).item<int>(), 7);
  EXPECT_THAT(error_of([&] { arena.follow(kMost); }).message,
              testing::HasSubstr("is said to have 9223372036854775807"));
}

TEST(Arena, GrowsAlsoWhereTheOtherSideDidNotSay) {
  Arena arena;
  const std::int64_t large = std::int64_t{64} << 20;
  ASSERT_EQ(ftruncate(arena.fd(), large), 0);
  const at::Tensor tensor = at::randn({1 << 20});
  EXPECT_TRUE(oracle::same_bits(arena.take(arena.put(tensor)), tensor));
  EXPECT_EQ(arena.size(), large);
}

// A file that became smaller would kill this process at the next access.
TEST(Arena, NobodyCanMakeItSmaller) {
  Arena arena;
  EXPECT_EQ(ftruncate(arena.fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Arena, PlacesOutsideAreRefused) {
  Arena arena;
  const std::int64_t size = arena.size();
  EXPECT_TRUE(arena.take({at::kDouble, {size / 8}, 0}).defined());
  EXPECT_EQ(arena.take({at::kDouble, {0, kMost / 8}, size}).numel(), 0);
  const std::string outside = "it would end outside";
  EXPECT_THAT(refusal_of(arena, {at::kDouble, {size / 8 + 1}, 0}), testing::HasSubstr(outside));
  EXPECT_THAT(refusal_of(arena, {at::kDouble, {1}, size}), testing::HasSubstr(outside));
  EXPECT_THAT(refusal_of(arena, {at::kDouble, {1}, kMost - 63}), testing::HasSubstr(outside));
  EXPECT_THAT(refusal_of(arena, {at::kDouble, {kMost}, 0}), testing::HasSubstr("no such size"));
  EXPECT_THAT(refusal_of(arena, {at::kInt, {1 << 30, 1 << 30, 1 << 30}, 0}), testing::HasSubstr("no such size"));
  EXPECT_THAT(refusal_of(arena, {at::kInt, {kMost, 0, kMost}, 0}), testing::HasSubstr("no such size"));
  EXPECT_THAT(refusal_of(arena, {at::kInt, {-1}, 0}), testing::HasSubstr("no such size"));
  EXPECT_THAT(refusal_of(arena, {at::kInt, {-1, -1}, 0}), testing::HasSubstr("no such size"));
  EXPECT_EQ(refusal_of(arena, {at::kInt, {1}, 32}),
            "a tensor int32 [1] at byte 32 of the arena: allowed: a multiple of 64");
  EXPECT_THAT(refusal_of(arena, {at::kInt, {1}, -64}), testing::HasSubstr("a multiple of 64"));
}

TEST(Arena, OnlySomeTypesCross) {
  Arena arena;
  for (const at::Tensor& tensor : {at::ones({2}, at::kLong), at::ones({2}, at::kBool), at::Tensor()})
    EXPECT_EQ(error_of([&] { (void)arena.put(tensor); }).kind, "request");
  EXPECT_EQ(arena.room(), 0);
}

TEST(Place, IsReadAndWritten) {
  const Place place{at::kBFloat16, {2, 35, 6, 16}, 4096};
  EXPECT_EQ(reports::dump(to_json(place)), R"({"dtype":"bf16","shape":[2,35,6,16],"at":4096})");
  const Place back = place_from(to_json(place), "o");
  EXPECT_EQ(back.dtype, place.dtype);
  EXPECT_EQ(back.shape, place.shape);
  EXPECT_EQ(back.at, place.at);
  EXPECT_FALSE(back.on_device);
  const Place there{at::kFloat, {1}, 256, /*on_device=*/true};
  EXPECT_EQ(reports::dump(to_json(there)), R"({"dtype":"fp32","shape":[1],"at":256,"in":"cuda"})");
  EXPECT_TRUE(place_from(to_json(there), "o").on_device);
  for (const char* bad :
       {R"({"dtype":"fp8","shape":[1],"at":0})", R"({"dtype":"fp32","shape":[1.5],"at":0})",
        R"({"dtype":"fp32","shape":1,"at":0})", R"({"dtype":"fp32","shape":[1],"at":"0"})",
        R"({"dtype":"fp32","shape":[1]})", "[]", "null", R"({"dtype":3,"shape":[1],"at":0})",
        R"({"dtype":"fp32","shape":[1],"at":0,"in":"tpu"})", R"({"dtype":"fp32","shape":[1],"at":0,"in":1})"})
    EXPECT_EQ(error_of([&] { (void)place_from(Json::parse(bad), "o"); }).kind, "protocol") << bad;
}

}  // namespace
}  // namespace suites::implementation::tests
