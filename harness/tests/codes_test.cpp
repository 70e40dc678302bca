#include "harness/codes.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace {

TEST(Codes, EveryOwnCodeSaysWhatItMeansAndWhatToDo) {
  for (const harness::Code& code : harness::own_codes()) {
    EXPECT_EQ(code.id.substr(0, 5), "NSA-X") << code.id;
    EXPECT_EQ(code.id.size(), 8U);
    EXPECT_FALSE(code.title.empty() || code.title.back() == '.') << code.id;
    EXPECT_FALSE(code.cause.empty()) << code.id;
    EXPECT_FALSE(code.next.empty()) << code.id;
    EXPECT_TRUE(code.category == "crash" || code.category == "harness" || code.category == "memory" ||
                code.category == "environment" || code.category == "infrastructure" || code.category == "performance" ||
                code.category == "numerics")
        << code.id;
  }
}

TEST(Codes, TableFindsOwnAndProgramsCodes) {
  const harness::Code mine{"MINE-001", "t", "numerics", reports::Severity::warn, "c", "n"};
  const harness::CodeTable table({&mine, 1});
  EXPECT_EQ(table.find("MINE-001")->severity, reports::Severity::warn);
  EXPECT_EQ(table.find(harness::codes::kHang)->id, "NSA-X002");
  EXPECT_EQ(table.find("MINE-002"), nullptr);
  EXPECT_EQ(table.all().size(), harness::own_codes().size() + 1);
}

TEST(Codes, AnIdIsNeverUsedTwice) {
  const harness::Code stolen{harness::codes::kCrash, "t", "numerics", reports::Severity::warn, "c", "n"};
  EXPECT_THROW(harness::CodeTable({&stolen, 1}), std::logic_error);
}

TEST(Codes, SpeedIsAWarningAtMostWhereGatesAreReported) {
  using enum reports::Severity;
  const harness::Code speed{"MINE-001", "t", "performance", block, "c", "n"},
      other{"MINE-002", "t", "numerics", block, "c", "n"};
  EXPECT_EQ(harness::severity_of(speed, std::nullopt, false), block);
  EXPECT_EQ(harness::severity_of(speed, degrade, false), degrade);
  EXPECT_EQ(harness::severity_of(speed, std::nullopt, true), warn);
  EXPECT_EQ(harness::severity_of(speed, info, true), info);
  EXPECT_EQ(harness::severity_of(other, std::nullopt, true), block);
}

}  // namespace
