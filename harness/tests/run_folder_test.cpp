#include "harness/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "harness/settings.hpp"
#include "harness/suite.hpp"
#include "harness/tests/support/fake_run.hpp"

namespace {

namespace fs = std::filesystem;
using harness::RunFolder;
using harness::tests::TempFolder;
using testing::HasSubstr;

std::string error_of_folder(const std::function<void()>& act) {
  try {
    act();
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "no error";
}

// The first line of a run's journal, with suites a and b in its plan.
constexpr const char* kBegin =
    R"({"event":"run_begin","t":"2026-11-21T01:31:05.123Z","seq":0,"schema":"nsa-validate/event","schema_version":"0.9.0",)"
    R"("plan":{"suites":[{"name":"a"},{"name":"b"}]}})"
    "\n";

TEST(RunFolder, NewAndEmptyFoldersAreFine) {
  const TempFolder temp;
  RunFolder(temp.path() / "a" / "b", "id", false).create();
  EXPECT_TRUE(fs::is_directory(temp.path() / "a" / "b" / "logs"));
  fs::create_directory(temp.path() / "empty");
  RunFolder(temp.path() / "empty/", "id", false).create();
  EXPECT_TRUE(fs::is_directory(temp.path() / "empty" / "logs"));
}

TEST(RunFolder, CheckingCreatesNothing) {
  const TempFolder temp;
  const RunFolder folder(temp.path() / "new", "id", false);
  EXPECT_FALSE(fs::exists(folder.path()));
}

TEST(RunFolder, AnOldRunNeedsForceAndForeignFilesStay) {
  const TempFolder temp;
  temp.write("run/events.jsonl", kBegin);
  for (const char* name : {"report.json", "report.html.tmp", "suites/a.json", "suites/b.json.tmp", "logs/worker-1.log",
                           "logs/stacks-12.txt", "logs/waiting-3.txt"})
    temp.write(std::string("run/") + name, "old");
  temp.write("run/mine.txt", "precious");
  const fs::path run = temp.path() / "run";
  EXPECT_THAT(error_of_folder([&] { RunFolder(run, "id", false); }),
              HasSubstr("holds an old run; --force replaces it"));
  EXPECT_TRUE(fs::exists(run / "events.jsonl"));
  RunFolder(run, "id", true).create();
  EXPECT_FALSE(fs::exists(run / "events.jsonl"));
  EXPECT_FALSE(fs::exists(run / "report.json"));
  EXPECT_FALSE(fs::exists(run / "report.html.tmp"));
  EXPECT_FALSE(fs::exists(run / "suites"));
  EXPECT_TRUE(fs::is_empty(run / "logs"));
  EXPECT_EQ(harness::tests::read_text(run / "mine.txt"), "precious");
}

TEST(RunFolder, ForceTakesNoFolderThatNoJournalProves) {
  const TempFolder temp;
  const fs::path p = temp.path() / "p";
  temp.write("p/suites/mine.cpp", "precious");
  temp.write("p/logs/worker-1.log", "precious");
  const auto refused = [&](const char* why) {
    EXPECT_THAT(error_of_folder([&] { RunFolder(p, "id", true); }),
                testing::AllOf(HasSubstr("not empty and not an old run"), HasSubstr(why)));
    EXPECT_EQ(harness::tests::read_text(p / "suites/mine.cpp"), "precious");
    EXPECT_EQ(harness::tests::read_text(p / "logs/worker-1.log"), "precious");
  };
  refused("it has no events.jsonl");
  temp.write("p/report.md", "mine");
  refused("it has no events.jsonl");
  for (const std::string& journal :
       std::vector<std::string>{std::string("my events\n"), std::string(kBegin, 30), std::string(), std::string("[]\n"),
                                std::string(R"({"event":"run_begin","schema":"other"})"
                                            "\n")}) {
    temp.write("p/events.jsonl", journal);
    refused("does not begin as that of a run");
  }
  fs::remove(p / "events.jsonl");
  fs::create_symlink(temp.write("elsewhere.jsonl", kBegin), p / "events.jsonl");
  refused("does not begin as that of a run");
}

TEST(RunFolder, ForceLeavesForeignFilesAmongThoseOfTheRun) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run";
  temp.write("run/events.jsonl", kBegin);
  for (const char* name : {"suites/a.json", "suites/mine.cpp", "suites/c.json", "logs/worker-1.log",
                           "logs/worker-x.log", "logs/kept/worker-2.log"})
    temp.write(std::string("run/") + name, name);
  temp.write("elsewhere/file", "precious");
  fs::create_directory_symlink(temp.path() / "elsewhere", run / "logs/worker-3.log");
  testing::internal::CaptureStderr();
  RunFolder(run, "id", true).create();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(HasSubstr("suites/mine.cpp is not of the run that --force replaces, and stays"),
                             HasSubstr("logs/worker-x.log"), testing::Not(HasSubstr("a.json"))));
  EXPECT_FALSE(fs::exists(run / "suites/a.json"));
  EXPECT_FALSE(fs::exists(run / "logs/worker-1.log"));
  for (const char* name : {"suites/mine.cpp", "suites/c.json", "logs/worker-x.log", "logs/kept/worker-2.log"})
    EXPECT_EQ(harness::tests::read_text(run / name), name);
  EXPECT_EQ(harness::tests::read_text(temp.path() / "elsewhere/file"), "precious");
}

