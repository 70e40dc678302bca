#include "suites/implementation/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace suites::implementation {
namespace {

TEST(ImplementationError, SaysAllOfIt) {
  const ImplementationError error("exception", "ValueError: no", "Traceback\n  File x", "a line\nanother");
  EXPECT_STREQ(error.what(), "exception: ValueError: no\nTraceback\n  File x\nit wrote last:\na line\nanother");
  EXPECT_STREQ(ImplementationError("silent", "no answer within 2 s").what(), "silent: no answer within 2 s");
}

TEST(ImplementationError, SaysTheEndOfMuchOutputInWholeLines) {
  std::string output;
  for (int i = 0; i < 1000; ++i) output += "line " + std::to_string(i) + "\n";
  const ImplementationError error("crashed", "x", "", output);
  EXPECT_EQ(error.output, output);
  EXPECT_LT(std::string(error.what()).size(), 2100U);
  EXPECT_THAT(error.what(), testing::HasSubstr("it wrote last:\nline "));
  EXPECT_THAT(error.what(), testing::EndsWith("\nline 999\n"));
}

TEST(ImplementationError, KnowsWhetherTheProcessIsGone) {
  for (const char* kind : {"start", "crashed", "silent", "protocol"})
    EXPECT_TRUE(ImplementationError(kind, "").process_is_gone()) << kind;
  for (const char* kind : {"exception", "shape", "changed_inputs", "cuda"})
    EXPECT_FALSE(ImplementationError(kind, "").process_is_gone()) << kind;
}

TEST(Readable, IsAlwaysText) {
  EXPECT_EQ(readable("plain \xC3\xA9"), "plain \xC3\xA9");
  EXPECT_EQ(readable("\xFF\xFE."), "\xEF\xBF\xBD\xEF\xBF\xBD.");
  EXPECT_EQ(readable("cut \xC3"), "cut \xEF\xBF\xBD");
  EXPECT_EQ(readable("12345", 3), "123...");
  EXPECT_EQ(readable("123", 3), "123");
  EXPECT_EQ(readable(""), "");
}

}  // namespace
}  // namespace suites::implementation
