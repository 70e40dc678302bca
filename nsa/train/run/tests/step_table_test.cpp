#include "nsa/train/run/step_table.hpp"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <limits>

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

std::string after(const std::string& text, std::int64_t last_step) {
  const Table before(text);
  StepTable table(before.file, {"loss", "lr"}, last_step);
  return read_text(before.file);
}

TEST(StepTable, RowsAreReadBackAsTheyWere) {
  const Table before("");
  const fs::path& file = before.file;
  StepTable table(file, {"loss", "lr"}, 0);
  table.append(1, std::array{0.1 + 0.2, 2e-4});
  table.append(2, std::array{std::numeric_limits<double>::quiet_NaN(), -0.5});
  table.sync();
  EXPECT_EQ(read_text(file), "step,loss,lr\n1,0.30000000000000004,0.0002\n2,nan,-0.5\n");
  EXPECT_THROW(table.append(3, std::array{1.0}), std::logic_error);
}

TEST(StepTable, WhatLiesBeyondTheCheckpointIsCut) {
  const std::string header = "step,loss,lr\n";
  EXPECT_EQ(after(header + "1,5,1\n2,4,1\n3,3,1\n", 2), header + "1,5,1\n2,4,1\n");
  EXPECT_EQ(after(header + "1,5,1\n2,4,1\n", 2), header + "1,5,1\n2,4,1\n");
  EXPECT_EQ(after(header + "1,5,1\n2,4,1\n", 0), header);
  EXPECT_EQ(after(header + "10,5,1\n20,4,1\n", 19), header + "10,5,1\n");
}

TEST(StepTable, TornAndStrangeLinesAreCut) {
  const std::string header = "step,loss,lr\n";
  EXPECT_EQ(after(header + "1,5,1\n2,4", 9), header + "1,5,1\n");
  EXPECT_EQ(after(header + "1,5,1\n2", 9), header + "1,5,1\n");
  EXPECT_EQ(after(header + "1,5,1\nhello\n3,3,1\n", 9), header + "1,5,1\n");
  EXPECT_EQ(after(header + "1,5,1\n1,5,1\n", 9), header + "1,5,1\n");  // twice
  EXPECT_EQ(after("step,lo", 9), header);
  EXPECT_EQ(after("", 9), header);
}

TEST(StepTable, AnotherHeaderIsSetAside) {
  const Table before("step,other\n1,2\n");
  const fs::path& file = before.file;
  StepTable table(file, {"loss", "lr"}, 5);
  EXPECT_EQ(read_text(file), "step,loss,lr\n");
  EXPECT_EQ(read_text(file.string() + ".old"), "step,other\n1,2\n");
}

}  // namespace
