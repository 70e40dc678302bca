#include "nsa/train/run/halt_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/files.hpp"

namespace {

namespace fs = std::filesystem;
using namespace nsa::train;

struct Halt {
  void put(const std::string& text) const { std::ofstream(folder / ".HALT", std::ios::binary) << text; }

  nsa::fixtures::Scratch folder;
  HaltFile file{folder.path(), "run-1"};
};

TEST(HaltFile, NoneIsNone) {
  Halt halt;
  EXPECT_FALSE(halt.file.look());
  halt.file.remove_with("run-1");
}

TEST(HaltFile, ItsOwnNamesTheAnomaly) {
  Halt halt;
  halt.file.write({{"step", 6}, {"anomaly", "nan_loss"}, {"parameter", "head.weight"}});
  const auto found = halt.file.look();
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->own);
  EXPECT_EQ(found->text, "nan_loss in step 6, \"head.weight\"");
  const auto content = nlohmann::json::parse(read_text(halt.folder / ".HALT"));
  EXPECT_EQ(content["run"], "run-1");
  EXPECT_TRUE(content.contains("time"));
}

TEST(HaltFile, AnythingThatNamesNoRunIsAnOperators) {
  Halt halt;
  for (const char* text : {"", "enough\n", "run-1", "{\"reason\": 3}", "[1, 2", "{\"run\": 7}", "\x01\xff\n"}) {
    halt.put(text);
    const auto found = halt.file.look();
    ASSERT_TRUE(found) << text;
    EXPECT_FALSE(found->own) << text;
    EXPECT_EQ(found->text.find('\n'), std::string::npos);
  }
  halt.put(std::string(5000, 'x'));
  EXPECT_LT(halt.file.look()->text.size(), 300U);
}

TEST(HaltFile, OneOfAnotherRunCountsAndIsNoAnomalyOfThisOne) {
  Halt halt;
  halt.put(R"({"run": "run-0", "anomaly": "nan_loss", "step": 3})");
  const auto found = halt.file.look();
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->own);
  EXPECT_EQ(found->run, "run-0");
  EXPECT_EQ(found->text, "nan_loss in step 3");
}

TEST(HaltFile, WhateverHasTheNameCounts) {
  Halt halt;
  fs::create_directory(halt.folder / ".HALT");
  EXPECT_TRUE(halt.file.look());
  fs::remove(halt.folder / ".HALT");
  fs::create_symlink("nowhere", halt.folder / ".HALT");
  EXPECT_TRUE(halt.file.look());
  fs::remove(halt.folder / ".HALT");
  halt.put(R"({"run": 7, "anomaly": 3, "step": {}})");
  EXPECT_FALSE(halt.file.look()->own);
}

TEST(HaltFile, GoesWithItsRunAndWithNoOther) {
  Halt halt;
  for (const char* other : {"enough", R"({"run": "run-1"})"}) {
    halt.put(other);
    halt.file.remove_with("run-0");
    halt.file.remove_with("");
    EXPECT_TRUE(halt.file.look()) << other;
  }
  halt.put(R"({"run": "run-0", "anomaly": "nan_loss"})");
  halt.file.remove_with("run-0");
  EXPECT_FALSE(halt.file.look());
}

}  // namespace