TEST(RunFolder, ForceRemovesWhatPlannedCasesHaveLeft) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run";
  temp.write("run/events.jsonl", R"({"event":"run_begin","schema":"nsa-validate/event",)"
                                 R"("plan":{"suites":[{"name":"a","cases":[{"id":"a/one"},{"id":"a/two"},7]}]}})"
                                 "\n");
  const std::string one = "run/artifacts/" + harness::case_slug("a/one"),
                    two = "run/artifacts/" + harness::case_slug("a/two");
  for (const std::string& name : {one + "/repro.py", one + "/inputs.pt", two + "/repro.py", two + "/mine.py",
                                  std::string("run/artifacts/other/repro.py")})
    temp.write(name, "x");
  testing::internal::CaptureStderr();
  RunFolder(run, "id", true).create();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::AllOf(HasSubstr("mine.py"), HasSubstr("other")));
  EXPECT_FALSE(fs::exists(temp.path() / one));
  EXPECT_FALSE(fs::exists(temp.path() / two / "repro.py"));
  EXPECT_TRUE(fs::exists(temp.path() / two / "mine.py"));
  EXPECT_TRUE(fs::exists(run / "artifacts/other/repro.py"));
}

TEST(RunFolder, ForceFollowsNoLinkAndRemovesNoFolder) {
  const TempFolder temp;
  temp.write("elsewhere/worker-1.log", "precious");
  for (const char* name : {"suites", "logs", "artifacts", "report.md"}) {
    const fs::path run = temp.path() / (std::string("run-") + name);
    temp.write(run.filename().string() + "/events.jsonl", kBegin);
    fs::create_directory_symlink(temp.path() / "elsewhere", run / name);
    EXPECT_THAT(error_of_folder([&] { RunFolder(run, "id", true); }),
                testing::AllOf(HasSubstr(std::string(name) + " is a link"), HasSubstr("nothing was removed")));
    fs::remove(run / name);
    EXPECT_TRUE(fs::exists(run / "events.jsonl"));
  }
  EXPECT_EQ(harness::tests::read_text(temp.path() / "elsewhere/worker-1.log"), "precious");
  temp.write("run/events.jsonl", kBegin);
  temp.write("run/report.md/mine.txt", "precious");
  EXPECT_THAT(error_of_folder([&] { RunFolder(temp.path() / "run", "id", true); }),
              HasSubstr("report.md is no regular file"));
  EXPECT_EQ(harness::tests::read_text(temp.path() / "run/report.md/mine.txt"), "precious");
}

TEST(RunFolder, ALockThatIsNoFileIsRefusedByName) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run", lock = run / ".run.lock";
  temp.write("precious", "keep");
  temp.write("run/events.jsonl", kBegin);
  const auto refused = [&](const char* is) {
    for (const bool force : {false, true})
      EXPECT_THAT(error_of_folder([&] { RunFolder(run, "id", force); }),
                  testing::AllOf(HasSubstr(".run.lock is "), HasSubstr(is), HasSubstr("a run makes a file there")));
    fs::remove(lock);
  };
  fs::create_symlink("../precious", lock);
  refused("a link");
  fs::create_symlink("nowhere", lock);
  refused("a link");
  fs::create_directory(lock);
  refused("no regular file");
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  refused("no regular file");
  RunFolder late(run, "id", true);  // looked before it came
  fs::create_symlink("../precious", lock);
  EXPECT_THAT(error_of_folder([&] { late.create(); }), HasSubstr(".run.lock is a link"));
  fs::remove(lock);
  fs::remove(run / "events.jsonl");
  fs::create_symlink("../precious", lock);
  EXPECT_THAT(error_of_folder([&] { RunFolder(run, "id", false); }), HasSubstr(".run.lock is a link"))
      << "an empty folder";
  EXPECT_EQ(harness::tests::read_text(temp.path() / "precious"), "keep");
  EXPECT_FALSE(fs::exists(run / "nowhere"));
}

