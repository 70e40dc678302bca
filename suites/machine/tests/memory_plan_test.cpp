#include "suites/machine/memory_plan.hpp"

#include <gtest/gtest.h>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

constexpr double kGiBAsDouble = 1 << 30;

// As sdpa computes it, which gathers the chosen blocks.
PlannedStep seeds_model() {
  PlannedStep step;
  step.config.model.name = "m7c_125m";  // the defaults are its values
  step.flags.use_cuda = false;
  step.cuda = true;
  return step;
}

const Judgement& find(const Inspection& inspection, const std::string& name) {
  for (const Judgement& j : inspection.judgements)
    if (j.name == name) return j;
  throw std::logic_error("no judgement " + name);
}

TEST(LowerCount, WeightsGradientsMomentsAndCopies) {
  const PlannedStep step = seeds_model();
  const double parameters = static_cast<double>(nsa::parameter_count(step.config.model));
  EXPECT_EQ(parameters, 78295332);
  const StepBytes bytes = lower_count(step, 2048, 1);
  EXPECT_EQ(bytes.weights, 2 * parameters);
  EXPECT_EQ(bytes.gradients, 2 * parameters);
  EXPECT_EQ(bytes.optimizer, 12 * parameters);  // bf16: an fp32 copy and two fp32 moments
  EXPECT_EQ(bytes.total, bytes.weights + bytes.optimizer + std::max(bytes.gradients, bytes.activations));

  PlannedStep fp32 = step;
  fp32.config.train.precision = nsa::Precision::fp32;
  EXPECT_EQ(lower_count(fp32, 2048, 1).optimizer, 8 * parameters);
  PlannedStep without_copies = step;
  without_copies.config.train.master_weights = false;
  EXPECT_EQ(lower_count(without_copies, 2048, 1).optimizer, 4 * parameters);
}

// 2048 tokens, 2 groups, 16 blocks of 64 tokens, K and V of 64, 2 bytes: 1 GiB a layer. The mask is 8 MiB a layer.
TEST(LowerCount, TheSelectedBranchDominatesUnlessItIsMasked) {
  PlannedStep step = seeds_model();
  const double gathered = lower_count(step, 2048, 1).activations;
  step.flags.sel_mask = true;
  const double masked = lower_count(step, 2048, 1).activations;
  EXPECT_DOUBLE_EQ(gathered - masked, 12 * (kGiBAsDouble - 8 * 1024 * 1024));
}

TEST(LowerCount, OurKernelsNeitherGatherNorMask) {
  PlannedStep step = seeds_model();
  const double gathered = lower_count(step, 2048, 1).activations;
  step.flags.use_cuda = true;
  EXPECT_DOUBLE_EQ(gathered - lower_count(step, 2048, 1).activations, 12 * kGiBAsDouble);
}

TEST(LowerCount, RecomputationKeepsOneLayer) {
  PlannedStep step = seeds_model();
  const double all = lower_count(step, 2048, 1).activations;
  step.config.train.gradient_checkpointing = true;
  EXPECT_LT(lower_count(step, 2048, 1).activations, all / 8);
}

TEST(LowerCount, GrowsWithBatchAndLength) {
  const PlannedStep step = seeds_model();
  EXPECT_DOUBLE_EQ(lower_count(step, 2048, 2).activations, 2 * lower_count(step, 2048, 1).activations);
  EXPECT_GT(lower_count(step, 4096, 1).activations, 1.9 * lower_count(step, 2048, 1).activations);
}

TEST(MemoryPlan, AStepThatFitsIsSoundAndSaysWhatElseWould) {
  const Inspection found =
      judge_memory(seeds_model(), {"NVIDIA H200", 139 * kGiBAsDouble, 140 * kGiBAsDouble, false}, std::nullopt);
  EXPECT_TRUE(found.sound());
  EXPECT_GT(found.seen["largest_B_at_this_S"].get<std::int64_t>(), 1);
  EXPECT_GT(found.seen["largest_S_at_this_B"].get<std::int64_t>(), 2048);
  EXPECT_NE(found.seen["by"].get<std::string>().find("lower count"), std::string::npos);
}

