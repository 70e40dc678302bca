// The judgements over tensors say no to what is wrong, and by what factor or mistake.
#include "suites/distributed/gradients.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "suites/codes.hpp"
#include "suites/distributed/tests/made_records.hpp"
#include "suites/distributed/trial.hpp"

namespace suites::distributed_ranks {
namespace {

constexpr double kTol = 1e-9;
const at::TensorOptions kWide = at::TensorOptions().dtype(at::kDouble);

Tensors made() {
  Tensors tensors;
  tensors["gradient/embedding"] = at::linspace(-1, 1, 10, kWide);
  tensors["gradient/head"] = at::linspace(0.1, 0.5, 4, kWide);
  return tensors;
}

// Two ranks whose shares of each gradient are its halves; and the norm of the whole.
Records shares_of(const Tensors& tensors) {
  Records records = tests::healthy(2, 1);
  double square = 0;
  for (const auto& [name, value] : tensors) square += value.square().sum().item<double>();
  for (RankRecord& record : records) {
    record.steps[0].norm = std::sqrt(square);
    for (ParameterSeen& parameter : record.steps[0].parameters)
      parameter.own_norm = 0.5 * tensors.at("gradient/" + parameter.name).norm().item<double>();
  }
  return records;
}

TEST(DistributedTrial, RunsOnGpusWhereAllThatTakePartHaveOne) {
  EXPECT_TRUE(runs_on_gpus({.ranks = 2}, 2));
  EXPECT_FALSE(runs_on_gpus({.ranks = 3}, 2));
  EXPECT_FALSE(runs_on_gpus({.ranks = 1, .most_ranks = 2}, 1)) << "a checkpoint of one goes on with two";
  EXPECT_FALSE(runs_on_gpus({.ranks = 1, .most_ranks = 4}, 2)) << "one is timed against four";
}

std::string as_if(const Disagreements& found) { return found.empty() ? "" : found[0].evidence.value("as_if", ""); }

TEST(GradientsAgree, WithinSumsInAnotherOrderAndNoFurther) {
  const Tensors wanted = made();
  const Records records = shares_of(wanted);
  Measured measured;
  Tensors seen = made();
  EXPECT_TRUE(gradients_agree(seen, wanted, records, kTol, measured).empty());
  seen["gradient/head"][2] += 0.5 * kTol;
  EXPECT_TRUE(gradients_agree(seen, wanted, records, kTol, measured).empty());
  EXPECT_GT(measured.worst, 0);
  seen["gradient/head"][2] += 2 * kTol;
  const Disagreements found = gradients_agree(seen, wanted, records, kTol, measured);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, codes::kRankGradients);
  EXPECT_EQ(measured.parameter, "head");
  EXPECT_EQ(as_if(found), "");
}

TEST(GradientsAgree, NameTheFactor) {
  const Tensors wanted = made();
  const Records records = shares_of(wanted);
  Measured measured;
  const auto times = [&](double factor) {
    Tensors seen = made();
    for (auto& [name, value] : seen) value = value * factor;
    return as_if(gradients_agree(seen, wanted, records, kTol, measured));
  };
  EXPECT_EQ(times(2), "the loss were multiplied by the number of ranks");
  EXPECT_EQ(times(0.5), "the gradients were divided by the number of ranks once too often");
  EXPECT_EQ(times(3), "all gradients were multiplied by 3");
}

TEST(GradientsAgree, NotWhereOneIsNaNOrMissingOrOfAnotherShape) {
  const Tensors wanted = made();
  const Records records = shares_of(wanted);
  Measured measured;
  Tensors seen = made();
  seen["gradient/embedding"][0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(gradients_agree(seen, wanted, records, kTol, measured).size(), 1u);
  seen = made();
  seen.erase("gradient/head");
  EXPECT_EQ(gradients_agree(seen, wanted, records, kTol, measured).size(), 1u);
  seen["gradient/head"] = at::zeros({5}, kWide);
  EXPECT_EQ(gradients_agree(seen, wanted, records, kTol, measured).size(), 1u);
  EXPECT_EQ(gradients_agree({}, {}, records, kTol, measured).size(), 1u) << "nothing was compared";
}

TEST(NormOfTheSum, NamesTheRankAndItsOwnShare) {
  const Tensors seen = made();
  Records records = shares_of(seen);
  EXPECT_TRUE(norm_of_the_sum(seen, records, kTol).empty());
  records[1].steps[0].norm /= 2;  // the norm of its half
  const Disagreements found = norm_of_the_sum(seen, records, kTol);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, codes::kRankNorm);
  EXPECT_EQ(found[0].evidence["ranks"], Json::array({1}));
  EXPECT_EQ(as_if(found), "it were taken over the rank's own gradients, before they are summed");
  records[1].steps[0].norm = std::nan("");
  EXPECT_EQ(norm_of_the_sum(seen, records, kTol).size(), 1u);
  EXPECT_EQ(norm_of_the_sum({}, records, kTol).size(), 1u);
}

TEST(UpdateFollows, FromTheClippedGradients) {
  nsa::TrainConfig train;
  train.precision = nsa::Precision::fp64;
  train.weight_decay = 0.1;
  train.grad_clip = 0.25;
  constexpr double kRate = 0.01;
  Tensors seen = made();
  double square = 0;
  for (const auto& [name, value] : made()) square += value.square().sum().item<double>();
  for (const auto& [name, value] : made()) {
    const std::string parameter = name.substr(9);
    const at::Tensor own = value * (train.grad_clip / std::sqrt(square)), weight = at::ones_like(value);
    seen["before/" + parameter] = weight;
    seen["after/" + parameter] = weight * (1 - kRate * train.weight_decay) - kRate * own / (own.abs() + 1e-8);
  }
  Measured measured;
  EXPECT_TRUE(update_follows(seen, train, kRate, kTol, measured).empty()) << measured.worst;
  Tensors wrong = seen;
  wrong["after/head"] = wrong["after/head"] + 1e-6;
  EXPECT_EQ(update_follows(wrong, train, kRate, kTol, measured).size(), 1u);
  EXPECT_EQ(measured.parameter, "head");
  wrong["after/head"].fill_(std::nan(""));
  EXPECT_EQ(update_follows(wrong, train, kRate, kTol, measured).size(), 1u);
  wrong.erase("after/head");
  EXPECT_EQ(update_follows(wrong, train, kRate, kTol, measured).size(), 1u) << "one was not seen";
}

TEST(BlocksAgree, RowByRowWhereverARowIs) {
  Records records = tests::healthy(2, 1);
  const RankRecord alone = tests::alone(2, 1);
  const at::Tensor blocks = at::arange(2 * 3 * 1 * 2).view({2, 3, 1, 2});
  const Tensors wanted = {{"blocks/0", blocks}};
  std::vector<Tensors> seen = {{{"blocks/0", blocks.narrow(0, 0, 1)}}, {{"blocks/0", blocks.narrow(0, 1, 1).clone()}}};
  EXPECT_TRUE(blocks_agree(seen, records, wanted, alone).empty());
  seen[1]["blocks/0"][0][2][0][1] = 99;
  const Disagreements found = blocks_agree(seen, records, wanted, alone);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, codes::kRankBlocks);
  EXPECT_EQ(found[0].evidence["ranks"], Json::array({1}));
  EXPECT_EQ(blocks_agree({{}, {}}, records, {}, alone).size(), 1u) << "nothing was compared";
}

TEST(Tolerance, GrowsWithWhatIsSummedAndIsSmall) {
  nsa::Config config;
  config.model.n_layers = 2;
  config.model.dim = 64;
  config.train.seq_len = 48;
  config.train.precision = nsa::Precision::fp32;
  EXPECT_GT(tolerance(config, 12), tolerance(config, 6));
  EXPECT_LT(tolerance(config, 24), 1e-2) << "a row of 24 that is lost changes a gradient by more";
  config.train.precision = nsa::Precision::fp64;
  EXPECT_LT(tolerance(config, 24), 1e-11);
  config.train.steps = 20;
  config.train.lr = 3e-3;
  const StepSeen first = tests::healthy(1, 1).front().steps.front();
  EXPECT_LT(tolerance_of_a_run(config, first, 140'000, tolerance(config, 24)), 1e-6);
}

}  // namespace
}  // namespace suites::distributed_ranks
