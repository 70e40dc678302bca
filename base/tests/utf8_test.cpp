#include "base/utf8.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace base {
namespace {

TEST(Utf8, TheFirstByteThatIsNoText) {
  EXPECT_EQ(first_not_utf8(""), 0U);
  EXPECT_EQ(first_not_utf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), 10U);
  EXPECT_EQ(first_not_utf8("ab\xb5z"), 2U);
  EXPECT_EQ(first_not_utf8("ab\xe2\x82"), 2U);
}

// The JSON library judges the same, byte by byte.
TEST(Utf8, AgreesWithAnotherReaderOnRandomBytes) {
  std::mt19937 random(1);
  const std::string bytes =
      std::string("\0a", 2) + "\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff";
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (std::size_t length = random() % 7; length > 0; --length) text += bytes[random() % bytes.size()];
    bool other = true;
    try {
      (void)nlohmann::json(text).dump();
    } catch (const nlohmann::json::type_error&) {
      other = false;
    }
    ASSERT_EQ(first_not_utf8(text) == text.size(), other) << i;
  }
}

}  // namespace
}  // namespace base
