#include "reports/json.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace reports {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Number, NonFiniteBecomesWords) {
  EXPECT_EQ(number(kNan), "NaN");
  EXPECT_EQ(number(kInf), "Infinity");
  EXPECT_EQ(number(-kInf), "-Infinity");
  EXPECT_EQ(number(-0.5), -0.5);
}

TEST(Number, ReadsBack) {
  for (const double value : {0.0, -1.5, 1e300, 5e-324, kInf, -kInf}) EXPECT_EQ(as_number(number(value)), value);
  EXPECT_TRUE(std::isnan(as_number(number(kNan)).value()));
  EXPECT_EQ(as_number(Json(7)), 7.0);
  for (const auto& other : {Json("nan"), Json("1.5"), Json(nullptr), Json(true), Json::array(), Json::object()}) {
    EXPECT_EQ(as_number(other), std::nullopt) << other;
  }
}

TEST(Dump, NoSilentNullForNonFiniteNumbersAtAnyDepth) {
  const Json value{{"a", kNan}, {"b", Json::array({1, Json{{"c", -kInf}}})}};
  EXPECT_EQ(dump(value), R"({"a":"NaN","b":[1,{"c":"-Infinity"}]})");
  EXPECT_EQ(dump(Json(kInf)), "\"Infinity\"");
}

TEST(Dump, IllFormedBytesAreReplaced) {
  const Json value{{"a", std::string("x\xff\xc3y")}, {std::string("k\x80"), 1}};
  const std::string text = dump(value);
  ASSERT_TRUE(Json::accept(text));
  EXPECT_EQ(Json::parse(text).at("a"), "x\xEF\xBF\xBD\xEF\xBF\xBDy");
}

TEST(Dump, KeepsTheOrderOfMembers) { EXPECT_EQ(dump(Json{{"z", 1}, {"a", 2}}), R"({"z":1,"a":2})"); }

TEST(ParseEdited, AKeyThatStandsTwiceIsRefused) {
  EXPECT_EQ(parse_edited(R"({"a":{"b":1},"c":[{"b":2},{"b":3}]})").dump(), R"({"a":{"b":1},"c":[{"b":2},{"b":3}]})");
  for (const char* text : {R"({"a":1,"b":2,"a":1})", R"([{"x":{"a":1,"a":2}}])"}) {
    try {
      (void)parse_edited(text);
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_STREQ(error.what(), "key 'a' stands twice in one object");
    }
  }
  EXPECT_THROW((void)parse_edited("{"), Json::exception);
}

}  // namespace
}  // namespace reports
