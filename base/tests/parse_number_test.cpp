#include "base/parse_number.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace base {
namespace {

TEST(ParseNumber, TakesWhatIsANumberFromEndToEnd) {
  EXPECT_EQ(parse_number<int>("0"), 0);
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<int>("007"), 7);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(parse_number<double>("-1.5e3"), -1500);
  EXPECT_EQ(parse_number<double>(".5"), 0.5);
  EXPECT_TRUE(std::isinf(parse_number<double>("inf").value()));
  EXPECT_TRUE(std::isnan(parse_number<double>("nan").value()));
}

TEST(ParseNumber, RefusesEverythingElse) {
  for (const char* text :
       {"", " ", "+", "-", "+1", "--1", "+-1", " 1", "1 ", "1\n", "0x10", "1,000", "1.0", "1e3", "one"})
    EXPECT_FALSE(parse_number<std::int64_t>(text)) << text;
  for (const char* text : {"", "+", "+1.5", "+-1", "1.5 ", "1,5", "1e", "1e999", "0x1p3", "e5"})
    EXPECT_FALSE(parse_number<double>(text)) << text;
  EXPECT_FALSE(parse_number<std::int64_t>("9223372036854775808"));
  EXPECT_FALSE(parse_number<std::uint64_t>("-1"));
}

}  // namespace
}  // namespace base
