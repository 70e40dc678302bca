#include "base/files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

namespace base {
namespace {

namespace fs = std::filesystem;

std::error_code refusal(const fs::path& file) {
  try {
    (void)read_head(file, 10);
    return {};
  } catch (const std::system_error& error) {
    return error.code();
  }
}

TEST(OpenOwn, FollowsNoLinkAndWaitsForNobody) {
  std::string folder = (fs::path(testing::TempDir()) / "open_own-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path top = folder;
  const auto error_of = [&](const char* name) {
    errno = 0;
    const int fd = open_own(top / name, O_WRONLY | O_CREAT | O_TRUNC);
    const int error = fd < 0 ? errno : 0;
    close(fd);
    return error;
  };
  fs::create_directory(top / "own");
  EXPECT_EQ(error_of("own/file"), 0);
  std::ofstream(top / "own/foreign") << "precious";
  fs::create_directory_symlink("own", top / "link");
  EXPECT_EQ(error_of("link/foreign"), ELOOP);
  fs::create_symlink("foreign", top / "own/name");
  EXPECT_EQ(error_of("own/name"), ELOOP);
  EXPECT_EQ(fs::file_size(top / "own/foreign"), 8U);
  ASSERT_EQ(mkfifo((top / "own/pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of("own/pipe"), 0);
  EXPECT_EQ(error_of("nowhere/file"), ENOENT);
  EXPECT_EQ(error_of("own/file/below"), ENOTDIR);
  fs::remove_all(top);
}

TEST(ReadHead, GivesTheFileUpToTheBound) {
  const fs::path file = fs::path(testing::TempDir()) / "read_head.txt";
  std::ofstream(file) << "0123456789";
  EXPECT_EQ(read_head(file, 4), "0123");
  EXPECT_EQ(read_head(file, 10), "0123456789");
  EXPECT_EQ(read_head(file, std::size_t{1} << 40), "0123456789");  // nothing is made of the bound's size
  fs::remove(file);
  EXPECT_EQ(refusal(file), std::errc::no_such_file_or_directory);
}

TEST(ReadHead, WhatIsNoFileIsNotReadForEver) {
  EXPECT_EQ(refusal("/dev/zero"), std::errc::not_supported);
  EXPECT_EQ(refusal(testing::TempDir()), std::errc::not_supported);
  const fs::path loop = fs::path(testing::TempDir()) / "read_head_loop";
  fs::remove(loop);
  fs::create_symlink(loop, loop);
  EXPECT_EQ(refusal(loop), std::errc::too_many_symbolic_link_levels);
  fs::remove(loop);
}

TEST(TakenAway, TellsWhatHasBecomeOfAName) {
  const fs::path folder = fs::path(testing::TempDir()) / ("taken_away_" + std::to_string(::getpid()));
  const fs::path file = folder / "file", other = folder / "other";
  fs::create_directories(folder);
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(taken_away(fd, file), "");
  fs::rename(file, other);
  EXPECT_EQ(taken_away(fd, file), "deleted or moved away");
  fs::create_symlink(other, file);
  EXPECT_EQ(taken_away(fd, file), "") << "the name leads to it all the same";
  fs::remove(file);
  std::ofstream(file) << "another";
  EXPECT_EQ(taken_away(fd, file), "replaced");
  fs::remove_all(folder);
  EXPECT_EQ(taken_away(fd, file), "deleted or moved away");
  std::ofstream(folder) << "no folder";
  EXPECT_EQ(taken_away(fd, file), "deleted or moved away");
  fs::remove(folder);
  ::close(fd);
  EXPECT_EQ(taken_away(fd, "/"), "Bad file descriptor");
}

}  // namespace
}  // namespace base
