#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.insert(std::filesystem::relative(entry.path(), folder).string());
  }
  return names;
}

const std::set<std::string> kFiles{"report.json",           "report.md",           "report.html",           "junit.xml",
                                   "suites/preflight.json", "suites/s_sweep.json", "suites/throughput.json"};

std::vector<std::string> write_all(const Run& run, const std::filesystem::path& folder) {
  std::set<std::filesystem::path> own;
  return reports::write_all(run, folder, own);
}

TEST(WriteAll, WritesEveryFileAndNothingElse) {
  const auto folder = sample::fresh_folder() / "new" / "folder";
  const reports::Run run = sample::mixed();
  EXPECT_THAT(write_all(run, folder), IsEmpty());
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
  EXPECT_THAT(write_all(sample::mixed(), folder), IsEmpty());
  EXPECT_THAT(write_all(sample::mixed(), folder), IsEmpty());
  EXPECT_EQ(files_in(folder), kFiles);
}

TEST(WriteAll, AFailureNamesTheFileAndCostsNoOther) {
  const auto folder = sample::fresh_folder();
  std::filesystem::create_directories(folder / "report.md" / "in the way");
  EXPECT_THAT(write_all(sample::mixed(), folder), ElementsAre(HasSubstr("report.md: cannot be written: ")));
  std::set<std::string> others = kFiles;
  others.erase("report.md");
  EXPECT_EQ(files_in(folder), others);
}

TEST(WriteAll, AnEarlierReportStaysWhereANewOneCannotBeWrittenButNoneOfItsOwn) {
  const auto folder = sample::fresh_folder();
  std::ofstream(folder / "report.html") << "old";
  std::filesystem::create_directories(folder / "report.html.tmp");
  std::set<std::filesystem::path> own;
  EXPECT_THAT(reports::write_all(sample::mixed(), folder, own),
              ElementsAre(HasSubstr("report.html: cannot be written: ")));
  EXPECT_EQ(sample::read_file(folder / "report.html"), "old");
  EXPECT_EQ(files_in(folder), kFiles);
  own.insert(folder / "report.html");  // as if a first pass had written it: it would speak for another ending
  EXPECT_THAT(reports::write_all(sample::mixed(), folder, own), ElementsAre(HasSubstr("report.html")));
  std::set<std::string> others = kFiles;
  others.erase("report.html");
  EXPECT_EQ(files_in(folder), others);
}

TEST(WriteAll, AFileWhereAFolderShouldBe) {
  const auto folder = sample::fresh_folder();
  std::ofstream(folder / "taken") << "x";
  EXPECT_THAT(write_all(sample::mixed(), folder / "taken"), ElementsAre(HasSubstr("taken")));
  std::filesystem::create_directories(folder / "run");
  std::ofstream(folder / "run/suites") << "x";
  EXPECT_THAT(write_all(sample::mixed(), folder / "run"), ElementsAre(HasSubstr("run/suites: cannot be written: ")));
  EXPECT_TRUE(files_in(folder / "run").contains("junit.xml"));
}

std::string error_of(const std::filesystem::path& folder) {
  const std::vector<std::string> lost = write_all(sample::mixed(), folder);
  return lost.empty() ? "no error" : lost[0];
}

TEST(WriteAll, AFileThatCannotGrowIsToldWithItsReason) {
  const auto folder = sample::fresh_folder();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit low{1000, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &low);
  const std::string error = error_of(folder);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("report.json: cannot be written: File too large"));
  EXPECT_THAT(files_in(folder), IsEmpty());
}

TEST(WriteAll, NothingIsWrittenThroughALink) {
  namespace fs = std::filesystem;
  const auto folder = sample::fresh_folder();
  fs::create_directory(folder / "elsewhere");
  std::ofstream(folder / "elsewhere/preflight.json") << "precious";
  std::ofstream(folder / "elsewhere/file") << "precious";
  const auto is_intact = [&] {
    EXPECT_EQ(files_in(folder / "elsewhere"), (std::set<std::string>{"preflight.json", "file"}));
    EXPECT_EQ(sample::read_file(folder / "elsewhere/preflight.json"), "precious");
    EXPECT_EQ(sample::read_file(folder / "elsewhere/file"), "precious");
  };
  fs::create_directory(folder / "one");
  fs::create_directory_symlink("../elsewhere", folder / "one/suites");
  EXPECT_THAT(error_of(folder / "one"), HasSubstr("one/suites: cannot be written: it is a link"));
  fs::create_directories(folder / "two/suites");
  fs::create_symlink("../../elsewhere/file", folder / "two/suites/preflight.json.tmp");
  EXPECT_THAT(error_of(folder / "two"), HasSubstr("preflight.json.tmp: cannot be written: it is a link"));
  is_intact();
  fs::remove(folder / "two/suites/preflight.json.tmp");
  fs::create_symlink("../../elsewhere/file", folder / "two/suites/preflight.json");
  EXPECT_EQ(error_of(folder / "two"), "no error") << "a finished file takes the place of a link";
  is_intact();
}

TEST(WriteAll, APipeOfThatNameIsAnErrorAndNoWait) {
  const auto folder = sample::fresh_folder();
  ASSERT_EQ(mkfifo((folder / "report.json.tmp").c_str(), 0600), 0);
  EXPECT_THAT(error_of(folder), HasSubstr("report.json: cannot be written: "));
}

}  // namespace
}  // namespace reports
