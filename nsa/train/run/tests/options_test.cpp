#include "nsa/train/run/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <fstream>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/run/exit_code.hpp"
#include "nsa/train/run/training.hpp"

namespace {

using namespace nsa::train;
using testing::HasSubstr;

Options parse(std::vector<const char*> words) {
  words.insert(words.begin(), "nsa-train");
  return parse_options(static_cast<int>(words.size()), words.data()).value();
}

std::string config(const char* name) {
  return (std::filesystem::path(__FILE__).parent_path() / "../../../../configs/train" / name).string();
}

TEST(Options, EverythingAsTyped) {
  const Options options =
      parse({"--config", "c.yaml", "--out", "o", "--steps", "30", "--save-every", "5", "--data", "synthetic", "--set",
             "train.lr=1e-3", "--set", "model.name=a=b", "--resume", "--device", "cpu", "--quiet"});
  EXPECT_EQ(options.config, "c.yaml");
  EXPECT_EQ(options.out, "o");
  EXPECT_EQ(options.steps, 30);
  EXPECT_TRUE(options.resume);
  EXPECT_FALSE(options.force);
  EXPECT_TRUE(options.quiet);
  EXPECT_EQ(options.device, DeviceChoice::cpu);
  ASSERT_EQ(options.overrides.size(), 4U);
  EXPECT_EQ(options.overrides[0].key, "train.save_every");
  EXPECT_EQ(options.overrides[1].value, "synthetic");
  EXPECT_EQ(options.overrides[3].key, "model.name");
  EXPECT_EQ(options.overrides[3].value, "a=b");
  EXPECT_FALSE(parse({"--config", "c", "--out", "o"}).steps);
}

TEST(Options, MoreStepsMakeALongerScheduleAndFewerDoNotTouchIt) {
  const std::string tiny = config("tiny.yaml");
  const auto steps = [&](const char* wanted) {
    return configuration(parse({"--config", tiny.c_str(), "--out", "o", "--steps", wanted})).train.steps;
  };
  EXPECT_EQ(steps("10"), 200);
  EXPECT_EQ(steps("300"), 300);
}

// The default schedule of 10 steps is shorter than the warm-up: what counts is how long the run will be.
TEST(Options, StepsAreCheckedWithTheLengthThatTheyGive) {
  const nsa::fixtures::Scratch folder;
  const std::string file = folder / "x.yaml";
  std::ofstream(file) << "train: {warmup_steps: 200}\n";
  const auto errors = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"--config", file.c_str(), "--out", "o"};
    words.insert(words.end(), more.begin(), more.end());
    try {
      return "steps " + std::to_string(configuration(parse(words)).train.steps);
    } catch (const nsa::ConfigInvalid& invalid) {
      return std::string(invalid.what());
    }
  };
  EXPECT_EQ(errors({"--steps", "7000"}), "steps 7000");
  EXPECT_EQ(errors({"--steps", "7000", "--set", "train.steps=300"}), "steps 7000");
  EXPECT_EQ(errors({"--steps", "100", "--set", "train.steps=300"}), "steps 300");  // stops early on its way
  EXPECT_EQ(errors({"--steps", "100"}), file + ":1: train.warmup_steps = 200: must be at most train.steps (100)");
  EXPECT_EQ(errors({"--steps", "100", "--set", "train.steps=300", "--set", "train.lr=fast"}),
            "--set: train.lr = fast: must be a number from 1e-12 to 1");
  // The limit is the longer of both, also beside other mistakes.
  EXPECT_EQ(errors({"--steps", "5", "--set", "train.steps=10"}),
            file + ":1: train.warmup_steps = 200: must be at most train.steps (10)");
  EXPECT_EQ(errors({"--steps", "20", "--set", "train.steps=10"}),
            file + ":1: train.warmup_steps = 200: must be at most train.steps (20)");
  EXPECT_EQ(errors({"--steps", "5", "--set", "train.steps=10", "--set", "train.lr=fast"}),
            "--set: train.lr = fast: must be a number from 1e-12 to 1\n" + file +
                ":1: train.warmup_steps = 200: must be at most train.steps (10)");
  EXPECT_EQ(errors({"--steps", "5", "--set", "train.warmup_steps=6", "--set", "train.steps=5"}),
            "--set: train.warmup_steps = 6: must be at most train.steps (5)");
  EXPECT_THAT(errors({"--steps", "7000", "--set", "train.steps=many"}),
              HasSubstr("--set: train.steps = many: must be"));
}

TEST(Options, TheSeedConfigurationsMakeTheSeedModel) {
  for (const char* name : {"m7c_125m_1xa100_prod_v1.yaml", "m7c_125m_80g.yaml", "m7c_125m_2k_test.yaml"}) {
    const nsa::Config seed = nsa::load_config(config(name));
    EXPECT_EQ(nsa::parameter_count(seed.model), 78'295'332) << name;
  }
}

TEST(Training, AGpuThatIsNotThereIsSaid) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "there is a CUDA device";
  const std::string tiny = config("tiny.yaml");
  const Options options = parse({"--config", tiny.c_str(), "--out", "o", "--device", "cuda"});
  EXPECT_THROW((void)make_training(configuration(options), options, {}, {}), DeviceError);
}

TEST(Training, DataThatMakesNoSenseIsAUsageErrorAndMissingDataIsNot) {
  const std::string tiny = config("tiny.yaml");
  Options options = parse({"--config", tiny.c_str(), "--out", "o", "--device", "cpu", "--data", "/no/such.txt"});
  EXPECT_THROW((void)make_training(configuration(options), options, {}, {}), DataError);
}

}  // namespace
