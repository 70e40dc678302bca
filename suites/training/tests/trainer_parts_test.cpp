#include "suites/training/trainer_parts.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "nsa/train/gradients.hpp"
#include "nsa/train/trainer.hpp"
#include "suites/codes.hpp"
#include "suites/training/tests/support.hpp"

namespace suites::training_cases {
namespace {

using training_tests::finding;
using training_tests::found;
using training_tests::listed;
using training_tests::RecordingContext;

class Parts : public testing::Test {
 protected:
  harness::Settings with = training_tests::settings();
  RecordingContext context{with};
  TrainerParts parts = parts_of_product(std::make_shared<nsa::Runtime>());
  void judge() { judge_trainer_parts(Subject(std::make_shared<Seams>()), context, parts); }
  // torch's AdamW in place of the product's.
  void use(const torch::optim::AdamWOptions& options) {
    parts.optimizer = [options](const torch::nn::Module& module, double weight_decay,
                                TrainerParts::Numbers) -> TrainerParts::Update {
      const std::vector<at::Tensor> parameters = module.parameters();
      auto adamw = std::make_shared<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(options).weight_decay(weight_decay));
      return [adamw, parameters](const TrainerParts::Clipping& clipping, double lr) {
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
        nsa::train::clip_to_norm(gradients, clipping.norm, clipping.most);
        static_cast<torch::optim::AdamWOptions&>(adamw->param_groups()[0].options()).lr(lr);
        adamw->step();
      };
    };
  }
  // The product's, told other numbers.
  void told(const std::function<void(TrainerParts::Clipping& clipping)>& change) {
    parts.optimizer = [inner = parts.optimizer, change](const torch::nn::Module& module, double decay,
                                                        TrainerParts::Numbers numbers) -> TrainerParts::Update {
      return [update = inner(module, decay, numbers), change](TrainerParts::Clipping clipping, double lr) {
        change(clipping);
        update(clipping, lr);
      };
    };
  }
};

TEST_F(Parts, OfTheProductAreRight) {
  judge();
  EXPECT_TRUE(context.findings.empty()) << listed(context) << context.metrics.dump(1);
}

TEST_F(Parts, AnEpsilonThatIsTooLargeIsFound) {
  use(torch::optim::AdamWOptions().eps(1e-6));
  judge();
  ASSERT_TRUE(found(context, codes::kWrongUpdate)) << listed(context);
  EXPECT_THAT(finding(context, codes::kWrongUpdate).evidence["as_if"].dump(), testing::HasSubstr("epsilon is 1e-6"));
}

TEST_F(Parts, AnUpdateThatCopiesItsGradientsIsFound) {
  parts.optimizer = [inner = parts.optimizer](const torch::nn::Module& module, double decay,
                                              TrainerParts::Numbers numbers) -> TrainerParts::Update {
    return [parameters = module.parameters(), update = inner(module, decay, numbers)](
               const TrainerParts::Clipping& clipping, double lr) {
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = parameter.grad().clone();
      update(clipping, lr);
    };
  };
  judge();
  EXPECT_TRUE(found(context, codes::kStepBytes)) << listed(context) << context.metrics.dump(1);
}

TEST_F(Parts, AClippingThatBeginsTooLateIsFound) {
  told([](TrainerParts::Clipping& clipping) {
    if (clipping.norm < 1.3 * clipping.most) clipping.norm = clipping.most;
  });
  judge();
  EXPECT_TRUE(found(context, codes::kWrongUpdate)) << listed(context);
}

TEST_F(Parts, AClippingThatIsForgottenIsNamed) {
  told([](TrainerParts::Clipping& clipping) { clipping.norm = clipping.most; });
  judge();
  ASSERT_TRUE(found(context, codes::kWrongUpdate)) << listed(context);
  EXPECT_THAT(finding(context, codes::kWrongUpdate).evidence["as_if"].dump(), testing::HasSubstr("are not clipped"));
}

TEST_F(Parts, ARateWithAFloorInsteadOfAnEndIsFound) {
  parts.rate = [](nsa::TrainConfig config, std::int64_t step) {
    const double floor = config.lr_min;
    config.lr_min = 0;
    return std::max(nsa::train::learning_rate(config, step), step < config.warmup_steps ? 0 : floor);
  };
  judge();
  EXPECT_TRUE(found(context, codes::kLearningRate)) << listed(context);
}

TEST_F(Parts, ABoundOfDivergenceThatIsOffIsFound) {
  parts.diverged = [inner = parts.diverged](std::int64_t vocab, const std::vector<double>& losses, std::size_t saved) {
    return inner(vocab * vocab, losses, saved);  // a model that knows nothing does twice as badly
  };
  judge();
  EXPECT_TRUE(found(context, codes::kGuardMissed)) << listed(context);
}

TEST_F(Parts, AGuardThatForgetsItsFirstLossIsFound) {
  parts.diverged = [inner = parts.diverged](std::int64_t vocab, std::vector<double> losses, std::size_t saved) {
    if (saved == 1) losses.front() = losses[1];
    return inner(vocab, losses, saved);
  };
  judge();
  ASSERT_TRUE(found(context, codes::kGuardMissed)) << listed(context);
  EXPECT_THAT(finding(context, codes::kGuardMissed).message, testing::HasSubstr("resumed after step 1 (loss"));
}

// Its best median is the newest one, so its bound rises with the losses.
TEST_F(Parts, AGuardThatRisesWithItsLossIsFound) {
  parts.diverged = [inner = parts.diverged](std::int64_t vocab, const std::vector<double>& losses, std::size_t saved) {
    const double lowest = *std::min_element(losses.begin(), losses.end()), last = losses.back();
    const bool slow = losses.size() > 8 * 64 && last < std::log(static_cast<double>(vocab)) && lowest < last;
    return !slow && inner(vocab, losses, saved);
  };
  judge();
  ASSERT_TRUE(found(context, codes::kGuardMissed)) << listed(context);
  EXPECT_THAT(finding(context, codes::kGuardMissed).message, testing::HasSubstr("forgets slowly"));
}

TEST_F(Parts, ANormInTheStorageTypeIsFound) {
  parts.norm = [](const torch::nn::Module& module) {
    at::Tensor sum;
    for (const auto& parameter : module.parameters()) {
      const at::Tensor squares = parameter.grad().square().sum();
      sum = sum.defined() ? sum + squares : squares;
    }
    return sum.sqrt().item<double>();
  };
  judge();
  ASSERT_TRUE(found(context, codes::kGradientNorm)) << listed(context);
  EXPECT_EQ(finding(context, codes::kGradientNorm).evidence["precision"], "bf16");
}

TEST_F(Parts, AnEvaluationWithAGraphIsFound) {
  parts.evaluate = [](const nsa::LanguageModel& model, nsa::train::BatchStream& stream, std::int64_t batches) {
    for (std::int64_t i = 0; i < batches; ++i) (void)model.ptr()->loss(stream.next().tokens);
  };
  judge();
  EXPECT_TRUE(found(context, codes::kStepBytes)) << listed(context) << context.metrics.dump(1);
}

TEST_F(Parts, UpdatesThatAreRoundedAwayAreFound) {
  use(torch::optim::AdamWOptions());  // keeps no copy in fp32
  judge();
  bool said = false;
  for (const auto& finding : context.findings)
    said = said || finding.message.find("they are rounded away") != std::string::npos;
  EXPECT_TRUE(said) << listed(context);
}

TEST_F(Parts, ASaveThatMakesRoomFirstIsFound) {
  parts.save = [inner = parts.save](const std::filesystem::path& folder, std::int64_t step) {
    for (const auto& file : std::filesystem::directory_iterator(folder.parent_path()))
      if (file.path() == folder)
        for (const auto& older : std::filesystem::directory_iterator(folder))
          if (older.is_regular_file()) std::filesystem::remove(older);
    inner(folder, step);
  };
  judge();
  ASSERT_TRUE(found(context, codes::kGuardMissed)) << listed(context);
  EXPECT_THAT(finding(context, codes::kGuardMissed).message, testing::HasSubstr("the one before is gone"));
}

TEST_F(Parts, AFileThatIsReadForEveryLineIsFound) {
  parts.read = [inner = parts.read](const std::filesystem::path& jsonl, std::int64_t epochs) {
    std::string line;
    for (std::ifstream lines(jsonl); std::getline(lines, line);) {
      std::ifstream again(jsonl, std::ios::binary);
      const std::string all{std::istreambuf_iterator<char>(again), {}};
      EXPECT_FALSE(all.empty());
    }
    return inner(jsonl, epochs);
  };
  judge();
  EXPECT_TRUE(found(context, codes::kReadAgain)) << listed(context);
}

TEST_F(Parts, APassTooManyIsFound) {
  parts.read = [inner = parts.read](const std::filesystem::path& jsonl, std::int64_t epochs) {
    return inner(jsonl, epochs + 1);
  };
  judge();
  ASSERT_TRUE(found(context, codes::kBatchOrder)) << listed(context);
  EXPECT_EQ(finding(context, codes::kBatchOrder).evidence["as_if"], "train.epochs = 1 were 2 passes, and 3 were 4");
}

}  // namespace
}  // namespace suites::training_cases
