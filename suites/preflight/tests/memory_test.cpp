// Whether a step fits: counts and stored laws.
#include <ATen/ATen.h>

#include "suites/preflight/tests/preflight.hpp"
#include "suites/probes/op_bytes.hpp"

namespace suites::preflight_tests {
namespace {

TEST_F(Preflight, AStepThatCannotFitIsFound) {
  checks::memory_estimate(subject(), context);
  EXPECT_TRUE(context.grave_codes().empty());
  seams->configuration.push_back([](nsa::Config& c) { c.train.batch_size = std::int64_t{1} << 30; });
  checks::memory_estimate(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kDoesNotFit)});
  EXPECT_NE(context.findings[0].message.find("fits: "), std::string::npos) << context.findings[0].message;
}

// What the lower count says is kept must really be kept: so much is alive at once in a training pass.
TEST_F(Preflight, TheLowerCountIsNoOverestimate) {
  const nsa::Config config = subject().config(context);
  const machine::PlannedStep step{config, {}, false};
  Instance instance = subject().model({.config = config.model, .flags = {}, .seed = 1});
  const at::Tensor tokens = at::zeros({2, 129}, at::kLong);
  const auto peak = static_cast<double>(probes::measure_bytes([&] { instance.model->loss(tokens).backward(); }).peak);
  EXPECT_LE(machine::lower_count(step, 128, 2).activations, peak);
  EXPECT_GE(machine::lower_count(step, 128, 2).activations, peak / 8) << "too low to say anything";
}

TEST_F(Preflight, AStoredLawIsNotUsedForARecomputedStep) {
  nsa::Config config = subject().config(context);
  config.train.gradient_checkpointing = true;
  EXPECT_FALSE(checks::stored_law({config, {}, false}, "cpu").has_value());
}

// configs/memory as it is: laws of an H200, which say nothing of another device.
TEST_F(Preflight, TheLawsOfAnH200AreUsedThereAndNowhereElse) {
  nsa::Config config;
  config.model.name = "m7c_125m";  // the defaults are its values
  const machine::PlannedStep step{config, {}, true};
  for (const char* device : {"cpu", "NVIDIA A100-SXM4-80GB"}) EXPECT_FALSE(checks::stored_law(step, device)) << device;
  EXPECT_FALSE(checks::stored_law({config, {}, false}, "cpu"));
  nsa::Config tiny = subject().config(context);
  EXPECT_FALSE(checks::stored_law({tiny, {}, true}, "NVIDIA H200"));

  machine::PlannedStep sdpa = step;
  sdpa.flags.use_cuda = false;
  const auto law = checks::stored_law(step, "NVIDIA H200"), of_sdpa = checks::stored_law(sdpa, "NVIDIA H200");
  ASSERT_TRUE(law && of_sdpa);
  EXPECT_EQ(law->longest_S, 2048);
  EXPECT_NEAR(law->bytes(2048, 1), 1.845e9, 0.01e9);     // measured there: 1,845,093,164
  EXPECT_NEAR(of_sdpa->bytes(2048, 1), 16.76e9, 0.1e9);  // and 16,756,104,236
  EXPECT_GE(law->bytes(2048, 1), machine::lower_count(step, 2048, 1).total);
  EXPECT_GE(of_sdpa->bytes(2048, 1), machine::lower_count(sdpa, 2048, 1).total);
}

TEST_F(Preflight, BeyondTheGatheringsBudgetTheMaskedLawHolds) {
  nsa::Config config;
  config.model.name = "m7c_125m";
  nsa::EffectiveFlags flags;
  flags.use_cuda = false;
  const machine::PlannedStep step{config, flags, true};
  flags.sel_mask = true;
  const auto own = checks::stored_law(step, "NVIDIA H200");
  const auto masked = checks::stored_law({config, flags, true}, "NVIDIA H200");
  ASSERT_TRUE(own && masked);
  EXPECT_GT(own->bytes(4096, 1), 2 * masked->bytes(4096, 1));
  EXPECT_EQ(own->bytes(4097, 1), masked->bytes(4097, 1));  // nsa::kGatherBudgetBytes at 4096 tokens a batch
  EXPECT_EQ(own->bytes(2049, 2), masked->bytes(2049, 2));
  EXPECT_GE(own->bytes(8192, 1), machine::lower_count(step, 8192, 1).total);
}

}  // namespace
}  // namespace suites::preflight_tests
