// Standard output and error that are closed, full or broken: of a file here, of whole programs in their own tests.
#include "base/streams.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

namespace base {
namespace {

std::optional<std::string> unwritable_when_opened(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags, 0600);
  const auto why = unwritable(fd);
  close(fd);
  return why;
}

TEST(Streams, WhatCannotBeWrittenShowsWithoutWriting) {
  const std::string file = testing::TempDir() + "streams_test";
  EXPECT_EQ(unwritable(987), "Bad file descriptor");
  EXPECT_EQ(unwritable_when_opened("/dev/null", O_RDONLY), "Bad file descriptor");
  EXPECT_EQ(unwritable_when_opened("/dev/full", O_WRONLY), "No space left on device");
  EXPECT_EQ(unwritable_when_opened("/dev/null", O_WRONLY), std::nullopt);
  EXPECT_EQ(unwritable_when_opened(file, O_WRONLY | O_CREAT), std::nullopt);
  std::filesystem::remove(file);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(unwritable(ends[1]), std::nullopt);
  close(ends[0]);
  EXPECT_EQ(unwritable(ends[1]), "Broken pipe");
  close(ends[1]);
}

TEST(Streams, LostOutputStaysKnown) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> full(std::fopen("/dev/full", "w"), std::fclose);
  EXPECT_EQ(lost(full.get()), std::nullopt) << "nothing was said yet";
  write_to(full.get(), "something");
  EXPECT_EQ(lost(full.get()), "No space left on device");
  EXPECT_EQ(lost(full.get()), "No space left on device");
  write_to(full.get(), std::string(1 << 20, 'x'));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> fine(std::fopen("/dev/null", "w"), std::fclose);
  write_to(fine.get(), "something");
  EXPECT_EQ(lost(fine.get()), std::nullopt);
}

}  // namespace
}  // namespace base
