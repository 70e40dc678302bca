// Resume: silent on the product, and loud when anything is lost between the checkpoint and the run that goes on.
#include "suites/training/resume.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "nsa/train/prefetch.hpp"
#include "suites/codes.hpp"
#include "suites/training/tests/support.hpp"

namespace suites::training_cases {
namespace {

using namespace training_tests;  // NOLINT
using nsa::train::TrainState;

class Resume : public testing::Test {
 protected:
  harness::Settings with = settings();
  RecordingContext context{with};
  Subject subject{std::make_shared<Seams>()};

  ResumeTrial trial(Data data = Data::text) {
    ResumeTrial t{.plan = quick_plan(context, data), .folder = {}, .open = {}};
    t.plan.config.train.steps = 5;
    t.plan.config.train.accumulate_grad_batches = 2;
    t.cut_after = 2;
    t.folder = std::filesystem::temp_directory_path() / ("nsa-resume-test-" + std::to_string(getpid()));
    t.open = [](const RunPlan& plan) { return std::make_unique<nsa::train::Prefetch>(open_data(plan)); };
    return t;
  }
  std::set<std::string> codes_of(const ResumeTrial& t) {
    judge_resume(subject, t, context);
    std::set<std::string> all;
    for (const auto& f : context.findings) all.insert(f.code);
    return all;
  }
};

using Codes = std::set<std::string>;

TEST_F(Resume, TheProductResumesBitForBit) {
  for (const Data data : {Data::text, Data::synthetic}) {
    EXPECT_EQ(codes_of(trial(data)), Codes{}) << listed(context);
  }
  ResumeTrial narrow = trial();
  narrow.plan.config.train.precision = nsa::Precision::bf16;
  EXPECT_EQ(codes_of(narrow), Codes{}) << listed(context);
  EXPECT_GT(context.checks, 20);
  EXPECT_FALSE(std::filesystem::exists(narrow.folder));
}

// Goes back to the beginning instead of to where it is told to.
class Forgetful : public nsa::train::BatchStream {
 public:
  explicit Forgetful(std::unique_ptr<nsa::train::BatchStream> source)
      : source_(std::move(source)), start_(source_->position()) {}
  nsa::train::Batch next() override { return source_->next(); }
  [[nodiscard]] nlohmann::json position() const override { return source_->position(); }
  void seek(const nlohmann::json&) override { source_->seek(start_); }

 private:
  std::unique_ptr<nsa::train::BatchStream> source_;
  nlohmann::json start_;
};

TEST_F(Resume, ALostDataPositionIsFound) {
  ResumeTrial t = trial();
  t.open = [](const RunPlan& plan) { return std::make_unique<Forgetful>(open_data(plan)); };
  EXPECT_TRUE(codes_of(t).contains(std::string(codes::kResumeData))) << listed(context);
}

TEST_F(Resume, GeneratorsThatAreNotRestoredAreFound) {
  ResumeTrial t = trial();
  t.on_the_way = [](TrainState& state) {
    torch::manual_seed(99);
    state.tensors["rng/cpu"] = at::detail::getDefaultCPUGenerator().get_state();
  };
  EXPECT_EQ(codes_of(t), Codes{std::string(codes::kResumeRandom)}) << listed(context);
}

TEST_F(Resume, LostMomentsAreFound) {
  ResumeTrial t = trial();
  t.on_the_way = [](TrainState& state) { state.tensors.at("optimizer/exp_avg/head.weight").zero_(); };
  const Codes found = codes_of(t);
  EXPECT_TRUE(found.contains(std::string(codes::kResumeOptimizer))) << listed(context);
  EXPECT_FALSE(found.contains(std::string(codes::kResumeData))) << listed(context);
}

TEST_F(Resume, WeightsRoundedOnTheWayAreFound) {
  ResumeTrial t = trial();
  t.on_the_way = [](TrainState& state) {
    at::Tensor& weight = state.tensors.at("model/head.weight");
    weight = weight.to(at::kBFloat16).to(at::kFloat);
  };
  EXPECT_TRUE(codes_of(t).contains(std::string(codes::kResumeWeights))) << listed(context);
}

TEST_F(Resume, AStepNumberThatIsLostIsFound) {
  ResumeTrial t = trial();
  t.on_the_way = [](TrainState& state) { state.facts["step"] = 0; };
  EXPECT_TRUE(codes_of(t).contains(std::string(codes::kResumeWeights))) << listed(context);
}

TEST_F(Resume, AFolderThatCannotBeWrittenIsToldAsWhatItIs) {
  ResumeTrial t = trial();
  t.folder = "/proc/no-such-folder/checkpoints";
  EXPECT_EQ(codes_of(t), Codes{std::string(codes::kNotResumable)}) << listed(context);
}

TEST_F(Resume, AStateThatIsRefusedIsToldAsWhatItIs) {
  ResumeTrial t = trial();
  t.on_the_way = [](TrainState& state) { state.tensors.erase("model/head.weight"); };
  EXPECT_EQ(codes_of(t), Codes{std::string(codes::kNotResumable)}) << listed(context);
}

TEST_F(Resume, ARunThatDoesNotRepeatItselfIsNotBlamedOnResume) {
  // Gradients with noise from outside of torch's generator: another one in every run.
  auto seams = std::make_shared<Seams>();
  auto calls = std::make_shared<int>(0);
  seams->model.push_back([calls](nsa::LanguageModelImpl& model) {
    model.head->weight.register_hook([calls](const at::Tensor& g) { return g * (1 + 1e-6 * (++*calls)); });
  });
  subject = Subject(seams);
  const Codes found = codes_of(trial());
  EXPECT_TRUE(found.contains(std::string(codes::kTrainingRepeats))) << listed(context);
}

TEST_F(Resume, AWrongTypeIsFound) {
  TrainState state;
  state.tensors = {{"model/a", at::zeros({2}, at::kBFloat16)},
                   {"optimizer/master/a", at::zeros({2})},
                   {"optimizer/exp_avg/a", at::zeros({2})},
                   {"optimizer/exp_avg_sq/a", at::zeros({2})},
                   {"optimizer/step/a", at::zeros({})}};
  nsa::TrainConfig config;
  config.precision = nsa::Precision::bf16;
  check_types(state, config, context);
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  for (const char* name : {"model/a", "optimizer/master/a", "optimizer/exp_avg_sq/a"}) {
    RecordingContext one(with);
    TrainState wrong = state;
    wrong.tensors[name] = wrong.tensors[name].to(at::kDouble);
    check_types(wrong, config, one);
    EXPECT_TRUE(found(one, codes::kTrainingDtype)) << name;
  }
  RecordingContext none(with);
  state.tensors.erase("optimizer/master/a");
  check_types(state, config, none);
  EXPECT_TRUE(found(none, codes::kTrainingDtype));
}

}  // namespace
}  // namespace suites::training_cases
