// Each judgement is silent of healthy ranks, and names rank and place of one that differs.
#include "suites/distributed/agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "suites/codes.hpp"
#include "suites/distributed/tests/made_records.hpp"

namespace suites::distributed_ranks {
namespace {

using testing::HasSubstr;
using tests::alone;
using tests::healthy;

void expect_one(const Disagreements& found, std::string_view code, const Json& ranks, const std::string& words = "") {
  ASSERT_EQ(found.size(), 1u) << (found.empty() ? "nothing is told" : found[1].message);
  EXPECT_EQ(found[0].code, code) << found[0].message;
  EXPECT_EQ(found[0].evidence.value("ranks", Json()), ranks) << found[0].message;
  EXPECT_THAT(found[0].message, HasSubstr(words));
}

TEST(OddOnes, AreTheFewAndOfTwoNotRankZero) {
  EXPECT_EQ(odd_ones({"a", "a", "b"}), std::vector<int>{2});
  EXPECT_EQ(odd_ones({"b", "a", "a"}), std::vector<int>{0});
  EXPECT_EQ(odd_ones({"a", "b"}), std::vector<int>{1});
  EXPECT_EQ(odd_ones({"b", "a"}), std::vector<int>{1});
  EXPECT_EQ(odd_ones({"a", "a"}), std::vector<int>{});
  EXPECT_EQ(odd_ones({}), std::vector<int>{});
}

TEST(RanksInWords, AreReadable) {
  EXPECT_EQ(ranks_in_words({}), "no rank");
  EXPECT_EQ(ranks_in_words({3}), "rank 3");
  EXPECT_EQ(ranks_in_words({0, 2, 3}), "ranks 0, 2 and 3");
}

TEST(Agreement, HealthyRanksAreLeftInPeace) {
  for (const int size : {1, 2, 3, 8}) {
    const Records records = healthy(size);
    EXPECT_TRUE(parameters_agree(records).empty());
    EXPECT_TRUE(figures_agree(records).empty());
    EXPECT_TRUE(rows_complete(records, alone(size)).empty());
    EXPECT_TRUE(no_parameter_skipped(records).empty());
    EXPECT_TRUE(finite_everywhere(records).empty());
    EXPECT_TRUE(clocks_agree(records, 5).empty());
    EXPECT_TRUE(reduced_once(records, 30).empty());
    EXPECT_TRUE(losses_agree(records.back(), alone(size), 1e-6, codes::kRankLoss).empty());
  }
}

TEST(ParametersAgree, NamesStepRankAndFirstParameter) {
  Records records = healthy(3);
  records[2].steps[1].parameters[1].bits = "other";
  records[2].steps[2].parameters[0].bits = "other";
  expect_one(parameters_agree(records), codes::kRanksDrift, {2}, "after step 1 head of rank 2");
}

TEST(ParametersAgree, OtherStepsOrParametersOrNoneAreNoAgreement) {
  Records records = healthy(3);
  records[1].steps.pop_back();
  expect_one(parameters_agree(records), codes::kRanksDrift, {1}, "3, 2, 3");
  records = healthy(3);
  records[0].steps[0].parameters.pop_back();
  expect_one(parameters_agree(records), codes::kRanksDrift, {0});
  EXPECT_FALSE(parameters_agree(healthy(2, 0)).empty());
  EXPECT_FALSE(parameters_agree({}).empty());
  records = healthy(2);
  for (RankRecord& record : records) record.steps[0].parameters.clear();
  EXPECT_FALSE(parameters_agree(records).empty());
}

TEST(FiguresAgree, ToTheLastBit) {
  Records records = healthy(3);
  records[1].steps[2].norm = std::nextafter(1.25, 2.0);
  expect_one(figures_agree(records), codes::kRankNorm, {1}, "step 2: rank 1 tells another norm");
  records = healthy(2);
  records[1].steps[0].loss = 2 * records[1].steps[0].loss;
  expect_one(figures_agree(records), codes::kRankLoss, {1});
}

TEST(RowsComplete, TellsMissingDoubleAndForeignRows) {
  Records records = healthy(3);
  records[2].steps[1].rows.clear();
  expect_one(rows_complete(records, alone(3)), codes::kRankRows, Json::array(), "1 are read by nobody, 0 twice");
  records = healthy(3);
  records[2].steps[1].rows.push_back("row 1.0");
  expect_one(rows_complete(records, alone(3)), codes::kRankRows, {2}, "0 are read by nobody, 1 twice");
  records = healthy(3);
  records[1].steps[0].rows = {"row 1.1"};  // of the next step
  expect_one(rows_complete(records, alone(3)), codes::kRankData, {1}, "and 1 are no rows of it");
}

TEST(RowsComplete, AStepThatStoppedIsNotJudged) {
  Records records = healthy(2);
  for (RankRecord& record : records) {
    record.steps[2].stop = "nonfinite_loss";
    record.steps[2].rows.push_back(record.steps[2].rows.front());
  }
  EXPECT_TRUE(rows_complete(records, alone(2)).empty());
}

TEST(RowsComplete, ARowThatStandsTwiceInTheDataIsReadTwice) {
  Records records = healthy(2, 1);
  RankRecord wanted = alone(2, 1);
  wanted.steps[0].rows = {"same", "same"};
  records[0].steps[0].rows = records[1].steps[0].rows = {"same"};
  EXPECT_TRUE(rows_complete(records, wanted).empty());
  wanted.steps[0].rows = {"same"};
  expect_one(rows_complete(records, wanted), codes::kRankRows, {1});
}

TEST(NoParameterSkipped, NamesTheRankButNotOneWithoutRows) {
  Records records = healthy(3);
  records[1].steps[2].parameters[1].arrivals = 0;
  expect_one(no_parameter_skipped(records), codes::kRankSkipsParameter, {1}, "step 2: no gradient of head");
  records[1].steps[2].rows.clear();
  EXPECT_TRUE(no_parameter_skipped(records).empty());
}

TEST(FiniteEverywhere, NamesTheIllRank) {
  Records records = healthy(3);
  records[2].steps[0].parameters[1].finite = false;
  ASSERT_EQ(finite_everywhere(records).size(), 2u) << "and that the product does not name it";
  EXPECT_EQ(finite_everywhere(records)[1].code, codes::kRankNotTold);
  for (RankRecord& record : records) record.steps[0].culprit = 2;
  expect_one(finite_everywhere(records), codes::kRankNotFinite, {2}, "gradient of head");
  for (RankRecord& record : records) record.steps[0].parameters[1].finite = false;
  EXPECT_TRUE(finite_everywhere(records).empty()) << "a fault of the model, not of a rank";
}

TEST(FiniteEverywhere, AStopWithoutAReasonIsTold) {
  Records records = healthy(2);
  for (RankRecord& record : records) record.steps[2].stop = "nonfinite_gradient";
  expect_one(finite_everywhere(records), codes::kRankNotFinite, Json::array(), "own share is finite");
}

TEST(ClocksAgree, NamesTheOneThatIsOff) {
  Records records = healthy(3);
  records[0].clock_s += 100;
  expect_one(clocks_agree(records, 5), codes::kRankClock, {0}, "100.0 s ahead");
  records[0].clock_s = std::nan("");
  EXPECT_FALSE(clocks_agree(records, 5).empty());
}

TEST(ReducedOnce, TellsASecondReductionAndNone) {
  Records records = healthy(2);
  records[1].steps[1].reduced_elements = 60;
  expect_one(reduced_once(records, 30), codes::kRankReductions, {1}, "60 elements");
  EXPECT_FALSE(reduced_once(healthy(2), 31).empty());
}

TEST(LossesAgree, TellsTheFirstStepAndTheFactor) {
  RankRecord record = healthy(2).front();
  const RankRecord wanted = alone(2);
  record.steps[1].loss *= 1 + 1e-5;
  expect_one(losses_agree(record, wanted, 1e-6, codes::kRankRun), codes::kRankRun, {0}, "step 1");
  record = healthy(2).front();
  record.steps[0].loss *= 2;
  const Disagreements doubled = losses_agree(record, wanted, 1e-6, codes::kRankLoss);
  ASSERT_EQ(doubled.size(), 1u);
  EXPECT_EQ(doubled[0].evidence.value("as_if", ""), "the loss were multiplied by the number of ranks");
  record.steps[0].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(losses_agree(record, wanted, 1e-6, codes::kRankLoss).size(), 1u);
  record = healthy(2).front();
  record.steps.pop_back();
  EXPECT_EQ(losses_agree(record, wanted, 1e-6, codes::kRankLoss).size(), 1u);
  EXPECT_EQ(losses_agree(healthy(2, 0).front(), alone(2, 0), 1e-6, codes::kRankLoss).size(), 1u);
}

TEST(Straggler, IsTheSlowestByName) {
  Records records = healthy(3, 5);
  for (StepSeen& step : records[1].steps) step.own_seconds = 0.03;
  const Straggler slow = straggler(records);
  EXPECT_EQ(slow.rank, 1);
  EXPECT_NEAR(slow.excess(), 0.03 / 0.0101 - 1, 1e-9);
}

}  // namespace
}  // namespace suites::distributed_ranks
