// What is read of a run's folder, and the tables and the JSON over what was found.
#include "suites/selftest/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "harness/many_runs.hpp"
#include "harness/settings.hpp"
#include "suites/selftest/folder.hpp"
#include "suites/selftest/text.hpp"

namespace suites::selftest {
namespace {

using harness::Ended;
using harness::Job;
using harness::run_all;

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              (std::string("selftest.") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void put(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] Ended run(std::vector<std::string> argv, double limit_s = 20) const {
    Ended result;
    const std::vector<Job> jobs = {{"one", argv, folder_ / "log"}};
    EXPECT_EQ(
        run_all(
            argv[0], jobs, {1, limit_s}, [&](std::size_t, const Ended& how) { result = how; }, [](const auto&) {}),
        0);
    return result;
  }
  fs::path folder_;
};

TEST_F(Files, AFolderWithoutAReportSaysNothing) {
  EXPECT_TRUE(read_evidence(folder_, 1).report.is_null());
  EXPECT_TRUE(read_evidence(folder_ / "none", 1).report.is_null());
}

TEST_F(Files, ATornReportIsTroubleAndNoReport) {
  put("report.json", R"({"verdict": "READ)");
  const Evidence evidence = read_evidence(folder_, 0);
  EXPECT_FALSE(evidence.report.is_object());
  EXPECT_THAT(evidence.trouble, HasSubstr("is no report"));
  fs::remove(folder_ / "report.json");
  fs::create_directory(folder_ / "report.json");
  EXPECT_NE(read_evidence(folder_, 0).trouble, "");
}

TEST_F(Files, TimesComeFromTheJournalWhateverElseStandsThere) {
  put("report.json", "{}");
  put("events.jsonl",
      "{\"event\":\"run_begin\",\"t\":\"2026-11-26T07:00:00.000Z\"}\nno "
      "event\n{\"event\":\"finding\",\"code\":\"NSA-N001\"}\n"
      "{\"event\":\"finding\",\"code\":\"NSA-N001\",\"t\":\"2026-11-26T07:00:01.000Z\"}\n{\"event\":\"find");
  const Evidence evidence = read_evidence(folder_, 0);
  EXPECT_EQ(evidence.began, "2026-11-26T07:00:00.000Z");
  ASSERT_EQ(evidence.findings.size(), 1u);
}

TEST_F(Files, ForceRemovesOursOrNothing) {
  const fs::path out = folder_ / "old";
  fs::create_directories(out / "one");
  std::ofstream(out / "one.log") << "x";
  const FolderWish wish{out.string(), true, "self-test", [](const std::string& name) { return name == "one"; }};
  std::ofstream(out / "notes.txt") << "mine";
  EXPECT_THROW((void)make_folder(wish, "id"), harness::UsageError);
  EXPECT_TRUE(fs::exists(out / "one") && fs::exists(out / "one.log") && fs::exists(out / "notes.txt"));
  fs::remove(out / "notes.txt");
  EXPECT_EQ(make_folder(wish, "id"), out);
  EXPECT_TRUE(fs::is_empty(out));
}

TEST_F(Files, RunsEndAsTheyEnd) {
  EXPECT_EQ(run({"/bin/sh", "-c", "echo said; exit 7"}).exit_code, 7);
  std::ifstream log(folder_ / "log");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(log), {}), "said\n");
  EXPECT_EQ(run({"/bin/sh", "-c", "kill -SEGV $$"}).exit_code, 128 + 11);
  EXPECT_NE(run({"/no/such/program"}).trouble, "");
}

TEST_F(Files, ARunThatDoesNotEndIsKilled) {
  const Ended ended = run({"/bin/sh", "-c", "sleep 600"}, 0.2);
  EXPECT_THAT(ended.trouble, HasSubstr("still running"));
  EXPECT_LT(ended.wall_s, 60);
}

