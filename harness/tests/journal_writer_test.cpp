#include "harness/journal_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
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

// What happens to the file of a run behind its back.
struct Harm {
  const char* how;
  std::function<void(const std::filesystem::path&)> act;
};

const std::vector<Harm>& harms() {
  namespace fs = std::filesystem;
  static const std::vector<Harm> all{
      {"deleted", [](const fs::path& file) { fs::remove(file); }},
      {"replaced",  // by its own bytes
       [](const fs::path& file) {
         fs::copy_file(file, file.string() + ".copy");
         fs::rename(file.string() + ".copy", file);
       }},
      {"cut", [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); }},
      {"cut", [](const fs::path& file) { fs::resize_file(file, 0); }},
      {"written to by another process", [](const fs::path& file) { std::ofstream(file, std::ios::app) << "{}\n"; }},
  };
  return all;
}

TEST(JournalWriter, AJournalThatIsNoLongerItsOwnEndsIt) {
  for (const Harm& harm : harms()) {
    const TempFolder folder;
    JournalWriter writer(folder.path());
    writer.append(run_begin());
    const auto file = folder.path() / "events.jsonl";
    EXPECT_EQ(writer.read_back().id, "r");
    harm.act(file);
    const std::string after = read_text(file);
    const auto told = [&](const std::function<void()>& act) -> std::string {
      try {
        act();
      } catch (const harness::JournalLost& error) {
        return error.what();
      }
      return "nothing";
    };
    const auto says = testing::AllOf(testing::HasSubstr(file.string()), testing::HasSubstr(harm.how));
    EXPECT_THAT(told([&] { writer.append({{"event", "run_end"}, {"duration_s", 1}, {"case_s", 1}}); }), says);
    EXPECT_THAT(told([&] { (void)writer.read_back(); }), says);
    EXPECT_EQ(read_text(file), after) << "what lies there now is not touched";
    writer.release_reserve();
    EXPECT_TRUE(std::filesystem::exists(folder.path() / ".reserve")) << "it may be another's";
    EXPECT_EQ(writer.told().id, "r");
    EXPECT_FALSE(writer.told().complete);
  }
}

TEST(JournalWriter, BytesThatWereChangedInPlaceAreNoEvidence) {
  const TempFolder folder;
  JournalWriter writer(folder.path());
  writer.append(run_begin());
  std::fstream(folder.path() / "events.jsonl", std::ios::in | std::ios::out).seekp(20) << "7";
  EXPECT_THROW((void)writer.read_back(), harness::JournalLost);
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

}  // namespace
