#include "nsa/train/run/run_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/files.hpp"
#include "nsa/train/run/exit_code.hpp"

namespace {

namespace fs = std::filesystem;
using namespace nsa::train;
using nsa::fixtures::Scratch;
using testing::HasSubstr;
using Mode = RunFolder::Mode;

std::string refusal(const fs::path& path, Mode mode) {
  try {
    const RunFolder folder(path, mode);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RunFolder, RunIdsAreReadableAndDiffer) {
  EXPECT_TRUE(std::regex_match(new_run_id(), std::regex(R"(\d{8}T\d{6}Z-[0-9a-f]{4})")));
}

TEST(RunFolder, ARunBeginsOnceAndGoesOn) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  std::string id;
  {
    RunFolder folder(path, Mode::fresh);
    EXPECT_FALSE(folder.goes_on());
    EXPECT_FALSE(fs::exists(path / "run.json"));  // until begin() nothing is in the way
    folder.begin({{"a", "1"}}, {{"pid", 1}});
    id = folder.run_id();
  }
  RunFolder folder(path, Mode::resume);
  EXPECT_TRUE(folder.goes_on());
  EXPECT_EQ(folder.run_id(), id);
  EXPECT_EQ(folder.last_start()["pid"], 1);
  folder.begin({{"a", "2"}}, {{"pid", 2}});
  const auto record = nlohmann::json::parse(read_text(path / "run.json"));
  EXPECT_EQ(record["starts"].size(), 2U);
  EXPECT_EQ(record["config"]["a"], "2");
}

TEST(RunFolder, OnlyOneProcessAtATime) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  {
    const RunFolder first(path, Mode::fresh);
    EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("another process trains in"));
  }
  EXPECT_EQ(refusal(path, Mode::resume), "");
}

TEST(RunFolder, ForceRemovesTheRunAndNothingElseAndOnlyWhenItBegins) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  RunFolder(path, Mode::fresh).begin({}, {});
  fs::create_directories(path / "checkpoints");
  for (const char* name : {"checkpoints/x", ".HALT", ".HALT.stale", "stacks_hung_step_3.txt", "metrics.csv",
                           "metrics.csv.damaged", "notes.txt"})
    std::ofstream(path / name) << name;
  EXPECT_THAT(refusal(path, Mode::fresh), HasSubstr("holds a run"));
  {
    RunFolder folder(path, Mode::force);
    EXPECT_TRUE(fs::exists(path / "metrics.csv"));
    folder.begin({}, {});
  }
  for (const char* name :
       {"checkpoints", ".HALT.stale", "stacks_hung_step_3.txt", "metrics.csv", "metrics.csv.damaged"})
    EXPECT_FALSE(fs::exists(path / name)) << name;
  EXPECT_TRUE(fs::exists(path / "notes.txt"));
  EXPECT_TRUE(fs::exists(path / ".HALT")) << "somebody's order to stop: HaltFile decides";
}

TEST(RunFolder, PartsOfARunWithoutARecordAreNotGuessedAt) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  fs::create_directories(path / "checkpoints");
  EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("no run.json"));
  for (const char* record : {R"({"run_id": 3})", R"({"run_id": "r"})", R"({"run_id": "r", "starts": []})",
                             R"({"run_id": "r", "starts": 3})"}) {
    std::ofstream(path / "run.json") << record;
    EXPECT_THAT(refusal(path, Mode::resume), HasSubstr("is no record of a run")) << record;
  }
  EXPECT_EQ(refusal(path, Mode::force), "");
}

TEST(RunFolder, APlaceThatCannotBeUsed) {
  const Scratch scratch;
  const fs::path path = scratch / "run";
  std::ofstream(path) << "a file";
  EXPECT_THROW(RunFolder(path, Mode::fresh), FileError);
  EXPECT_THROW(RunFolder("/proc/self/nothing/here", Mode::fresh), FileError);
}

}  // namespace
