#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.insert(std::filesystem::relative(entry.path(), folder).string());
  }
  return names;
}

const std::set<std::string> kFiles{"report.json",           "report.md",           "report.html",           "junit.xml",
                                   "suites/preflight.json", "suites/s_sweep.json", "suites/throughput.json"};

TEST(WriteAll, WritesEveryFileAndNothingElse) {
  const auto folder = sample::fresh_folder() / "new" / "folder";
  const reports::Run run = sample::mixed();
  write_all(run, folder);
  EXPECT_EQ(files_in(folder), kFiles);
  EXPECT_EQ(sample::read_file(folder / "report.json"), dump(to_json(run), 2) + "\n");
  EXPECT_EQ(sample::read_file(folder / "report.md"), to_markdown(run));
  EXPECT_EQ(sample::read_file(folder / "report.html"), to_html(run));
  EXPECT_EQ(sample::read_file(folder / "junit.xml"), to_junit(run));
  EXPECT_EQ(Json::parse(sample::read_file(folder / "suites/s_sweep.json"))["name"], "s_sweep");
}

TEST(WriteAll, ASecondTimeReplaces) {
  const auto folder = sample::fresh_folder();
  std::ofstream(folder / "report.md") << "old";
  std::ofstream(folder / "report.md.tmp") << "left over by a killed run";
  write_all(sample::mixed(), folder);
  write_all(sample::mixed(), folder);
  EXPECT_EQ(files_in(folder), kFiles);
}

TEST(WriteAll, AFailureNamesTheFileAndLeavesNoReportOfARunThatEndsOtherwise) {
  const auto folder = sample::fresh_folder();
  std::filesystem::create_directories(folder / "report.md" / "in the way");
  try {
    write_all(sample::mixed(), folder);
    ADD_FAILURE() << "wrote over a folder";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("report.md: cannot be written: "));
  }
  EXPECT_THAT(files_in(folder), testing::IsEmpty());
}

TEST(WriteAll, TheEarlierReportsStayWhenNewOnesCannotBeWritten) {
  const auto folder = sample::fresh_folder();
  std::ofstream(folder / "report.md") << "old";
  std::filesystem::create_directories(folder / "report.html.tmp");  // the third of them cannot be written
  EXPECT_THROW(write_all(sample::mixed(), folder), std::runtime_error);
  EXPECT_EQ(sample::read_file(folder / "report.md"), "old");
  EXPECT_THAT(files_in(folder), testing::ElementsAre("report.md"));
}

TEST(WriteAll, AFileWhereAFolderShouldBe) {
  const auto folder = sample::fresh_folder();
  std::ofstream(folder / "taken") << "x";
  EXPECT_THROW(write_all(sample::mixed(), folder / "taken"), std::filesystem::filesystem_error);
}

TEST(WriteAll, AFullDiskIsToldWithItsReason) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  const auto folder = sample::fresh_folder();
  std::filesystem::create_symlink("/dev/full", folder / "report.json.tmp");
  try {
    write_all(sample::mixed(), folder);
    ADD_FAILURE() << "wrote to a full disk";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("No space left"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "report.json"));
}

}  // namespace
}  // namespace reports
