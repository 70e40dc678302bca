#include "reports/coverage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reports/tests/support/sample.hpp"

namespace reports {
namespace {

using sample::run_of;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

TEST(Scope, NeverClaimsMoreThanTheLevelCarries) {
  reports::Run run = run_of({Status::pass});
  const std::vector<std::pair<std::string, std::string>> wanted{
      {"smoke", "ready for the standard level"},
      {"standard", "ready for a watched training run of the tested configuration"}};
  for (const auto& [level, words] : wanted) {
    run.level = level;
    EXPECT_EQ(scope(run, Verdict::ready), words);
    EXPECT_THAT(scope(run, Verdict::conditional), testing::StartsWith("not ready"));
    EXPECT_THAT(scope(run, Verdict::not_ready), testing::StartsWith("not ready"));
    for (const auto verdict : {Verdict::ready, Verdict::conditional, Verdict::not_ready})
      EXPECT_THAT(scope(run, verdict), Not(testing::AnyOf(HasSubstr("full"), HasSubstr("soak")))) << "no such level";
  }
}

TEST(Scope, APartOfALevelOpensNothing) {
  reports::Run run = run_of({Status::pass});
  run.partial = true;
  EXPECT_EQ(scope(run, Verdict::ready), "ready as far as the selected cases go, which is less than the smoke level");
  EXPECT_THAT(not_tested(run), Contains(HasSubstr("the rest of the smoke level")));
}

TEST(NotTested, AGuardThatWasLeftOutIsNamed) {
  reports::Run run = run_of({Status::pass});
  run.provenance["selection"]["guards_left_out"] = {"preflight/train_folder: left out by name, although it is set"};
  EXPECT_EQ(not_tested(run).front(), "preflight/train_folder: left out by name, although it is set");
  for (const Json& other : {Json("words"), Json::array({1, 2}), Json()}) {
    run.provenance["selection"] = other;
    EXPECT_THAT(not_tested(run), Not(Contains(HasSubstr("left out by name"))));
    run.provenance["selection"] = {{"guards_left_out", other}};
    EXPECT_THAT(not_tested(run), Not(Contains(HasSubstr("left out by name"))));
  }
}

TEST(NotTested, GroupsCasesBySuiteAndReason) {
  reports::Run run = run_of({Status::skip, Status::skip, Status::skip, Status::skip, Status::pass, Status::blocked});
  for (int i = 0; i < 4; ++i) {
    run.suites[0].cases[static_cast<std::size_t>(i)].reason_code = "no_cuda";
    run.suites[0].cases[static_cast<std::size_t>(i)].required = false;
  }
  const auto lines = not_tested(run);
  EXPECT_EQ(lines[0],
            "alpha: 4 of 6 cases without a result, not required (no_cuda): alpha/case0; alpha/case1; alpha/case2; ...");
  EXPECT_EQ(lines[1], "alpha: 1 of 6 cases without a result, required (blocked): alpha/case5");
}

TEST(NotTested, NamesWhatTheLevelNeverCovers) {
  reports::Run run = run_of({Status::pass});
  for (const auto* wanted : {"long runs", "resuming", "beyond two ranks", "beyond its sweep"}) {
    EXPECT_THAT(not_tested(run), Contains(HasSubstr(wanted)));
  }
  EXPECT_THAT(not_tested(run), Not(Contains(HasSubstr("CPU"))));
  run.device = "cpu";
  EXPECT_THAT(not_tested(run), Contains(HasSubstr("the GPU")));
  run.level = "standard";
  EXPECT_THAT(not_tested(run), Contains(HasSubstr("never covered by any level: endurance")));
  EXPECT_THAT(not_tested(run), Contains(HasSubstr("more GPUs than this machine has")));
}

TEST(NotTested, NamesSuitesThatWereBuiltOnButNotSelected) {
  reports::Run run = run_of({Status::pass});
  run.suites[0].requires_suites = {"preflight"};
  EXPECT_THAT(not_tested(run), Contains("preflight: not selected, although alpha builds on it"));
}

}  // namespace
}  // namespace reports