TEST(RunFolder, AJournalThatWasCutInItsFirstLineIsARunThatHardlyBegan) {
  const TempFolder temp;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{60}}) {
    temp.write("run/events.jsonl", std::string(kBegin, bytes));
    temp.write("run/.reserve", "");
    fs::create_directories(temp.path() / "run/logs");
    RunFolder(temp.path() / "run", "id", true).create();
    EXPECT_FALSE(fs::exists(temp.path() / "run/events.jsonl")) << bytes;
  }
  temp.write("run/events.jsonl", std::string(kBegin) + R"({"event":"case_b)");
  temp.write("run/logs/worker-1.log", "");
  RunFolder(temp.path() / "run", "id", true).create();
  EXPECT_TRUE(fs::is_empty(temp.path() / "run/logs"));
}

TEST(RunFolder, ARunThatDiedBeforeItsFirstEventIsAnOldRun) {
  const TempFolder temp;
  RunFolder(temp.path() / "run", "id", false).create();
  EXPECT_THAT(error_of_folder([&] { RunFolder(temp.path() / "run", "id", false); }), HasSubstr("--force"));
  RunFolder(temp.path() / "run", "id", true).create();
}

TEST(RunFolder, ARunThatIsGoingOnIsNotTouchedWhateverIsAsked) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run";
  std::optional<RunFolder> first(std::in_place, run, "id-1", false);
  RunFolder late(run, "id-2", true);  // looked before the first one began
  first->create();
  temp.write("run/events.jsonl", kBegin);
  for (const bool force : {false, true})
    EXPECT_THAT(error_of_folder([&] { RunFolder(run, "id-2", force); }),
                testing::AllOf(HasSubstr("is in use by run id-1, process "), HasSubstr("--force does not touch it")));
  EXPECT_THAT(error_of_folder([&] { late.create(); }), HasSubstr("is in use by run id-1"));
  EXPECT_EQ(harness::tests::read_text(run / "events.jsonl"), kBegin);
  first.reset();
  EXPECT_THAT(error_of_folder([&] { RunFolder(run, "id-2", false).create(); }), HasSubstr("holds an old run"));
  late.create();
  EXPECT_FALSE(fs::exists(run / "events.jsonl"));
}

TEST(RunFolder, WhatCameMeanwhileIsSeenUnderTheLock) {
  const TempFolder temp;
  RunFolder run(temp.path() / "run", "id", false), foreign(temp.path() / "foreign", "id", true);
  temp.write("run/events.jsonl", kBegin);  // of one that began and ended meanwhile
  temp.write("foreign/mine.txt", "precious");
  EXPECT_THAT(error_of_folder([&] { run.create(); }), HasSubstr("holds an old run"));
  EXPECT_THAT(error_of_folder([&] { foreign.create(); }), HasSubstr("not empty and not an old run"));
}

TEST(RunFolder, ALinkIsFollowedOnce) {
  const TempFolder temp;
  for (const char* name : {"one", "two"}) fs::create_directory(temp.path() / name);
  fs::create_directory_symlink("one", temp.path() / "latest");
  RunFolder folder(temp.path() / "latest", "id", false);
  folder.create();
  fs::remove(temp.path() / "latest");
  fs::create_directory_symlink("two", temp.path() / "latest");
  EXPECT_EQ(folder.path(), fs::canonical(temp.path() / "one")) << "the link may lead to another run by now";
}

TEST(RunFolder, ForceIsNoLicenceToUseAnyFolder) {
  const TempFolder temp;
  temp.write("home/mine.txt", "precious");
  EXPECT_THAT(error_of_folder([&] { RunFolder(temp.path() / "home", "id", true); }),
              HasSubstr("not empty and not an old run"));
  EXPECT_THAT(error_of_folder([&] { RunFolder(temp.path() / "home/mine.txt", "id", true); }),
              HasSubstr("is not a folder"));
  EXPECT_THAT(error_of_folder([&] { RunFolder(temp.path() / "home/mine.txt/run", "id", true); }), HasSubstr("--out: "));
}

TEST(RunFolder, UnwritableIsSaidWithPathAndReason) {
  if (geteuid() == 0) {
    EXPECT_THAT(error_of_folder([] { RunFolder("/proc/nothing/run", "id", false).create(); }),
                HasSubstr("--out: /proc"));
    return;
  }
  EXPECT_THAT(error_of_folder([] { RunFolder("/usr/run", "id", false); }),
              HasSubstr("/usr cannot be written: Permission denied"));
}

TEST(RunFolder, DefaultHasALinkToTheLatest) {
  const TempFolder temp;
  const fs::path before = fs::current_path();
  fs::current_path(temp.path());
  RunFolder(std::nullopt, "id-1", false).create();
  RunFolder(std::nullopt, "id-2", false).create();
  fs::current_path(before);
  EXPECT_EQ(fs::read_symlink(temp.path() / "out/latest"), "id-2");
  EXPECT_FALSE(fs::exists(temp.path() / "out/.latest-id-2"));
  EXPECT_TRUE(fs::is_directory(temp.path() / "out/id-1/logs"));
}

}  // namespace
