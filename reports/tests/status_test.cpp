#include "reports/status.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "reports/tests/support/sample.hpp"

namespace reports {
namespace {

using sample::kSeverities;
using sample::kStatuses;

TEST(Status, WordsAreDistinctAndReadBack) {
  std::set<std::string_view> words;
  for (int i = 0; i < kStatuses; ++i) {
    const auto status = static_cast<Status>(i);
    EXPECT_TRUE(words.insert(to_string(status)).second) << to_string(status);
    EXPECT_EQ(parse_status(to_string(status)), status);
  }
  EXPECT_EQ(parse_status("passed"), std::nullopt);
  EXPECT_EQ(parse_status(""), std::nullopt);
  EXPECT_EQ(parse_status("PASS"), std::nullopt);
}

TEST(Status, OnlyAPassIsCountedAsPassedAndOnlyAFailureAsFailed) {
  const std::set<Status> failed{Status::fail, Status::error, Status::crash, Status::hang};
  for (int i = 0; i < kStatuses; ++i) {
    const auto status = static_cast<Status>(i);
    EXPECT_EQ(tally(status) == Tally::passed, status == Status::pass) << to_string(status);
    EXPECT_EQ(tally(status) == Tally::skipped, status == Status::skip) << to_string(status);
    EXPECT_EQ(tally(status) == Tally::failed, failed.contains(status)) << to_string(status);
  }
}

TEST(Status, WhatDidNotRunIsNotExecuted) {
  for (const auto status : {Status::skip, Status::blocked, Status::not_run, Status::cancelled, Status::infra_error}) {
    EXPECT_FALSE(executed(status)) << to_string(status);
  }
  for (const auto status :
       {Status::pass, Status::fail, Status::error, Status::crash, Status::hang, Status::inconclusive}) {
    EXPECT_TRUE(executed(status)) << to_string(status);
  }
}

TEST(Severity, WordsReadBackAndGetGraver) {
  for (int i = 0; i < kSeverities; ++i) {
    const auto severity = static_cast<Severity>(i);
    EXPECT_EQ(parse_severity(to_string(severity)), severity);
  }
  EXPECT_LT(Severity::warn, Severity::degrade);
  EXPECT_LT(Severity::block, Severity::isolate);
  EXPECT_EQ(parse_severity("fatal"), std::nullopt);
}

TEST(Verdict, Words) {
  EXPECT_EQ(to_string(Verdict::ready), "READY");
  EXPECT_EQ(to_string(Verdict::conditional), "CONDITIONAL");
  EXPECT_EQ(to_string(Verdict::not_ready), "NOT READY");
}

TEST(ExitCode, TableIsCompleteAndPlain) {
  std::set<int> codes;
  for (const auto& row : exit_code_table()) {
    EXPECT_TRUE(codes.insert(static_cast<int>(row.code)).second);
    EXPECT_FALSE(row.meaning.empty());
    EXPECT_GE(static_cast<int>(row.code), 0);
  }
  EXPECT_EQ(codes, (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 130, 143}));
}

TEST(ExitCode, WorseIsSymmetricAssociativeAndReadyLoses) {
  for (const auto& a : exit_code_table()) {
    EXPECT_EQ(worse(a.code, ExitCode::ready), a.code);
    EXPECT_EQ(worse(a.code, ExitCode::internal), ExitCode::internal);
    for (const auto& b : exit_code_table()) {
      EXPECT_EQ(worse(a.code, b.code), worse(b.code, a.code));
      for (const auto& c : exit_code_table()) {
        EXPECT_EQ(worse(a.code, worse(b.code, c.code)), worse(worse(a.code, b.code), c.code));
      }
    }
  }
}

TEST(ExitCode, WorstWinsInTheDocumentedOrder) {
  const ExitCode order[] = {ExitCode::internal,     ExitCode::interrupted,    ExitCode::usage,
                            ExitCode::incompatible, ExitCode::infrastructure, ExitCode::crash,
                            ExitCode::failed,       ExitCode::performance,    ExitCode::nothing_executed,
                            ExitCode::inconclusive, ExitCode::ready};
  for (std::size_t i = 0; i + 1 < std::size(order); ++i) EXPECT_EQ(worse(order[i + 1], order[i]), order[i]) << i;
  EXPECT_EQ(worse(ExitCode::crash, ExitCode::hang), ExitCode::crash);
}

TEST(ExitCode, AValueOutsideTheTableIsRefused) {
  EXPECT_THROW((void)worse(static_cast<ExitCode>(77), ExitCode::ready), std::logic_error);
}

}  // namespace
}  // namespace reports
