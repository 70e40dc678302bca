#include "suites/throughput/step_count.hpp"

#include <gtest/gtest.h>

#include <map>

namespace suites::throughput_cases {
namespace {

nsa::Config config() {
  nsa::Config config;
  config.model.n_layers = 2;
  config.train.precision = nsa::Precision::fp32;
  config.train.seq_len = 1024;
  return config;
}
nsa::Route route(const nsa::Config& config, bool masked) {
  nsa::EffectiveFlags flags;
  flags.sel_mask = masked;
  flags.sel_pack = !masked;
  nsa::Call call;
  call.S = config.train.seq_len;
  call.geometry = config.model.nsa;
  call.training = true;
  return nsa::route(flags, call);
}
std::map<std::string, double> parts(const nsa::Config& of, bool masked) {
  const StepCount count = count_step(of, route(of, masked));
  return {count.parts.begin(), count.parts.end()};
}

TEST(StepCount, TokensLayersAndTypesScaleTheirParts) {
  nsa::Config twice = config();
  twice.train.accumulate_grad_batches = 2;
  EXPECT_DOUBLE_EQ(parts(twice, false)["mlp"], 2 * parts(config(), false)["mlp"]);
  twice = config();
  twice.model.n_layers = 4;
  EXPECT_DOUBLE_EQ(parts(twice, false)["projections"], 2 * parts(config(), false)["projections"]);
  nsa::Config narrow = config();
  narrow.train.precision = nsa::Precision::bf16;
  EXPECT_DOUBLE_EQ(parts(narrow, false)["mlp"], parts(config(), false)["mlp"] / 2);
}

TEST(StepCount, GatheredBlocksAreCountedByTheirRowsAndAMaskByItsPairs) {
  const nsa::Config c = config();  // 16 blocks of 64 tokens chosen: all 1024 columns
  const double rows = 2.0 * 1024 * 1024 * (4 * 2 * (64 + 64) + 2 * 9) * 2;
  EXPECT_DOUBLE_EQ(parts(c, false)["chosen blocks"], rows);
  nsa::Config longer = c;
  longer.train.seq_len = 2048;
  EXPECT_DOUBLE_EQ(parts(longer, false)["chosen blocks"], 2 * rows) << "linear: the number of chosen blocks is fixed";
  EXPECT_DOUBLE_EQ(parts(longer, true)["chosen blocks"], 4 * parts(c, true)["chosen blocks"]) << "quadratic";
}

TEST(StepCount, TheTotalIsTheSumOfTheParts) {
  const StepCount count = count_step(config(), route(config(), false));
  double sum = 0;
  for (const auto& [part, bytes] : count.parts) sum += bytes;
  EXPECT_DOUBLE_EQ(count.total(), sum);
  EXPECT_EQ(count.to_json().size(), count.parts.size());
}

}  // namespace
}  // namespace suites::throughput_cases
