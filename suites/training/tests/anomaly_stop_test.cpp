// The stop of nsa-train: silent on the product, and loud when what it leaves behind is broken.
#include "suites/training/anomaly_stop.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "nsa/train/checkpoint.hpp"
#include "suites/codes.hpp"
#include "suites/training/tests/support.hpp"

namespace suites::training_cases {
namespace {

using namespace training_tests;  // NOLINT
namespace fs = std::filesystem;

class AnomalyStop : public testing::Test {
 protected:
  harness::Settings with = settings();
  RecordingContext context{with};

  StopTrial trial() {
    StopTrial t;
    t.folder = fs::temp_directory_path() / ("nsa-stop-test-" + std::to_string(getpid()));
    fs::remove_all(t.folder);
    t.steps = 4;
    t.poisoned_step = 3;
    t.arguments = {"--config", (data_folder() / "configs/models/tiny.yaml").string(), "--device", "cpu"};
    for (const char* set : {"model.n_layers=1", "train.seq_len=48", "train.batch_size=2", "train.order=random_crops",
                            "train.hang_timeout_s=0"}) {
      t.arguments.insert(t.arguments.end(), {"--set", set});
    }
    return t;
  }
};

TEST_F(AnomalyStop, TheProgramStopsTellsAndGoesOn) {
  const StopTrial t = trial();
  judge_stop(t, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_GE(context.checks, 8);
  EXPECT_FALSE(fs::exists(t.folder));
}

TEST_F(AnomalyStop, AGuardThatSleepsIsFound) {
  StopTrial t = trial();
  t.poisoned_step = 100;  // never reached: the run ends as if nothing had been noticed
  judge_stop(t, context);
  EXPECT_TRUE(found(context, codes::kGuardMissed)) << listed(context);
  EXPECT_TRUE(found(context, codes::kHaltRecord)) << listed(context);
}

TEST_F(AnomalyStop, AMissingRecordIsFound) {
  StopTrial t = trial();
  t.after_stop = [](const fs::path& run) { fs::remove(run / ".HALT"); };
  judge_stop(t, context);
  EXPECT_TRUE(found(context, codes::kHaltRecord)) << listed(context);
}

TEST_F(AnomalyStop, ARecordOfAnotherRunIsFound) {
  StopTrial t = trial();
  t.after_stop = [](const fs::path& run) {
    std::ofstream(run / ".HALT") << R"({"run": "20250828T101500Z-0000", "anomaly": "nan_gradient", "step": 3})";
  };
  judge_stop(t, context);
  EXPECT_TRUE(found(context, codes::kHaltRecord)) << listed(context);
}

TEST_F(AnomalyStop, ALostCheckpointIsFound) {
  StopTrial t = trial();
  t.after_stop = [](const fs::path& run) { fs::remove_all(run / "checkpoints"); };
  judge_stop(t, context);
  EXPECT_TRUE(found(context, codes::kNotResumable)) << listed(context);
}

TEST_F(AnomalyStop, WeightsThatAreNotThoseOfTheLastGoodStepAreFound) {
  StopTrial t = trial();
  t.after_stop = [](const fs::path& run) {
    nsa::train::CheckpointStore store(run / "checkpoints", 10);
    nsa::train::TrainState state = store.newest([](const std::string&) {}).value().state;
    state.tensors.at("model/head.weight").mul_(1.5);
    (void)store.save(state);
  };
  judge_stop(t, context);
  EXPECT_TRUE(found(context, codes::kResumeWeights)) << listed(context);
}

}  // namespace
}  // namespace suites::training_cases
