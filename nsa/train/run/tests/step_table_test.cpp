#include "nsa/train/run/step_table.hpp"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <limits>
#include <optional>

#include "nsa/tests/scratch.hpp"

namespace {

namespace fs = std::filesystem;
using nsa::train::read_text;
using nsa::train::StepTable;

// A folder with table.csv in it; without one for an empty text.
struct Table {
  explicit Table(const std::string& text) {
    if (!text.empty()) std::ofstream(file, std::ios::binary) << text;
  }
  nsa::fixtures::Scratch folder;
  fs::path file = folder / "table.csv";
};

std::string told;  // by the last table

std::string after(const std::string& text, std::int64_t last_step) {
  const Table before(text);
  told.clear();
  StepTable table(before.file, {"loss", "lr"}, last_step, [](const std::string& words) { told += words + "\n"; });
  const fs::path aside = before.file.string() + ".damaged";
  EXPECT_EQ(told.find("left out") != std::string::npos, fs::exists(aside));
  if (fs::exists(aside)) {
    EXPECT_EQ(read_text(aside), text);
  }
  return read_text(before.file);
}

using Values = std::array<std::optional<double>, 2>;

TEST(StepTable, RowsAreReadBackAsTheyWere) {
  const Table before("");
  const fs::path& file = before.file;
  StepTable table(file, {"loss", "lr"}, 0);
  table.append(1, Values{0.1 + 0.2, 2e-4});
  table.append(2, Values{std::numeric_limits<double>::quiet_NaN(), -0.5});
  table.append(3, Values{3.0, std::nullopt});
  table.sync();
  EXPECT_EQ(read_text(file), "step,loss,lr\n1,0.30000000000000004,0.0002\n2,nan,-0.5\n3,3,\n");
  EXPECT_THROW(table.append(4, std::array<std::optional<double>, 1>{1.0}), std::logic_error);
}

TEST(StepTable, WhatLiesBeyondTheCheckpointIsCut) {
  const std::string header = "step,loss,lr\n";
  EXPECT_EQ(after(header + "1,5,1\n2,4,1\n3,3,1\n", 2), header + "1,5,1\n2,4,1\n");
  EXPECT_EQ(after(header + "1,5,1\n2,4,1\n", 2), header + "1,5,1\n2,4,1\n");
  EXPECT_EQ(after(header + "1,5,1\n2,4,1\n", 0), header);
  EXPECT_EQ(after(header + "10,5,1\n20,4,1\n", 19), header + "10,5,1\n");
}

TEST(StepTable, ALineThatAKillCutOffIsCut) {
  const std::string header = "step,loss,lr\n";
  EXPECT_EQ(after(header + "1,5,1\n2,4", 1), header + "1,5,1\n");
  EXPECT_EQ(after(header + "1,5,1\n2", 9), header + "1,5,1\n");
  EXPECT_EQ(after("step,lo", 9), header);
  EXPECT_EQ(after("", 9), header);
  EXPECT_EQ(told, "");
}

// What is whole stays, what is not is told and kept beside it.
TEST(StepTable, DamagedLinesAreToldAndTheOthersStay) {
  const std::string header = "step,loss,lr\n";
  const auto tells = [](const std::string& words) { return told.find(words) != std::string::npos; };
  EXPECT_EQ(after(header + "1,5,1\nhello\n3,3,\n", 9), header + "1,5,1\n3,3,\n");
  EXPECT_TRUE(tells("line 3 is no row: hello; left out")) << told;
  EXPECT_EQ(after(header + "1,5,1\n1,5,1\n2,4,1\n", 9), header + "1,5,1\n2,4,1\n");
  EXPECT_TRUE(tells("line 3 goes back in the steps: 1,5,1")) << told;
  for (const std::string bad : {"2,4", "2,4,1,1", "2,4x,1", "2,,1,", ",4,1", "x2,4,1"}) {
    EXPECT_EQ(after(header + "1,5,1\n" + bad + "\n3,3,nan\n", 9), header + "1,5,1\n3,3,nan\n") << bad;
    EXPECT_TRUE(tells("line 3 is no row: " + bad)) << told;
  }
  EXPECT_EQ(after(header + "1,5,1\n2,4", 2), header + "1,5,1\n");  // it was whole when step 2 was saved
  EXPECT_TRUE(tells("line 3 is cut off: 2,4")) << told;
  std::string many = header;
  for (int i = 0; i < 100; ++i) many += "x\n";
  EXPECT_EQ(after(many, 9), header);
  EXPECT_TRUE(tells("and 95 more")) << told;
}

TEST(StepTable, RowsThatAreMissingAtTheEndAreTold) {
  const std::string text = "step,loss,lr\n1,5,1\n10,5,1\n20,4,1\n";
  EXPECT_EQ(after(text, 29), text);
  EXPECT_EQ(told, "") << "the next row is not due";
  EXPECT_EQ(after(text, 40), text);
  EXPECT_NE(told.find("ends at step 20, the checkpoint is of step 40"), std::string::npos) << told;
}

TEST(StepTable, AnotherHeaderIsSetAside) {
  const Table before("step,other\n1,2\n");
  const fs::path& file = before.file;
  told.clear();
  StepTable table(file, {"loss", "lr"}, 5, [](const std::string& words) { told += words; });
  EXPECT_NE(told.find("table.csv has other columns than this build writes; it is table.csv.old now"), std::string::npos)
      << told;
  EXPECT_EQ(read_text(file), "step,loss,lr\n");
  EXPECT_EQ(read_text(file.string() + ".old"), "step,other\n1,2\n");
}

}  // namespace
