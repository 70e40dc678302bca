#include "base/text.hpp"

#include <gtest/gtest.h>

namespace base {
namespace {

TEST(Text, TheFirstLineEndsBeforeItsBreak) {
  EXPECT_EQ(first_line(""), "");
  EXPECT_EQ(first_line("one"), "one");
  EXPECT_EQ(first_line("one\n"), "one");
  EXPECT_EQ(first_line("one\ntwo\nthree"), "one");
  EXPECT_EQ(first_line("\ntwo"), "");
}

}  // namespace
}  // namespace base