TEST_F(Files, SeveralRunAtOnceAndEachIsToldOnce) {
  std::vector<Job> jobs;
  for (int i = 0; i < 7; ++i)
    jobs.push_back({std::to_string(i), {"/bin/sh", "-c", "exit " + std::to_string(i)}, folder_ / std::to_string(i)});
  std::vector<int> codes(jobs.size(), -1);
  std::size_t most = 0;
  EXPECT_EQ(run_all(
                "/bin/sh", jobs, {3, 20},
                [&](std::size_t number, const Ended& how) {
                  EXPECT_EQ(codes[number], -1);
                  codes[number] = how.exit_code;
                },
                [&](const std::vector<std::string>& names) { most = std::max(most, names.size()); }),
            0);
  EXPECT_THAT(codes, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(most, 3u);
}

TEST_F(Files, AnInterruptionEndsWhatRuns) {
  const std::vector<Job> jobs = {{"one", {"/bin/sh", "-c", "sleep 600"}, folder_ / "log"}};
  const auto begin = std::chrono::steady_clock::now();
  int told = 0;
  EXPECT_EQ(run_all(
                "/bin/sh", jobs, {1, 600}, [&](std::size_t, const Ended&) { ++told; },
                [](const auto&) { (void)std::raise(SIGINT); }),
            SIGINT);
  EXPECT_EQ(told, 0) << "it did not end, it was ended";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

Result some_result() {
  Result result;
  result.level = "smoke";
  result.device = "cpu";
  Trial caught, survived, absent;
  caught.fault = "leak";
  caught.group = survived.group = absent.group = "kernels";
  caught.found_by = survived.found_by = absent.found_by = "parity";
  caught.outcome = Outcome::caught;
  caught.cause_first = true;
  caught.expected = caught.found = {"NSA-N005"};
  caught.seconds = 3.25;
  survived.fault = "ghost";
  survived.outcome = Outcome::survived;
  survived.must_catch = true;
  survived.expected = {"NSA-N001"};
  survived.command = "nsa-validate --inject ghost";
  absent.fault = "far";
  absent.outcome = Outcome::not_run;
  absent.why = "needs a GPU";
  result.trials = {caught, survived, absent};
  result.codes = {{{"NSA-N005", 1}}, {"NSA-N001"}, {"NSA-N002"}};
  result.clean = {20, 0, {}, {}};
  return result;
}

TEST(Text, TellsWhatSurvivedWithItsCommand) {
  const std::string text = text_of(some_result());
  EXPECT_THAT(text, HasSubstr("ghost"));
  EXPECT_THAT(text, HasSubstr("[must be caught]\n    nsa-validate --inject ghost\n"));
  EXPECT_THAT(text, HasSubstr("codes that faults here expect and nothing raised: NSA-N001\n"));
  EXPECT_THAT(
      text, HasSubstr("clean runs: 20, of which 0 raised an alarm; at 95 % the rate of false alarms is at most 0.139"));
  EXPECT_THAT(text, HasSubstr("selftest: 1 of 2 (50 %) of those that ran caught, 1 of 1 (100 %)"));
  EXPECT_THAT(text, HasSubstr(", 1 not run\n"));
  EXPECT_THAT(text, Not(HasSubstr("against")));
}

TEST(Text, ADropIsWorse) {
  Result result = some_result();
  result.comparison = Comparison{};
  result.baseline = "score.json";
  EXPECT_THAT(text_of(result), HasSubstr("against score.json: no worse\n"));
  result.comparison->lost = {"ghost"};
  EXPECT_THAT(text_of(result), HasSubstr("against score.json: WORSE\n  was caught and is not: ghost\n"));
  EXPECT_EQ(json_of(result)["baseline"]["worse"], true);
}

TEST(Text, JsonHoldsTheSame) {
  const Json json = json_of(some_result());
  EXPECT_EQ(json["schema"], kSchema);
  EXPECT_EQ(json["schema_version"], kSchemaVersion);
  EXPECT_EQ(json["total"]["caught"], 1);
  EXPECT_EQ(json["total"]["not_run"], 1);
  EXPECT_EQ(json["missed"], Json::array({"ghost"}));
  EXPECT_EQ(json["faults"].size(), 3u);
  EXPECT_EQ(json["faults"][0]["detected_s"], 3.25);
  EXPECT_NEAR(json["clean"]["upper_95"].get<double>(), 0.1391, 1e-4);
  EXPECT_FALSE(json.contains("baseline"));
}

}  // namespace
}  // namespace suites::selftest
