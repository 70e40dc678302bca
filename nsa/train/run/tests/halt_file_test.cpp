#include "nsa/train/run/halt_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "nsa/tests/scratch.hpp"
#include "nsa/train/files.hpp"

namespace {

namespace fs = std::filesystem;
using namespace nsa::train;
using testing::HasSubstr;

struct Halt {
  void put(const std::string& text) const { std::ofstream(folder / ".HALT", std::ios::binary) << text; }

  nsa::fixtures::Scratch folder;
  std::string told;
  HaltFile file{folder.path(), "run-1", [this](const std::string& text) { told += text; }};
};

TEST(HaltFile, NoneIsNone) {
  Halt halt;
  EXPECT_FALSE(halt.file.look());
  halt.file.set_aside();
  EXPECT_EQ(halt.told, "");
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
  EXPECT_EQ(halt.told, "");
}

TEST(HaltFile, OneOfAnotherRunDoesNotCount) {
  Halt halt;
  halt.put(R"({"run": "run-0", "anomaly": "nan_loss"})");
  EXPECT_FALSE(halt.file.look());
  EXPECT_THAT(halt.told, HasSubstr("it is of run run-0, this is run-1"));
  EXPECT_FALSE(fs::exists(halt.folder / ".HALT"));
  EXPECT_TRUE(fs::exists(halt.folder / ".HALT.stale"));
}

TEST(HaltFile, WhatLiesThereBeforeARunIsSetAside) {
  Halt halt;
  halt.put("old");
  halt.file.set_aside();
  EXPECT_FALSE(halt.file.look());
  EXPECT_THAT(halt.told, HasSubstr("it was there before this run"));
}

}  // namespace
