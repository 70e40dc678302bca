#include "nsa/train/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>

#include "nsa/tests/scratch.hpp"

namespace files_test {

namespace fs = std::filesystem;
using namespace nsa::train;
using nsa::fixtures::Scratch;
using testing::HasSubstr;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// No file may grow beyond `bytes` while it lives: the nearest thing to a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(AtomicFile, AppearsOnCommitAndReplaces) {
  const Scratch folder;
  const fs::path path = folder / "file";
  {
    AtomicFile file(path);
    file.write("one");
    EXPECT_FALSE(fs::exists(path));
    file.commit();
  }
  EXPECT_EQ(read_text(path), "one");
  {
    AtomicFile file(path);
    file.write("two");
    EXPECT_EQ(read_text(path), "one");
    file.commit();
  }
  EXPECT_EQ(read_text(path), "two");
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("file"));
}

TEST(AtomicFile, WithoutCommitNothingIsLeft) {
  const Scratch folder;
  { AtomicFile(folder / "file").write("half"); }
  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(AtomicFile, FullDiskLeavesTheOldFileAndNoTemporaryOne) {
  const Scratch folder;
  const fs::path path = folder / "file";
  AtomicFile(path).commit();
  const FullDisk full(1000);
  try {
    AtomicFile file(path);
    file.write(std::string(5000, 'x'));
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot write " + path.string() + ".tmp: File too large"));
  }
  EXPECT_EQ(read_text(path), "");
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("file"));
}

TEST(AtomicFile, MissingFolderIsAnError) {
  try {
    AtomicFile file("/no/such/folder/file");
    FAIL();
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot create /no/such/folder/file.tmp: No such file or directory"));
  }
}

TEST(AppendFile, CutsOffWhatDidNotFit) {
  const Scratch folder;
  const fs::path path = folder / "log";
  AppendFile file(path);
  file.append("first\n");
  {
    const FullDisk full(10);
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

TEST(ReadText, SaysWhatIsMissing) {
  EXPECT_THROW((void)read_text("/no/such/file"), FileError);
  EXPECT_THROW(sync_folder("/no/such/folder"), FileError);
}

}  // namespace files_test
