// The trainer's updates by our own kernels, on the processor: the case that judges them is silent, and goes their way.
#include <gtest/gtest.h>

#include <algorithm>

#include "nsa/kernels/params.hpp"
#include "suites/codes.hpp"
#include "suites/training/tests/support.hpp"
#include "suites/training/trainer_parts.hpp"

namespace suites::training_cases {
namespace {

TEST(EmulatedUpdates, AreRight) {
  ASSERT_TRUE(nsa::kernels::is_emulated()) << "linked with the kernels themselves";
  const harness::Settings with = training_tests::settings();
  training_tests::RecordingContext context{with};
  const auto runtime = std::make_shared<nsa::Runtime>();
  judge_numbers(context, {}, parts_of_product(runtime));
  EXPECT_TRUE(context.findings.empty()) << training_tests::listed(context);
  // Those in bf16, with numbers of the host and on the device.
  const std::vector<nsa::PartTaken> taken = runtime->parts->taken();
  const auto by_kernels = std::find_if(taken.begin(), taken.end(), [](const auto& part) { return part.way == "cuda"; });
  ASSERT_NE(by_kernels, taken.end());
  EXPECT_GE(by_kernels->calls, 2 * 6);
}

TEST(EmulatedUpdates, WhatTheKernelsAloneDoWrongIsTheirs) {
  const harness::Settings with = training_tests::settings();
  training_tests::RecordingContext context{with};
  TrainerParts parts = parts_of_product(std::make_shared<nsa::Runtime>());
  parts.optimizer = [inner = parts.optimizer](const torch::nn::Module& module, double decay, auto numbers) {
    return TrainerParts::Update([update = inner(module, decay, numbers)](const auto& clipping, double lr) {
      update({clipping.norm / 2, clipping.most}, lr);
    });
  };
  judge_numbers(context, {}, parts);
  ASSERT_TRUE(training_tests::found(context, codes::kWrongUpdate));
  EXPECT_EQ(training_tests::finding(context, codes::kWrongUpdate).evidence["kernels"], "nsa/kernels/layer/update.cu");
}

}  // namespace
}  // namespace suites::training_cases
