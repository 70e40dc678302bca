// The rooms do not see what is not theirs: harness/ and reports/ know neither torch nor CUDA nor NSA, reports/ does not
// know harness/, nsa/ knows nothing of the rooms that test it, and base/ stands below all.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// "file:line: include" of every include in `folder` that `forbidden` matches.
std::vector<std::string> trespasses(const std::string& folder, const std::regex& forbidden) {
  const std::regex include(R"re(^\s*#\s*include\s*[<"]([^">]+)[">].*)re");
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(HARNESS_SOURCE_DIR) / folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".cpp" && extension != ".hpp" && extension != ".cu" && extension != ".cuh" && extension != ".h")
      continue;
    std::ifstream stream(entry.path());
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      std::smatch match;
      if (std::regex_match(line, match, include) && std::regex_search(match[1].str(), forbidden))
        found.push_back(entry.path().string() + ":" + std::to_string(number) + ": " + match[1].str());
    }
  }
  return found;
}

TEST(Layering, HarnessAndReportsKnowNeitherTorchNorNsa) {
  const std::regex foreign("^(torch|ATen|c10|caffe2|nsa|suites|nvtx3)/|^cuda|^cublas|^nvml");
  EXPECT_EQ(trespasses("harness", foreign), std::vector<std::string>{});
  EXPECT_EQ(trespasses("reports", foreign), std::vector<std::string>{});
}

TEST(Layering, ReportsDoNotKnowTheHarness) {
  EXPECT_EQ(trespasses("reports", std::regex("^harness/")), std::vector<std::string>{});
}

TEST(Layering, TheProductDoesNotKnowItsTesters) {
  EXPECT_EQ(trespasses("nsa", std::regex("^(harness|suites|reports)/")), std::vector<std::string>{});
}

TEST(Layering, BaseStandsBelowAll) {
  EXPECT_EQ(trespasses("base", std::regex("^(torch|ATen|c10|caffe2|nsa|suites|harness|reports|nvtx3)/|^cuda|^nvml")),
            std::vector<std::string>{});
}

TEST(Layering, YamlIsReadWithinBoundsOnly) {
  for (const char* room : {"nsa", "suites", "harness", "reports"})
    EXPECT_EQ(trespasses(room, std::regex("^yaml-cpp/")), std::vector<std::string>{}) << "base/yaml.hpp is the way";
}

TEST(Layering, OneFileEachKnowsTheCommandLineAndYamlLibraries) {
  for (const auto& [library, owner] :
       {std::pair{"^CLI/", "command_line.cpp"}, std::pair{"^base/yaml", "settings.cpp"}}) {
    const auto users = trespasses("harness", std::regex(library));
    ASSERT_EQ(users.size(), 1U) << library;
    EXPECT_NE(users[0].find(owner), std::string::npos) << users[0];
  }
}

}  // namespace
