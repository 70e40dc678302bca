// One run a folder: whatever happens to the folder, no run tells another's verdict, and none tells one of its own over
// a journal that is not its own any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "harness/tests/support/fake_run.hpp"
#include "reports/journal.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::FakeRun;
using harness::tests::read_text;
using testing::HasSubstr;
using testing::Not;

void wait_for_cases(const FakeRun& fake, std::size_t begun) {
  for (int i = 0; i < 5000 && fake.events("case_begin").size() < begun; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

std::string run_of(const fs::path& report) { return reports::Json::parse(read_text(report))["run"]["id"]; }

// The first one must never be READY, the second one must be or be refused. (The same a hundred times, with
// more offsets: stress_two_runs.sh.)
TEST(TwoRuns, InOneFolderNoneTellsTheVerdictOfTheOther) {
  std::mt19937 random(11);
  for (int i = 0; i < 6; ++i) {
    FakeRun first, second;
    const std::string folder = first.run_folder().string();
    const pid_t one = first.start({"--suite", "gate,middle,good", "--gate", "block", "--out", folder, "--force"});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 80000));
    const pid_t two = second.start({"--suite", "good", "--out", folder, "--force"});
    const int first_code = first.wait(one), second_code = second.wait(two);
    EXPECT_THAT(first_code, testing::AnyOf(1, 2)) << first.err();
    EXPECT_THAT(second_code, testing::AnyOf(0, 2)) << second.err();
    EXPECT_THAT(first.out(), Not(HasSubstr("verdict: READY")));
    if (second_code == 2) {
      EXPECT_THAT(second.err(), HasSubstr("is in use by run "));
    }
    const reports::Run left = first.journal();
    EXPECT_EQ(run_of(first.run_folder() / "report.json"), left.id);
    for (const reports::Suite& suite : left.suites)
      EXPECT_EQ(run_of(first.run_folder() / "suites" / (suite.name + ".json")), left.id);
  }
}

TEST(TwoRuns, ALiveRunIsShownAndLeftAlone) {
  FakeRun fake, other;
  const pid_t pid = fake.start({"--suite", "good,stuck", "--out", "run"});
  wait_for_cases(fake, 4);  // three good ones, and one that sleeps
  EXPECT_EQ(other({"report", fake.run_folder().string()}), 8) << other.err();
  EXPECT_THAT(other.err(), HasSubstr("is in use by run "));
  EXPECT_THAT(other.out(), HasSubstr("incomplete: the journal of this run has no end"));
  EXPECT_THAT(other.out(), Not(HasSubstr("report: ")));
  EXPECT_FALSE(fs::exists(fake.run_folder() / "report.json"));
  EXPECT_EQ(other({"--suite", "good", "--force", "--out", fake.run_folder().string()}), 2);
  EXPECT_EQ(other({"doctor", "--force", "--out", fake.run_folder().string()}), 4);
  EXPECT_THAT(other.out(), HasSubstr("is in use by run "));
  kill(pid, SIGKILL);
  fake.wait(pid);
  EXPECT_EQ(other({"--suite", "good", "--force", "--out", fake.run_folder().string()}), 0)
      << "a lock ends with its process: " << other.err();
}

struct Damage {
  const char* name;
  std::function<void(const fs::path& journal, const std::string& good)> act;
};

TEST(TwoRuns, AJournalThatIsTakenAwayEndsTheRunWithoutAVerdict) {
  FakeRun good;
  ASSERT_EQ(good({"--suite", "good", "--out", "run"}), 0);
  const std::string whole = read_text(good.run_folder() / "events.jsonl");
  const std::vector<Damage> harms{
      {"deleted", [](const fs::path& journal, const std::string&) { fs::remove(journal); }},
      {"the folder deleted",
       [](const fs::path& journal, const std::string&) { fs::remove_all(journal.parent_path()); }},
      {"another run's in its place",
       [](const fs::path& journal, const std::string& text) {
         fs::remove(journal);
         std::ofstream(journal) << text;
       }},
      {"another run's written over it",
       [](const fs::path& journal, const std::string& text) { std::ofstream(journal) << text; }},
      {"emptied", [](const fs::path& journal, const std::string&) { fs::resize_file(journal, 0); }},
      {"lines added", [](const fs::path& journal, const std::string&) {
         std::ofstream(journal, std::ios::app) << R"({"event":"run_end"})" << '\n';
       }}};
  for (const Damage& harm : harms) {
    FakeRun fake;
    const pid_t pid = fake.start({"--suite", "gate,stuck", "--gate", "block", "--hang", "6", "--out", "run"});
    wait_for_cases(fake, 2);
    // What it writes when the case begins, which could come between the harm and the look at it.
    for (int i = 0; i < 5000 && fake.events("phase").empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const fs::path journal = fake.run_folder() / "events.jsonl";
    harm.act(journal, whole);
    const std::string after = read_text(journal);
    EXPECT_EQ(fake.wait(pid), 4) << harm.name << ": it does not wait for the case";
    EXPECT_THAT(fake.err(), testing::ContainsRegex("error: .*/events.jsonl: .*; the run cannot be judged"))
        << harm.name;
    EXPECT_THAT(fake.out(), HasSubstr("NOT READY")) << "what it had found is shown: " << harm.name;
    EXPECT_THAT(fake.out(), testing::ContainsRegex("summary: 0 passed, 1 failed, 0 skipped, . not run\n$"));
    EXPECT_EQ(read_text(journal), after) << harm.name;
    EXPECT_FALSE(fs::exists(fake.run_folder() / "report.json")) << harm.name;
  }
}

}  // namespace
