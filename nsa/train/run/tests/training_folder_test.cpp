#include "nsa/train/run/training_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/run/exit_code.hpp"

namespace {

namespace fs = std::filesystem;
using namespace nsa::train;
using nsa::fixtures::Scratch;
using testing::AnyOf;
using testing::HasSubstr;
using Mode = TrainingFolder::Mode;

std::string refusal(const fs::path& path, Mode mode) {
  try {
    const TrainingFolder folder(path, mode);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(TrainingFolder, ARunBeginsOnceAndGoesOn) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  std::string id;
  {
    TrainingFolder folder(path, Mode::fresh);
    EXPECT_FALSE(folder.goes_on());
    EXPECT_FALSE(fs::exists(path / "run.json"));  // until begin() nothing is in the way
    folder.begin({{"a", "1"}}, {{"pid", 1}});
    id = folder.run_id();
  }
  TrainingFolder folder(path, Mode::resume);
  EXPECT_TRUE(folder.goes_on());
  EXPECT_EQ(folder.run_id(), id);
  EXPECT_EQ(folder.last_start()["pid"], 1);
  folder.begin({{"a", "2"}}, {{"pid", 2}});
  const auto record = nlohmann::json::parse(read_text(path / "run.json"));
  EXPECT_EQ(record["starts"].size(), 2U);
  EXPECT_EQ(record["config"]["a"], "2");
}

TEST(TrainingFolder, OnlyOneProcessAtATime) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  {
    const TrainingFolder first(path, Mode::fresh);
    EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("another process trains in"));
  }
  EXPECT_EQ(refusal(path, Mode::resume), "");
}

TEST(TrainingFolder, ForceRemovesTheRunAndNothingElseAndOnlyWhenItBegins) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  TrainingFolder(path, Mode::fresh).begin({}, {});
  fs::create_directories(path / "checkpoints");
  for (const char* name : {"checkpoints/step_00000004.safetensors", ".HALT", ".HALT.stale", "stacks_hung_step_3.txt",
                           "metrics.csv", "metrics.csv.damaged", "notes.txt"})
    std::ofstream(path / name) << name;
  EXPECT_THAT(refusal(path, Mode::fresh), HasSubstr("holds a run"));
  {
    TrainingFolder folder(path, Mode::force);
    EXPECT_TRUE(fs::exists(path / "metrics.csv"));
    folder.begin({}, {});
  }
  for (const char* name :
       {"checkpoints", ".HALT.stale", "stacks_hung_step_3.txt", "metrics.csv", "metrics.csv.damaged"})
    EXPECT_FALSE(fs::exists(path / name)) << name;
  EXPECT_TRUE(fs::exists(path / "notes.txt"));
  EXPECT_TRUE(fs::exists(path / ".HALT")) << "somebody's order to stop: HaltFile decides";
}

TEST(TrainingFolder, PartsOfARunWithoutARecordAreNotGuessedAt) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  fs::create_directories(path / "checkpoints");
  EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("no run.json"));
  for (const char* record : {R"({"run_id": 3})", R"({"run_id": "r"})", R"({"run_id": "r", "starts": []})",
                             R"({"run_id": "r", "starts": 3})"}) {
    std::ofstream(path / "run.json") << record;
    EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("is no record of a run")) << record;
  }
  EXPECT_THAT(refusal(path, Mode::force), HasSubstr("no run.json of a run that --force could remove"));
}

TEST(TrainingFolder, ForceRemovesNothingThatNoRecordProves) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  fs::create_directories(path / "checkpoints");
  std::ofstream(path / "checkpoints/mine") << "precious";
  for (const char* record : {"", "x", "{}", R"({"run_id": "r"})", R"({"run_id": "r", "schema": "mine/1"})"}) {
    if (*record != 0) std::ofstream(path / "run.json") << record;
    EXPECT_THAT(refusal(path, Mode::force), HasSubstr("and no run.json of a run")) << record;
  }
  EXPECT_EQ(read_text(path / "checkpoints/mine"), "precious");
  fs::remove_all(path);
  fs::create_directories(path);
  std::ofstream(path / "notes.txt") << "mine";
  std::ofstream(path / "dtypes.txt") << "mine";  // would be written over
  EXPECT_THAT(refusal(path, Mode::force), HasSubstr("holds 'dtypes.txt'"));
  EXPECT_EQ(read_text(path / "dtypes.txt"), "mine");
  fs::remove(path / "dtypes.txt");
  EXPECT_EQ(refusal(path, Mode::force), "");
}

