#include "base/atomic_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>

#include "base/tests/full_disk.hpp"

namespace base {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class Atomic : public testing::Test {
 protected:
  Atomic() {
    std::string made = (fs::path(testing::TempDir()) / "atomic_file-XXXXXX").string();
    folder_ = mkdtemp(made.data());
  }
  ~Atomic() override { fs::remove_all(folder_); }

  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  [[nodiscard]] std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_)) all.insert(entry.path().filename());
    return all;
  }
  static FileError refusal(const std::function<void()>& act) {
    try {
      act();
    } catch (const FileError& error) {
      return error;
    }
    return {"nothing refused", "", 0};
  }

  fs::path folder_;
};

TEST_F(Atomic, AppearsOnCommitAndReplaces) {
  const fs::path path = folder_ / "file";
  for (const std::string text : {"one", "two"}) {
    const std::string before = text_of(path);
    AtomicFile file(path);
    file.write(text.substr(0, 1));
    file.write(text.substr(1));
    EXPECT_EQ(text_of(path), before);
    file.commit(/*synced=*/text == "two");
    EXPECT_EQ(text_of(path), text);
    EXPECT_THAT(names(), ElementsAre("file"));
  }
  write_whole(path, "three");
  EXPECT_EQ(text_of(path), "three");
}

TEST_F(Atomic, WithoutCommitNothingIsLeft) {
  { AtomicFile(folder_ / "file").write("half"); }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Atomic, FullDiskLeavesTheOldFileAndNoTemporaryOne) {
  const fs::path path = folder_ / "file";
  AtomicFile(path).commit();
  const tests::FullDisk full(1000);
  const FileError error = refusal([&] { write_whole(path, std::string(5000, 'x')); });
  EXPECT_EQ(error.what(), "cannot write " + path.string() + ".tmp: File too large");
  EXPECT_EQ(error.path(), path.string() + ".tmp");
  EXPECT_EQ(error.error(), EFBIG);
  EXPECT_EQ(text_of(path), "");
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(Atomic, MissingFolderIsAnError) {
  for (const auto folder : {AtomicFile::Folder::any, AtomicFile::Folder::own}) {
    const FileError error = refusal([&] { write_whole("/no/such/folder/file", "", folder); });
    EXPECT_STREQ(error.what(), "cannot create /no/such/folder/file.tmp: No such file or directory");
  }
}

TEST_F(Atomic, AFolderInTheWayIsToldAndNoTemporaryFileIsLeft) {
  fs::create_directories(folder_ / "file" / "in the way");
  const FileError error = refusal([&] { write_whole(folder_ / "file", "text"); });
  EXPECT_EQ(error.what(), "cannot rename to " + (folder_ / "file").string() + ": Is a directory");
  EXPECT_THAT(names(), ElementsAre("file"));
}

TEST_F(Atomic, NothingIsWrittenThroughALinkOrAPipe) {
  std::ofstream(folder_ / "other") << "precious";
  fs::create_symlink("other", folder_ / "x.tmp");
  EXPECT_EQ(refusal([&] { write_whole(folder_ / "x", "new"); }).error(), ELOOP);
  fs::create_symlink("other", folder_ / "y");
  write_whole(folder_ / "y", "new");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "y"))) << "the file takes the link's place";
  EXPECT_EQ(text_of(folder_ / "other"), "precious");
  ASSERT_EQ(mkfifo((folder_ / "z.tmp").c_str(), 0600), 0);
  EXPECT_NE(refusal([&] { write_whole(folder_ / "z", "new"); }).error(), 0) << "its reader is not waited for";
}

TEST_F(Atomic, AFolderThatIsALinkIsFollowedOrNot) {
  fs::create_directory(folder_ / "disk");
  fs::create_directory_symlink("disk", folder_ / "link");
  EXPECT_EQ(refusal([&] { write_whole(folder_ / "link/file", "new", AtomicFile::Folder::own); }).error(), ELOOP);
  EXPECT_FALSE(fs::exists(folder_ / "disk/file"));
  write_whole(folder_ / "link/file", "new");
  write_whole(folder_ / "disk/own", "new", AtomicFile::Folder::own);
  EXPECT_EQ(text_of(folder_ / "disk/file") + text_of(folder_ / "disk/own"), "newnew");
}

TEST_F(Atomic, AnOpenFolderStaysTheOneThatWasOpened) {
  fs::create_directory(folder_ / "run");
  const Fd run(open((folder_ / "run").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  AtomicFile file(run.get(), folder_ / "run/file");
  fs::rename(folder_ / "run", folder_ / "moved");
  fs::create_directory(folder_ / "run");
  file.write("text");
  file.commit();
  EXPECT_EQ(text_of(folder_ / "moved/file"), "text");
  EXPECT_TRUE(fs::is_empty(folder_ / "run"));
}

}  // namespace
}  // namespace base
