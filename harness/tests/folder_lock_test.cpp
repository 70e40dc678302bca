#include "harness/folder_lock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::FolderLock;
using harness::tests::TempFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(FolderLock, OneHasItAndTheOthersAreToldWho) {
  const TempFolder temp;
  EXPECT_EQ(FolderLock::holder(temp.path()), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(temp.path() / FolderLock::kName)) << "asking leaves nothing behind";
  std::optional<FolderLock> first(std::in_place, temp.path(), "run a");
  ASSERT_EQ(first->state(), FolderLock::State::held);
  const auto who = AllOf(StartsWith("run a, process " + std::to_string(getpid()) + " on "));
  EXPECT_THAT(FolderLock::holder(temp.path()).value_or(""), who);
  const FolderLock second(temp.path(), "run b");
  EXPECT_EQ(second.state(), FolderLock::State::busy);
  EXPECT_THAT(second.why(), who) << "who is refused does not write over the name";
  first.reset();
  EXPECT_EQ(FolderLock::holder(temp.path()), std::nullopt);
  EXPECT_EQ(FolderLock(temp.path(), "run c").state(), FolderLock::State::held);
}

TEST(FolderLock, OpeningTheFileElsewhereDoesNotGiveItUp) {
  const TempFolder temp;
  const FolderLock lock(temp.path(), "run a");
  (void)harness::tests::read_text(temp.path() / FolderLock::kName);
  EXPECT_TRUE(FolderLock::holder(temp.path()));
}

TEST(FolderLock, ALinkIsNotFollowedAndAPipeNotWaitedFor) {
  const TempFolder temp;
  temp.write("precious", "keep");
  for (const char* target : {"precious", "nowhere"}) {
    std::filesystem::create_symlink(target, temp.path() / FolderLock::kName);
    EXPECT_EQ(FolderLock::holder(temp.path()), std::nullopt);
    const FolderLock lock(temp.path(), "run a");
    EXPECT_EQ(lock.state(), FolderLock::State::foreign);
    EXPECT_THAT(lock.why(), HasSubstr(".run.lock is a link"));
    std::filesystem::remove(temp.path() / FolderLock::kName);
  }
  EXPECT_EQ(harness::tests::read_text(temp.path() / "precious"), "keep");
  EXPECT_FALSE(std::filesystem::exists(temp.path() / "nowhere"));
  ASSERT_EQ(mkfifo((temp.path() / FolderLock::kName).c_str(), 0600), 0);
  EXPECT_EQ(FolderLock::holder(temp.path()), std::nullopt);
  EXPECT_EQ(FolderLock(temp.path(), "run a").state(), FolderLock::State::foreign);
}

TEST(FolderLock, AFolderThatIsNoneIsSaid) {
  const TempFolder temp;
  const FolderLock lock(temp.path() / "nowhere", "run a");
  EXPECT_EQ(lock.state(), FolderLock::State::unwritable);
  EXPECT_EQ(lock.why(), "No such file or directory");
}

}  // namespace
