#include "suites/machine/folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

namespace fs = std::filesystem;

class FolderTest : public testing::Test {
 protected:
  FolderTest() {
    std::string pattern = (fs::temp_directory_path() / "folder.XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~FolderTest() override { fs::remove_all(folder); }
  fs::path folder;
};

TEST_F(FolderTest, AGoodFolderIsSoundAndLeftAsItWas) {
  const FolderState state = look_at_folder(folder);
  EXPECT_EQ(state.not_writable, "");
  EXPECT_GT(state.free_bytes, 0U);
  EXPECT_TRUE(judge_folder(state, {"run_folder", 1, "a byte"}).sound());
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST_F(FolderTest, AFolderThatDoesNotExistYetIsJudgedByTheNearestAbove) {
  const FolderState state = look_at_folder(folder / "a" / "b");
  EXPECT_EQ(state.nearest, folder);
  EXPECT_EQ(state.not_writable, "");
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST_F(FolderTest, AFileInTheWayIsFound) {
  std::ofstream(folder / "file") << "x";
  const Inspection found = judge_folder(look_at_folder(folder / "file"), {"train_folder", 1, ""});
  EXPECT_FALSE(found.sound());
  EXPECT_NE(found.judgements[0].what_failed.find("is not a folder"), std::string::npos);
  EXPECT_EQ(found.judgements[0].code, codes::kRunFolder);
}

TEST_F(FolderTest, WhatNobodyCanMakeIsFound) {
  fs::create_symlink(folder / "nowhere" / "deep", folder / "dangling");
  fs::create_symlink(folder / "b", folder / "a");
  fs::create_symlink(folder / "a", folder / "b");
  for (const fs::path& path :
       {folder / "dangling", folder / "a", folder / "a" / "below", folder / std::string(300, 'x')})
    EXPECT_NE(look_at_folder(path).not_writable, "") << path;
  fs::create_directory(folder / "real");
  fs::create_symlink(folder / "real", folder / "good");
  EXPECT_EQ(look_at_folder(folder / "good" / "new").not_writable, "");
}

TEST_F(FolderTest, AReadOnlyFolderIsFound) {
  if (geteuid() == 0) {
    // Permissions do not stop root; a folder of the kernel's does.
    EXPECT_NE(look_at_folder("/proc").not_writable, "");
    return;
  }
  chmod(folder.c_str(), 0500);
  EXPECT_NE(look_at_folder(folder).not_writable, "");
  chmod(folder.c_str(), 0700);
}

TEST(Folder, AFullDiskIsFoundWithBothNumbers) {
  FolderState state;
  state.path = state.nearest = "/data/run";
  state.free_bytes = 10 << 20;
  const Inspection found = judge_folder(state, {"train_folder", 900U << 20, "3 checkpoint(s)"});
  ASSERT_FALSE(found.sound());
  const std::string& what = found.judgements[1].what_failed;
  EXPECT_NE(what.find("10485760 bytes (10 MiB) free"), std::string::npos) << what;
  EXPECT_NE(what.find("3 checkpoint(s) take 943718400 bytes"), std::string::npos) << what;
}

}  // namespace
}  // namespace suites::machine
