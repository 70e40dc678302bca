#include "harness/journal_writer.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "harness/settings.hpp"
#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::JournalWriter;
using harness::Json;
using harness::tests::read_text;
using harness::tests::TempFolder;

Json run_begin() {
  return {{"event", "run_begin"},
          {"schema", reports::kEventSchema},
          {"schema_version", reports::kEventSchemaVersion},
          {"run", {{"id", "r"}, {"argv", {"x"}}, {"level", "smoke"}, {"device", "cpu"}, {"master_seed", 42}}},
          {"provenance", Json::object()},
          {"faults", Json::array()},
          {"plan",
           {{"suites",
             {{{"name", "s"}, {"cases", {{{"id", "s/c"}, {"hash", "1"}, {"name", "c"}, {"level", "smoke"}}}}}}}}}};
}

TEST(JournalWriter, WhatItWritesTheReaderReads) {
  const TempFolder folder;
  JournalWriter writer(folder.path());
  writer.append(run_begin());
  writer.append({{"event", "case_begin"}, {"case", "s/c"}, {"worker", 1}, {"seed", 7}});
  writer.append(
      {{"event", "fact"}, {"case", "s/c"}, {"key", "k"}, {"value", {{"x", std::numeric_limits<double>::quiet_NaN()}}}});
  writer.append({{"event", "phase"}, {"case", "s/c"}, {"name", "not UTF-8: \xff"}});
  writer.append({{"event", "case_end"}, {"case", "s/c"}, {"status", "pass"}, {"duration_s", 1.5}});
  writer.append({{"event", "run_end"}, {"duration_s", 2.0}, {"case_s", 1.5}});
  const reports::Run run = reports::read_journal(folder.path() / "events.jsonl");
  EXPECT_TRUE(run.complete);
  EXPECT_EQ(run.suites[0].cases[0].seed, 7U);
  EXPECT_EQ(run.suites[0].cases[0].facts["k"]["x"], "NaN");
  EXPECT_DOUBLE_EQ(run.harness_s, 0.5);
}

TEST(JournalWriter, AnEventThatNoReaderTakesIsRefusedAndLeavesNoTrace) {
  const TempFolder folder;
  JournalWriter writer(folder.path());
  writer.append(run_begin());
  const std::string before = read_text(folder.path() / "events.jsonl");
  EXPECT_THROW(writer.append({{"event", "phase"}, {"case", "s/unknown"}, {"name", "x"}}), std::invalid_argument);
  EXPECT_THROW(writer.append({{"event", "metric"}, {"case", "s/c"}, {"name", 3}, {"value", 1}}), std::invalid_argument);
  EXPECT_EQ(read_text(folder.path() / "events.jsonl"), before);
}

TEST(JournalWriter, NeverOverwritesAJournal) {
  const TempFolder folder;
  folder.write("events.jsonl", "old");
  EXPECT_THROW(JournalWriter{folder.path()}, harness::UsageError);
  EXPECT_EQ(read_text(folder.path() / "events.jsonl"), "old");
  EXPECT_THROW(JournalWriter{folder.path() / "nowhere"}, harness::UsageError);
}

TEST(JournalWriter, SetsSpaceAsideForTheEnd) {
  const TempFolder folder;
  {
    JournalWriter writer(folder.path());
    EXPECT_GE(std::filesystem::file_size(folder.path() / ".reserve"), 1U << 20);
    writer.release_reserve();
    EXPECT_FALSE(std::filesystem::exists(folder.path() / ".reserve"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / ".reserve"));
}

TEST(JournalWriter, TimeIsUtcWithMilliseconds) {
  using std::chrono::milliseconds;
  using std::chrono::system_clock;
  EXPECT_EQ(harness::timestamp(system_clock::time_point(milliseconds(1795224660007))), "2026-11-21T01:31:00.007Z");
}

}  // namespace
