#include "harness/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "harness/settings.hpp"
#include "harness/tests/support/fake_run.hpp"

namespace {

namespace fs = std::filesystem;
using harness::new_run_id;
using harness::RunFolder;
using harness::tests::TempFolder;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunFolder, IdIsUtcTimeAndFourHexDigits) {
  EXPECT_THAT(new_run_id(), testing::MatchesRegex("[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}"));
}

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
  temp.write("run/events.jsonl", "old");
  temp.write("run/report.json", "old");
  temp.write("run/suites/x.json", "old");
  temp.write("run/logs/worker-1.log", "old");
  temp.write("run/mine.txt", "precious");
  const fs::path run = temp.path() / "run";
  EXPECT_THAT(error_of([&] { RunFolder(run, "id", false); }), HasSubstr("holds an old run; --force replaces it"));
  EXPECT_TRUE(fs::exists(run / "events.jsonl"));
  RunFolder(run, "id", true).create();
  EXPECT_FALSE(fs::exists(run / "events.jsonl"));
  EXPECT_FALSE(fs::exists(run / "report.json"));
  EXPECT_FALSE(fs::exists(run / "suites"));
  EXPECT_TRUE(fs::is_empty(run / "logs"));
  EXPECT_EQ(harness::tests::read_text(run / "mine.txt"), "precious");
}

TEST(RunFolder, ARunThatDiedBeforeItsFirstEventIsAnOldRun) {
  const TempFolder temp;
  RunFolder(temp.path() / "run", "id", false).create();
  EXPECT_THAT(error_of([&] { RunFolder(temp.path() / "run", "id", false); }), HasSubstr("--force"));
  RunFolder(temp.path() / "run", "id", true).create();
}

TEST(RunFolder, ARunThatIsGoingOnIsNotTouchedWhateverIsAsked) {
  const TempFolder temp;
  const fs::path run = temp.path() / "run";
  std::optional<RunFolder> first(std::in_place, run, "id-1", false);
  RunFolder late(run, "id-2", true);  // looked before the first one began
  first->create();
  temp.write("run/events.jsonl", "of the first");
  for (const bool force : {false, true})
    EXPECT_THAT(error_of([&] { RunFolder(run, "id-2", force); }),
                testing::AllOf(HasSubstr("is in use by run id-1, process "), HasSubstr("--force does not touch it")));
  EXPECT_THAT(error_of([&] { late.create(); }), HasSubstr("is in use by run id-1"));
  EXPECT_EQ(harness::tests::read_text(run / "events.jsonl"), "of the first");
  first.reset();
  EXPECT_THAT(error_of([&] { RunFolder(run, "id-2", false).create(); }), HasSubstr("holds an old run"));
  late.create();
  EXPECT_FALSE(fs::exists(run / "events.jsonl"));
}

TEST(RunFolder, WhatCameMeanwhileIsSeenUnderTheLock) {
  const TempFolder temp;
  RunFolder run(temp.path() / "run", "id", false), foreign(temp.path() / "foreign", "id", true);
  temp.write("run/events.jsonl", "of a run that began and ended meanwhile");
  temp.write("foreign/mine.txt", "precious");
  EXPECT_THAT(error_of([&] { run.create(); }), HasSubstr("holds an old run"));
  EXPECT_THAT(error_of([&] { foreign.create(); }), HasSubstr("not empty and not an old run"));
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
  EXPECT_THAT(error_of([&] { RunFolder(temp.path() / "home", "id", true); }),
              HasSubstr("not empty and not an old run"));
  EXPECT_THAT(error_of([&] { RunFolder(temp.path() / "home/mine.txt", "id", true); }), HasSubstr("is not a folder"));
  EXPECT_THAT(error_of([&] { RunFolder(temp.path() / "home/mine.txt/run", "id", true); }), HasSubstr("--out: "));
}

TEST(RunFolder, UnwritableIsSaidWithPathAndReason) {
  if (geteuid() == 0) {
    EXPECT_THAT(error_of([] { RunFolder("/proc/nothing/run", "id", false).create(); }), HasSubstr("--out: /proc"));
    return;
  }
  EXPECT_THAT(error_of([] { RunFolder("/usr/run", "id", false); }),
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
