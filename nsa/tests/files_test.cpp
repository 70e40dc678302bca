#include "nsa/train/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>

#include "base/tests/full_disk.hpp"
#include "nsa/tests/scratch.hpp"

namespace files_test {

namespace fs = std::filesystem;
using namespace nsa::train;
using nsa::fixtures::Scratch;
using testing::HasSubstr;

TEST(AppendFile, CutsOffWhatDidNotFit) {
  const Scratch folder;
  const fs::path path = folder / "log";
  AppendFile file(path);
  file.append("first\n");
  {
    const base::tests::FullDisk full(10);
    EXPECT_THROW(file.append("a line that does not fit\n"), FileError);
  }
  EXPECT_EQ(read_text(path), "first\n");
  file.append("second\n");
  file.sync();
  EXPECT_EQ(read_text(path), "first\nsecond\n");
}

// Such a line would be in nobody's sight, and no write tells.
TEST(AppendFile, WhatWasTakenAwayIsToldAndNotWrittenTo) {
  const std::vector<std::pair<std::string, std::function<void(const fs::path&)>>> harms = {
      {"deleted or moved away", [](const fs::path& path) { fs::rename(path, path.string() + ".moved"); }},
      {"replaced",
       [](const fs::path& path) {
         fs::copy_file(path, path.string() + ".copy");
         fs::rename(path.string() + ".copy", path);
       }},
      {"cut", [](const fs::path& path) { fs::resize_file(path, 3); }}};
  for (const auto& [how, harm] : harms) {
    const Scratch folder;
    const fs::path path = folder / "log";
    std::ofstream(path) << "before\n";
    AppendFile file(path);
    file.append("first\n");
    file.check();
    harm(path);
    const std::string after = fs::exists(path) ? read_text(path) : "";
    const auto told = [&](const std::function<void()>& act) -> std::string {
      try {
        act();
      } catch (const FileLost& lost) {
        return lost.what();
      }
      return "nothing";
    };
    const std::string expected = path.string() + ": " + how + " while the run was going on";
    EXPECT_EQ(told([&] { file.append("second\n"); }), expected);
    EXPECT_EQ(told([&] { file.sync(); }), expected);
    EXPECT_EQ(told([&] { file.check(); }), expected);
    EXPECT_EQ(fs::exists(path) ? read_text(path) : "", after);
  }
}

TEST(ReadText, SaysWhatIsMissing) { EXPECT_THROW((void)read_text("/no/such/file"), FileError); }

}  // namespace files_test
