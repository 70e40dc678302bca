// Buckets of one process: which gradients are in which, when each is summed, and what is refused. Over several ranks:
// group_test.cpp.
#include "nsa/parallel/gradient_buckets.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/launch.hpp"
#include "nsa/parallel/errors.hpp"

namespace {

using namespace nsa::parallel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<at::Tensor> floats(const std::vector<std::int64_t>& sizes) {
  std::vector<at::Tensor> all;
  for (const std::int64_t size : sizes) all.push_back(at::empty({size}));
  return all;
}

// In floats of 4 bytes; 64 of them are the unit.
TEST(PlanBuckets, FromTheLastToTheFirstAndASmallOneAtTheEnd) {
  const BucketSizes sizes{.bytes = 4 * 1024, .last_bytes = 4 * 256};
  EXPECT_THAT(plan_buckets(floats({128, 128, 512, 512, 64, 1024}), sizes),
              ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(2, 3), ElementsAre(0, 1)));
  EXPECT_THAT(plan_buckets(floats({4096, 1}), sizes), ElementsAre(ElementsAre(1), ElementsAre(0)))
      << "one that is larger than a bucket is one";
  EXPECT_THAT(plan_buckets(floats({65, 65, 65}), sizes), ElementsAre(ElementsAre(2), ElementsAre(0, 1)))
      << "places begin at units";
  EXPECT_THAT(plan_buckets(floats({1, 1, 1}), bucket_sizes({{"NPROC_SUM_BUCKET_KB", "0"}})),
              ElementsAre(ElementsAre(0, 1, 2)));
  auto mixed = floats({1, 1, 1});
  mixed[1] = at::empty({1}, at::kBFloat16);
  EXPECT_THAT(plan_buckets(mixed, sizes), ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  EXPECT_THAT(plan_buckets({}, sizes), IsEmpty());
}

TEST(BucketSizes, OfTheEnvironment) {
  EXPECT_EQ(bucket_sizes({}).bytes, 80 << 20);
  EXPECT_EQ(bucket_sizes({}).last_bytes, 4 << 20);
  EXPECT_EQ(bucket_sizes({}).lying_bytes, 256 << 10);
  EXPECT_EQ(bucket_sizes({{"NPROC_SUM_BUCKET_KB", "0"}}).lying_bytes, 256 << 10);
  EXPECT_EQ(bucket_sizes({{"NPROC_SUM_BUCKET_KB", "8192"}}).bytes, 8 << 20);
  EXPECT_EQ(bucket_sizes({{"NPROC_SUM_BUCKET_KB", "8192"}}).last_bytes, 4 << 20);
  EXPECT_EQ(bucket_sizes({{"NPROC_SUM_BUCKET_KB", "1"}}).last_bytes, 1024);
  EXPECT_EQ(bucket_sizes({{"NPROC_SUM_BUCKET_KB", "1"}}).lying_bytes, 64);
  for (const char* wrong : {"", "-1", "25MB", "2000000000"}) {
    try {
      (void)bucket_sizes({{"NPROC_SUM_BUCKET_KB", wrong}});
      FAIL() << wrong;
    } catch (const base::EnvironmentInvalid& invalid) {
      EXPECT_THAT(invalid.what(), HasSubstr(std::string("NPROC_SUM_BUCKET_KB is '") + wrong +
                                            "', allowed is an integer from 0 to 1073741824"));
    }
  }
}

// Three parameters of odd sizes, a bucket each; `sum` doubles, as two equal ranks would.
struct Three {
  NamedTensors parameters;
  std::vector<std::string> summed;
  bool fails = false, in_place = true;
  GradientBuckets buckets;
  Three()
      : parameters(make()),
        buckets(parameters, 3, {.bytes = 256, .last_bytes = 256, .lying_bytes = 64},
                [this](GradientBuckets::Part& part) {
                  if (fails) throw std::runtime_error("a rank is gone");
                  summed.push_back(part.name);
                  if (in_place)
                    part.gathered().mul_(2);
                  else
                    for (std::size_t i = 0; i < part.own.size(); ++i) part.sums[i].copy_(part.own[i] * 2);
                }) {}
  static NamedTensors make() {
    at::manual_seed(3);
    NamedTensors all;
    for (const char* name : {"a", "b", "c"}) all.emplace_back(name, at::randn({5, 7}).set_requires_grad(true));
    return all;
  }
  [[nodiscard]] at::Tensor loss(std::size_t from = 0) const {
    at::Tensor sum = at::zeros({});
    for (std::size_t i = from; i < 3; ++i) sum = sum + (parameters[i].second.pow(2) * static_cast<double>(i + 1)).sum();
    return sum;
  }
  void forget() const {
    for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
  }
  [[nodiscard]] bool has(double times) const {
    bool all = true;
    for (std::size_t i = 0; i < 3; ++i) {
      const at::Tensor& p = parameters[i].second;
      all = all && p.grad().defined() && at::equal(p.grad(), p.detach() * (2.0 * static_cast<double>(i + 1)) * times);
    }
    return all;
  }
};

TEST(GradientBuckets, SumWhileBackwardGoesOnOrAfterIt) {
  Three three;
  ASSERT_EQ(three.buckets.buckets(), 3U);
  EXPECT_EQ(three.buckets.elements(), 3 * 64);
  for (const bool beside : {true, false, true}) {
    three.forget();
    three.summed.clear();
    if (beside)
      three.buckets.backward(three.loss());
    else
      three.loss().backward();
    EXPECT_EQ(three.summed.size(), beside ? 3U : 0U);
    three.buckets.finish();
    EXPECT_THAT(three.summed, ElementsAre("gradients bucket 0", "gradients bucket 1", "gradients bucket 2"));
    EXPECT_TRUE(three.has(2));
    ASSERT_EQ(three.buckets.own().size(), 3U);
    EXPECT_TRUE(at::equal(three.buckets.own()[0] * 2, three.parameters[2].second.grad()))
        << "of the last parameter, before the sum";
    three.buckets.forget_own();
    EXPECT_THAT(three.buckets.own(), IsEmpty());
  }
  const void* place = three.parameters[0].second.grad().const_data_ptr();
  three.forget();
  three.buckets.backward(three.loss());
  three.buckets.finish();
  EXPECT_EQ(three.parameters[0].second.grad().const_data_ptr(), place) << "nothing moves";
}

// Two large ones, of which one is laid out by columns, among small ones, in one bucket.
TEST(GradientBuckets, LargeOnesAreSummedWhereTheyLieAndSmallOnesInOne) {
  NamedTensors parameters;
  const auto add = [&](const char* name, const at::Tensor& value) {
    parameters.emplace_back(name, value.detach().set_requires_grad(true));
  };
  at::manual_seed(5);
  add("small", at::randn({3}));
  add("large", at::randn({8, 9}));
  add("small too", at::randn({2, 2}));
  add("by columns", at::randn({10, 11}).t());
  std::vector<std::int64_t> elements;
  GradientBuckets buckets(parameters, 0, {.bytes = 1 << 20, .last_bytes = 1 << 20, .lying_bytes = 256},
                          [&](GradientBuckets::Part& part) {
                            ASSERT_EQ(part.own.size(), part.sums.size());
                            for (std::size_t i = 0; i < part.own.size(); ++i) {
                              ASSERT_TRUE(part.own[i].is_contiguous() && part.sums[i].is_contiguous());
                              EXPECT_TRUE(part.sums[i].is_alias_of(part.whole));
                              EXPECT_FALSE(part.own[i].is_alias_of(part.whole));
                              elements.push_back(part.own[i].numel());
                              part.sums[i].copy_(part.own[i] * 2);
                            }
                          });
  for (int step = 0; step < 2; ++step) {
    at::Tensor loss = at::zeros({});
    for (const auto& [name, parameter] : parameters) {
      parameter.mutable_grad().reset();
      loss = loss + parameter.pow(2).sum();
    }
    elements.clear();
    buckets.backward(loss);
    buckets.finish();
    EXPECT_THAT(elements, ElementsAre(72, 110, 2 * 64)) << "small ones begin at units";
    ASSERT_EQ(buckets.own().size(), 4U);
    for (std::size_t i = 0; i < 4; ++i) {
      const at::Tensor& p = parameters[i].second;
      EXPECT_TRUE(at::equal(p.grad(), p.detach() * 4)) << parameters[i].first;
      EXPECT_TRUE(at::equal(buckets.own()[i], p.detach() * 2)) << parameters[i].first;
    }
  }
}

// Steps that sum in place and steps that do not may take turns, as warming up and replays do.
TEST(GradientBuckets, InPlaceGivesTheSameSums) {
  Three three;
  for (const bool how : {false, true, false}) {
    three.in_place = how;
    three.forget();
    three.buckets.backward(three.loss());
    three.buckets.finish();
    EXPECT_TRUE(three.has(2)) << how;
  }
}

// What was accumulated before takes part; also where the last backward does not come to a parameter.
TEST(GradientBuckets, AccumulationIsSummedOnce) {
  Three three;
  three.loss().backward();
  three.buckets.backward(three.loss());
  three.buckets.finish();
  EXPECT_EQ(three.summed.size(), 3U);
  EXPECT_TRUE(three.has(4));
  three.forget();
  three.summed.clear();
  three.loss().backward();
  three.buckets.backward(three.loss(1) * 0);
  EXPECT_THAT(three.summed, ElementsAre("gradients bucket 0", "gradients bucket 1"));
  three.buckets.finish();
  EXPECT_TRUE(three.has(2));
}

TEST(GradientBuckets, AnotherBackwardSumsNothing) {
  Three three;
  three.buckets.backward(three.loss());
  three.buckets.finish();
  three.summed.clear();
  three.forget();
  three.loss().backward();
  EXPECT_THAT(three.summed, IsEmpty());
  EXPECT_TRUE(three.has(1));
}

TEST(GradientBuckets, AParameterWithoutAGradientIsNamed) {
  Three three;
  three.buckets.backward(three.loss(1));
  try {
    three.buckets.finish();
    FAIL();
  } catch (const Disagreement& error) {
    EXPECT_STREQ(error.what(), "rank 3: backward gave no gradient to a");
    EXPECT_THAT(error.ranks, ElementsAre(3));
  }
  EXPECT_EQ(three.summed.size(), 2U) << "its own bucket is not summed";
}

TEST(GradientBuckets, ASumThatFailsEndsTheStepAndNotTheNextOne) {
  Three three;
  three.fails = true;
  EXPECT_THROW(three.buckets.backward(three.loss()), std::runtime_error);
  three.fails = false;
  three.forget();
  three.loss().backward();
  EXPECT_THAT(three.summed, IsEmpty()) << "a backward pass of somebody else";
  three.forget();
  three.buckets.backward(three.loss());
  three.buckets.finish();
  EXPECT_TRUE(three.has(2));
}

// A backward pass within the backward pass reaches `c` once more.
TEST(GradientBuckets, ASecondGradientInOnePassIsRefused) {
  Three three;
  (void)three.parameters[0].second.register_hook([&](const at::Tensor& gradient) {
    const at::AutoGradMode grad(true);
    three.parameters[2].second.sum().backward();
    return gradient;
  });
  try {
    three.buckets.backward(three.loss());
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "a second gradient of c in one backward pass");
  }
}

TEST(GradientBuckets, HooksGoWithThem) {
  NamedTensors parameters;
  {
    Three three;
    parameters = three.parameters;
  }
  parameters[0].second.sum().backward();
  EXPECT_TRUE(parameters[0].second.grad().defined());
}

}  // namespace
