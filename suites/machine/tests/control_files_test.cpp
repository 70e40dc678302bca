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
  write(".HALT", R"({"run_id": "abc", "anomaly_type": "nan_gradient", "step": 17})");
  const std::string text = failed("mine");
  EXPECT_NE(text.find("belongs to run abc"), std::string::npos) << text;
  EXPECT_NE(text.find("nan_gradient at step 17"), std::string::npos) << text;
}

// The rule of nsa-train: a .HALT stops a run, whoever wrote it, with anything in it.
TEST_F(ControlFilesTest, AnyHaltFileStopsTraining) {
  for (const char* content : {"", "enough\n", "run: mine-1\n", R"({"run": "mine-1", "anomaly": "diverged"})"}) {
    write(".HALT", content);
    EXPECT_NE(failed("mine-1"), "") << content;
    EXPECT_NE(failed(""), "") << content;
  }
}

TEST_F(ControlFilesTest, OtherFilesStopNothingAndAreListed) {
  for (const char* name : {"HALT", "HALT.json", ".HALT.stale", ".anomaly_type", "events.jsonl", "xHALT"})
    write(name, "");
  EXPECT_EQ(failed("mine-1"), "");
  EXPECT_EQ(judge_control_files(folder, "run_folder", "").seen,
            Json::array({".HALT.stale", ".anomaly_type", "HALT", "HALT.json"}));
}

TEST_F(ControlFilesTest, NoFolderNoFile) { EXPECT_TRUE(find_control_files(folder / "nowhere").empty()); }

}  // namespace
}  // namespace suites::machine
