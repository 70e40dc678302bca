// written_down: silent on the product; its parts.
#include "suites/training/tests/written.hpp"

#include <ATen/ATen.h>

#include "suites/training/claims.hpp"

namespace suites::training_cases {
namespace {

TEST_F(WrittenDown, TheProductTellsWhatItDid) {
  for (const WrittenData data : {WrittenData::text, WrittenData::packed}) judge(healthy(data), context);
  for (const WrittenData data : {WrittenData::crops, WrittenData::shuffled, WrittenData::paragraphs}) {
    fs::remove_all(folder);
    run_with(data, {});
  }
  EXPECT_TRUE(context.findings.empty()) << listed(context);
  EXPECT_EQ(context.checks, 5 * 12 + 2);
}

// -- the parts

// Parameters that the flag cuts off are never updated, and their checkpoint says so.
TEST_F(WrittenDown, NoFlagForDebuggingMakesALiar) {
  for (const auto& [name, value] : {std::pair{"NSA_FORCE_BRANCH", "win"}, {"NSA_FORCE_UNIFORM_GATE", "1"}}) {
    ASSERT_EQ(setenv(name, value, 1), 0);
    judge(make_written_run(quick_trial(WrittenData::text, folder), context), context);
    unsetenv(name);
    EXPECT_TRUE(context.findings.empty()) << name << "\n" << listed(context);
    fs::remove_all(folder);
  }
}

TEST_F(WrittenDown, PlainDataIsTheStreamsWholePass) {
  for (const WrittenData kind : {WrittenData::text, WrittenData::packed}) {
    const nsa::TrainConfig config = healthy(kind).config.train;
    const PlainData data(config);
    for (const Split split : {Split::train, Split::validation}) {
      const auto wanted = (split == Split::train ? data.training : data.validation).batches(config);
      const auto stream = nsa::train::open_stream({.data = config.data,
                                                   .batch_size = config.batch_size,
                                                   .seq_len = config.seq_len,
                                                   .split = split,
                                                   .validation_share = config.validation_share,
                                                   .packed = config.packed});
      for (const PlainBatch& batch : wanted) ASSERT_EQ(plain(stream->next()), batch);
      EXPECT_FALSE(stream->next().tokens.defined());
      EXPECT_GE(wanted.size(), 2U);
    }
  }
}

// The case's documents are as awkward as they should be.
TEST_F(WrittenDown, TheDocumentsAreAwkward) {
  const nsa::TrainConfig config = healthy(WrittenData::packed).config.train;
  const PlainSplit training = PlainData(config).training;
  const auto S = static_cast<std::size_t>(config.seq_len);
  std::size_t longest = 0, ones = 0;
  for (std::size_t i = 0; i + 1 < training.begins.size(); ++i) {
    longest = std::max(longest, training.begins[i + 1] - training.begins[i]);
    ones += training.begins[i + 1] - training.begins[i] == 1 ? 1 : 0;
  }
  EXPECT_GT(longest, 2 * S);
  EXPECT_GT(ones, 2 * S);
  EXPECT_LT(training.batches(config).size(), (training.tokens.size() - 2) / S + 1) << "a row that predicts nothing";
  EXPECT_NE(training.tokens.find("北"), std::string::npos);
  EXPECT_LT(training.batches(config).size(), 14U) << "the pass ends within the run";
}

TEST_F(WrittenDown, NothingComparedIsNoSuccess) {
  Claims("a file", codes::kToldOtherwise).conclude(context);
  Claims nan("a file", codes::kToldOtherwise);
  nan.near("here", "loss", std::nan(""), 1, 1);
  nan.conclude(context);
  Claims missing("a file", codes::kToldOtherwise);
  missing.near("here", "loss", std::nullopt, 1, 1);
  missing.conclude(context);
  EXPECT_EQ(context.findings.size(), 3U);
}

}  // namespace
}  // namespace suites::training_cases