TEST(MemoryPlan, AStepThatDoesNotFitIsFoundWithWhatWould) {
  PlannedStep step = seeds_model();
  step.flags.sel_mask = true;
  step.config.train.batch_size = 8;
  const double memory = 5 * kGiBAsDouble;
  const Inspection found = judge_memory(step, {"a small GPU", memory, memory, true}, std::nullopt);
  const Judgement& fits = find(found, "memory.fits");
  ASSERT_FALSE(fits.holds);
  EXPECT_EQ(fits.code, codes::kDoesNotFit);
  EXPECT_NE(fits.what_failed.find("S=2048, B=8 needs at least"), std::string::npos) << fits.what_failed;
  const auto most = found.seen["largest_B_at_this_S"].get<std::int64_t>();
  EXPECT_GE(most, 1);
  EXPECT_LT(most, 8);
  EXPECT_LE(lower_count(step, 2048, most).total, memory);
  EXPECT_GT(lower_count(step, 2048, most + 1).total, memory);
}

// Two sequences still gather, 2 GiB a layer; three are too many for the budget and take the mask, which needs less.
TEST(MemoryPlan, ALargerBatchMayFitWhereASmallerDoesNot) {
  PlannedStep step = seeds_model();
  step.config.train.batch_size = 2;
  const Inspection found =
      judge_memory(step, {"a small GPU", 16 * kGiBAsDouble, 16 * kGiBAsDouble, true}, std::nullopt);
  EXPECT_FALSE(find(found, "memory.fits").holds);
  EXPECT_GT(found.seen["largest_B_at_this_S"].get<std::int64_t>(), 3);
}

TEST(MemoryPlan, AFittedLawWins) {
  const FittedLaw law{[](double S, double B) { return kGiBAsDouble + B * (1e6 * S); }, 1024, "measured"};
  const Inspection found =
      judge_memory(seeds_model(), {"NVIDIA H200", 4 * kGiBAsDouble, 140 * kGiBAsDouble, true}, law);
  EXPECT_EQ(found.seen["predicted_bytes"].get<double>(), kGiBAsDouble + 2048e6);
  EXPECT_EQ(found.seen["largest_S_at_B_1"].get<std::int64_t>(), static_cast<std::int64_t>(3 * kGiBAsDouble / 1e6));
  EXPECT_EQ(found.seen["extrapolated_beyond_S"].get<double>(), 1024);
  EXPECT_TRUE(found.sound());
}

TEST(MemoryPlan, ATightFitWantsExpandableSegments) {
  const FittedLaw law{[](double, double) { return 9 * kGiBAsDouble; }, 1 << 20, "measured"};
  const auto judged = [&](bool expandable, double free) {
    return judge_memory(seeds_model(), {"a GPU", free, free, expandable}, law);
  };
  EXPECT_FALSE(find(judged(false, 10 * kGiBAsDouble), "memory.expandable_segments").holds);
  EXPECT_TRUE(find(judged(true, 10 * kGiBAsDouble), "memory.expandable_segments").holds);
  EXPECT_TRUE(find(judged(false, 20 * kGiBAsDouble), "memory.expandable_segments").holds);
}

TEST(MemoryPlan, NoMemoryAtAllFitsNothing) {
  const Inspection found = judge_memory(seeds_model(), {"a GPU", 0, 0, false}, std::nullopt);
  EXPECT_FALSE(find(found, "memory.fits").holds);
  EXPECT_EQ(found.seen["largest_B_at_this_S"], 0);
}

TEST(Checkpoints, OneMoreThanIsKept) {
  nsa::Config config;
  config.train.keep_checkpoints = 3;
  EXPECT_EQ(checkpoint_bytes(config), 4ULL * 14 * 78295332);
}

}  // namespace
}  // namespace suites::machine
