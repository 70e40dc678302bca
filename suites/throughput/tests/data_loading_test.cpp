#include "suites/throughput/data_loading.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "suites/codes.hpp"
#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::throughput_cases {
namespace {

using namespace std::chrono_literals;
using tests::RecordingContext;

RecordingContext judged(const Waiting& waiting) {
  static const harness::Settings settings = tests::default_settings(throughput);
  RecordingContext context(settings);
  judge_loading(context, waiting, harness::Json::array());
  return context;
}

TEST(DataLoading, FetchesAreTimedAndTheFirstStandsApart) {
  static const harness::Settings settings = tests::default_settings(throughput);
  RecordingContext context(settings);
  int calls = 0;
  const Fetches fetches = fetch(
      context,
      [&] {
        if (calls++ == 0) std::this_thread::sleep_for(20ms);
        return at::zeros({1, 3}, at::kLong);
      },
      10);
  EXPECT_GE(fetches.first_s, 0.020);
  EXPECT_EQ(fetches.seconds.size(), 10U);
  EXPECT_EQ(fetches.to_json()["fetches"], 10);
  EXPECT_LT(fetches.to_json()["p50_ms"].get<double>(), 20);
}

TEST(DataLoading, ASourceThatEndsIsAnError) {
  static const harness::Settings settings = tests::default_settings(throughput);
  RecordingContext context(settings);
  int left = 3;
  EXPECT_THROW((void)fetch(
                   context,
                   [&] {
                     return left-- > 0 ? at::zeros({1, 3}, at::kLong) : at::Tensor();
                   },
                   10),
               std::runtime_error);
}

TEST(DataLoading, QuickDataIsSilent) {
  const RecordingContext context = judged({std::vector<double>(12, 0.001), std::vector<double>(12, 0.1)});
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 2);
}

TEST(DataLoading, AShareThatIsTooLargeIsFound) {
  const RecordingContext context = judged({std::vector<double>(12, 0.03), std::vector<double>(12, 0.1)});
  EXPECT_EQ(context.grave_codes(), std::set<std::string>{std::string(codes::kDataLoading)});
  EXPECT_EQ(context.failed_checks, 1) << "30 % of the time; each batch is quick enough";
}

TEST(DataLoading, ASlowTailIsFoundThoughTheShareIsSmall) {
  Waiting waiting{std::vector<double>(12, 0.001), std::vector<double>(12, 1.0)};
  waiting.fetch_s[3] = waiting.fetch_s[7] = 0.3;
  const RecordingContext context = judged(waiting);
  EXPECT_EQ(context.failed_checks, 1);
}

TEST(DataLoading, NoStepsAtAllIsNoPass) { EXPECT_EQ(judged({}).failed_checks, 2); }

}  // namespace
}  // namespace suites::throughput_cases
