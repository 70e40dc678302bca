#include "suites/machine/control_files.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

namespace fs = std::filesystem;

class ControlFilesTest : public testing::Test {
 protected:
  ControlFilesTest() {
    std::string pattern = (fs::temp_directory_path() / "control.XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~ControlFilesTest() override { fs::remove_all(folder); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
  [[nodiscard]] std::string failed(const std::string& run_id) const {
    std::string text;
    for (const Judgement& j : judge_control_files(folder, "run_folder", run_id).judgements) {
      EXPECT_EQ(j.code, codes::kStaleHalt);
      if (!j.holds) text += j.what_failed + "\n";
    }
    return text;
  }
  fs::path folder;
};

TEST_F(ControlFilesTest, AnotherRunsFileIsNamedWithRunAnomalyAndStep) {
  write(".HALT", "run: 20250828T101500Z-0ld0\nanomaly: nan_loss\nstep: 1\n");
  const std::string text = failed("20260101T000000Z-mine");
  for (const char* words : {"belongs to run 20250828T101500Z-0ld0", "this is 20260101T000000Z-mine",
                            "stopped itself: nan_loss", "at step 1"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
}

TEST_F(ControlFilesTest, JsonIsReadAsWell) {
  write("HALT.json", R"({"run_id": "abc", "anomaly_type": "nan_gradient", "step": 17})");
  const std::string text = failed("mine");
  EXPECT_NE(text.find("belongs to run abc"), std::string::npos) << text;
  EXPECT_NE(text.find("nan_gradient at step 17"), std::string::npos) << text;
}

TEST_F(ControlFilesTest, EmptyFilesAndAnomalyTypesAreStale) {
  write("HALT", "");
  write(".anomaly_type", "nan_loss\n");
  const std::string text = failed("mine");
  EXPECT_NE(text.find("is empty: it names no run"), std::string::npos) << text;
  EXPECT_NE(text.find("stopped itself: nan_loss"), std::string::npos) << text;
}

TEST_F(ControlFilesTest, OwnFileAndOtherFilesAreNot) {
  write(".HALT", "run: mine-1\n");
  write("events.jsonl", "{}");
  write("xHALT", "");
  EXPECT_EQ(failed("mine-1"), "");
  EXPECT_NE(failed(""), "") << "where no run is going on, every control file is left over";
}

TEST_F(ControlFilesTest, NoFolderNoFile) { EXPECT_TRUE(find_control_files(folder / "nowhere").empty()); }

}  // namespace
}  // namespace suites::machine