TEST(TrainingFolder, ForceLeavesForeignFilesAndFollowsNoLink) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  TrainingFolder(path, Mode::fresh).begin({}, {});
  fs::create_directories(path / "checkpoints");
  for (const char* name :
       {"checkpoints/step_00000004.safetensors", "checkpoints/mine", "checkpoints/step_x.safetensors",
        "checkpoints/step_-0000001.safetensors", "checkpoints/step_5.safetensors", "stacks_notes.txt"})
    std::ofstream(path / name) << name;
  testing::internal::CaptureStderr();
  TrainingFolder(path, Mode::force).begin({}, {});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("checkpoints/mine is not of the run"));
  EXPECT_FALSE(fs::exists(path / "checkpoints/step_00000004.safetensors"));
  for (const char* name :
       {"checkpoints/mine", "checkpoints/step_x.safetensors", "checkpoints/step_-0000001.safetensors",
        "checkpoints/step_5.safetensors", "stacks_notes.txt"})
    EXPECT_EQ(read_text(path / name), name);
  const fs::path link = path / "checkpoints/step_00000008.safetensors";
  fs::create_symlink(path / "notes.txt", link);
  EXPECT_THAT(refusal(path, Mode::force), HasSubstr(link.string() + " is a link"));
  fs::remove(link);
  fs::rename(path / "checkpoints", scratch / "disk");
  fs::create_directory_symlink(scratch / "disk", path / "checkpoints");
  EXPECT_THAT(refusal(path, Mode::force), HasSubstr("checkpoints is a link"));
  EXPECT_EQ(read_text(scratch / "disk" / "mine"), "checkpoints/mine");
}

// A pipe would hold the run for ever.
TEST(TrainingFolder, WhatIsNoFileIsRefusedByNameBeforeItIsOpened) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  TrainingFolder(path, Mode::fresh).begin({}, {});
  fs::create_directories(path / "checkpoints");
  fs::create_directories(path / "checkpoints/step_00000009.safetensors");  // is set aside
  for (const char* name :
       {"metrics.csv", "metrics.csv.tmp", "validation.csv", "heartbeat.jsonl", "dtypes.txt", "run.json", ".lock",
        "checkpoints/step_00000005.safetensors", "checkpoints/step_00000010.safetensors.tmp"}) {
    const fs::path file = path / name, kept = scratch / "kept";
    const bool there = fs::exists(file);
    if (there) fs::rename(file, kept);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_THAT(refusal(path, Mode::resume), HasSubstr(file.string() + " is no regular file")) << name;
    fs::remove(file);
    fs::create_symlink("/dev/zero", file);
    EXPECT_THAT(refusal(path, Mode::resume),
                AnyOf(HasSubstr(file.string() + " is no regular file"), HasSubstr(file.string() + " is a link")))
        << name;
    fs::remove(file);
    if (there) fs::rename(kept, file);
  }
  EXPECT_EQ(refusal(path, Mode::resume), "");
  fs::remove_all(path / "checkpoints");
  std::ofstream(path / "checkpoints") << "mine";
  EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("checkpoints is no folder"));
}

TEST(TrainingFolder, WhatWasTakenAwayIsTold) {
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> harms = {
      {"run: deleted or moved away", [](const fs::path& path) { fs::rename(path, path.string() + ".moved"); }},
      {"run: deleted or moved away", [](const fs::path& path) { fs::remove_all(path); }},
      {"run.json: deleted or moved away", [](const fs::path& path) { fs::remove(path / "run.json"); }},
      {".lock: deleted or moved away", [](const fs::path& path) { fs::remove(path / ".lock"); }},
      {".lock: replaced",
       [](const fs::path& path) {
         fs::remove(path / ".lock");
         TrainingFolder(path, Mode::force).begin({}, {});
       }},
      {".lock: replaced", [](const fs::path& path) {
         fs::rename(path, path.string() + ".moved");
         TrainingFolder(path, Mode::fresh).begin({}, {});
       }}};
  for (const auto& [words, harm] : harms) {
    const Scratch scratch;
    TrainingFolder folder(scratch / "run", Mode::fresh);
    folder.begin({}, {});
    folder.check();
    harm(folder.path());
    try {
      folder.check();
      ADD_FAILURE() << words;
    } catch (const FileLost& lost) {
      EXPECT_THAT(lost.what(), HasSubstr(words));
    }
  }
}

TEST(TrainingFolder, APlaceThatCannotBeUsed) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  std::ofstream(path) << "a file";
  EXPECT_THROW(TrainingFolder(path, Mode::fresh), FileError);
  EXPECT_THROW(TrainingFolder("/proc/self/nothing/here", Mode::fresh), FileError);
}

}  // namespace
