// Every planted fault of a rank is found by the suite: its code leads, with the rank by name, and nothing stays behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "base/clock.hpp"
#include "nsa/tests/needs_gloo.hpp"
#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/registry.hpp"
#include "suites/tests/planting.hpp"

namespace suites {
namespace {

// What two ranks at smoke show of it.
class RankFaults : public testing::TestWithParam<std::string> {};

std::vector<std::string> names_of_rank_faults() {
  std::vector<std::string> names;
  for (const Planted& fault : rank_mutants(std::make_shared<Seams>())) names.push_back(fault.name);
  return names;
}

TEST_P(RankFaults, LeadTheirFindings) {
  NSA_NEEDS_GLOO();
  const auto seams = std::make_shared<Seams>();
  seams->names = {GetParam()};  // what the worker would give its ranks; the process that stands alone is not struck
  const std::vector<Planted> all = rank_mutants(seams);
  const auto fault = std::find_if(all.begin(), all.end(), [](const Planted& one) { return one.name == GetParam(); });
  harness::Settings settings = tests::default_settings(distributed);
  settings.set("distributed.timeout_s", "3", "test");
  const auto start = std::chrono::steady_clock::now();
  const tests::RecordingContext context = tests::run_case(distributed(Subject(seams)), "two_ranks", settings);
  const double seconds = base::seconds_since(start);
  ASSERT_FALSE(context.findings.empty()) << "nothing was found";
  const auto& first = context.findings.front();
  const auto& codes = fault->expected_codes;
  EXPECT_NE(std::find(codes.begin(), codes.end(), first.code), codes.end()) << tests::listed(context);
  std::string others;
  for (std::size_t i = 1; i < context.findings.size(); ++i) others += " " + context.findings[i].code;
  std::cout << "fault " << GetParam() << ": " << first.code << " after " << seconds << " s: " << first.message
            << (others.empty() ? "" : " | and" + others) << std::endl;
}

INSTANTIATE_TEST_SUITE_P(All, RankFaults, testing::ValuesIn(names_of_rank_faults()), [](const auto& tried) {
  std::string name = tried.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Of what N ranks saved, those that go on with it lose a batch.
TEST(ResumeOfRanks, IsNotTheSameRun) {
  NSA_NEEDS_GLOO();
  const auto seams = std::make_shared<Seams>();
  seams->names = {"rank-loses-a-batch"};
  const tests::RecordingContext context =
      tests::run_case(distributed(Subject(seams)), "resume[from=2,to=3]", tests::default_settings(distributed));
  ASSERT_FALSE(context.findings.empty());
  EXPECT_EQ(context.findings.front().code, codes::kRankResume) << tests::listed(context);
}

}  // namespace
}  // namespace suites
