#include "base/files.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace base
