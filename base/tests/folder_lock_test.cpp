#include "base/folder_lock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>

namespace {

using base::FolderLock;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::path(testing::TempDir()) / "folder_lock-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  [[nodiscard]] fs::path file() const { return path_ / "a.lock"; }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_text(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(FolderLock, OneHasItAndTheOthersAreToldWho) {
  const TempFolder temp;
  EXPECT_EQ(FolderLock::holder(temp.file()), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(temp.file())) << "asking leaves nothing behind";
  std::optional<FolderLock> first(std::in_place, temp.file(), "run a");
  ASSERT_EQ(first->state(), FolderLock::State::held);
  const auto who = AllOf(StartsWith("run a, process " + std::to_string(getpid()) + " on "));
  EXPECT_THAT(FolderLock::holder(temp.file()).value_or(""), who);
  const FolderLock second(temp.file(), "run b");
  EXPECT_EQ(second.state(), FolderLock::State::busy);
  EXPECT_THAT(second.why(), who) << "who is refused does not write over the name";
  first.reset();
  EXPECT_EQ(FolderLock::holder(temp.file()), std::nullopt);
  EXPECT_EQ(FolderLock(temp.file(), "run c").state(), FolderLock::State::held);
}

TEST(FolderLock, OpeningTheFileElsewhereDoesNotGiveItUp) {
  const TempFolder temp;
  const FolderLock lock(temp.file(), "run a");
  (void)read_text(temp.file());
  EXPECT_TRUE(FolderLock::holder(temp.file()));
}

TEST(FolderLock, ALinkIsNotFollowedAndAPipeNotWaitedFor) {
  const TempFolder temp;
  std::ofstream(temp.path() / "precious") << "keep";
  for (const char* target : {"precious", "nowhere"}) {
    std::filesystem::create_symlink(target, temp.file());
    EXPECT_EQ(FolderLock::holder(temp.file()), std::nullopt);
    const FolderLock lock(temp.file(), "run a");
    EXPECT_EQ(lock.state(), FolderLock::State::foreign);
    EXPECT_THAT(lock.why(), HasSubstr("a.lock is a link"));
    std::filesystem::remove(temp.file());
  }
  EXPECT_EQ(read_text(temp.path() / "precious"), "keep");
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "nowhere"));
  ASSERT_EQ(mkfifo((temp.file()).c_str(), 0600), 0);
  EXPECT_EQ(FolderLock::holder(temp.file()), std::nullopt);
  EXPECT_EQ(FolderLock(temp.file(), "run a").state(), FolderLock::State::foreign);
}

TEST(FolderLock, AFolderThatIsNoneIsSaid) {
  const TempFolder temp;
  const FolderLock lock(temp.path() / "nowhere" / "a.lock", "run a");
  EXPECT_EQ(lock.state(), FolderLock::State::unwritable);
  EXPECT_EQ(lock.why(), "No such file or directory");
  EXPECT_EQ(lock.error(), ENOENT);
}

TEST(FolderLock, AFileThatOthersNoMoreSeeIsLost) {
  const TempFolder temp;
  const FolderLock lock(temp.file(), "run a");
  EXPECT_EQ(lock.lost(), "");
  fs::remove(temp.file());
  EXPECT_EQ(lock.lost(), "deleted or moved away");
  std::ofstream(temp.file()) << "another's";
  EXPECT_EQ(lock.lost(), "replaced");
}

}  // namespace
