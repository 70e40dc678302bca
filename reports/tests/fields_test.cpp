#include "reports/fields.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reports::fields {
namespace {

using testing::HasSubstr;

const Json kEvent = Json::parse(
    R"({"event": "check", "text": "x", "empty": "", "yes": true, "n": 3, "minus": -1, "half": 0.5, "word": "NaN", "none": null,
        "list": [1], "map": {"a": 1}, "big": 18446744073709551615})");

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Fields, ReadsEachType) {
  EXPECT_EQ(text(kEvent, "text"), "x");
  EXPECT_EQ(prose(kEvent, "empty"), "");
  EXPECT_TRUE(boolean(kEvent, "yes"));
  EXPECT_EQ(natural(kEvent, "big"), 18446744073709551615u);
  EXPECT_EQ(seconds(kEvent, "half"), 0.5);
  EXPECT_EQ(measure(kEvent, "word"), "NaN");
  EXPECT_EQ(array(kEvent, "list").size(), 1u);
  EXPECT_EQ(object(kEvent, "map").size(), 1u);
  EXPECT_EQ(natural(Json{{"n", 3}}, "n"), 3u);  // a signed integer that is not negative
}

TEST(Fields, AnErrorNamesKindFieldValueAndWhatIsAllowed) {
  EXPECT_EQ(message_of([] { (void)boolean(kEvent, "n"); }), "check: field 'n' is 3, allowed: true or false");
  EXPECT_EQ(message_of([] { (void)text(kEvent, "absent"); }),
            "check: field 'absent' is missing, allowed: a string that is not empty");
  EXPECT_THAT(message_of([] { (void)text(kEvent, "empty"); }), HasSubstr("'empty' is \"\""));
  EXPECT_THAT(message_of([] { (void)prose(kEvent, "none"); }), HasSubstr("is null"));
  EXPECT_THAT(message_of([] { (void)natural(kEvent, "minus"); }), HasSubstr("is -1"));
  EXPECT_THAT(message_of([] { (void)natural(kEvent, "half"); }), HasSubstr("is 0.5"));
  EXPECT_THAT(message_of([] { (void)seconds(kEvent, "minus"); }), HasSubstr("is -1"));
  EXPECT_THAT(message_of([] { (void)seconds(kEvent, "word"); }), HasSubstr("is \"NaN\""));
  EXPECT_THAT(message_of([] { (void)measure(kEvent, "text"); }), HasSubstr("is \"x\""));
  EXPECT_THAT(message_of([] { (void)object(kEvent, "list"); }), HasSubstr("an object"));
  EXPECT_THAT(message_of([] { (void)array(kEvent, "map"); }), HasSubstr("an array"));
}

TEST(Fields, OptionalOnesFallBackOnlyWhenAbsent) {
  EXPECT_EQ(text_or(kEvent, "absent", "d"), "d");
  EXPECT_EQ(text_or(kEvent, "none", "d"), "d");
  EXPECT_EQ(text_or(kEvent, "empty", "d"), "");
  EXPECT_EQ(seconds_or(kEvent, "absent", 2), 2);
  EXPECT_TRUE(boolean_or(kEvent, "absent", true));
  EXPECT_EQ(object_or_empty(kEvent, "none"), Json::object());
  EXPECT_EQ(array_or_empty(kEvent, "absent"), Json::array());
  EXPECT_THROW((void)text_or(kEvent, "n", "d"), std::invalid_argument);
  EXPECT_THROW((void)boolean_or(kEvent, "n", true), std::invalid_argument);
  EXPECT_THROW((void)object_or_empty(kEvent, "list"), std::invalid_argument);
}

TEST(Fields, ALongOrIllFormedValueIsCutNotThrown) {
  const Json event{{"event", "x"}, {"a", std::string(500, '\xff')}};
  EXPECT_LT(message_of([&] { (void)boolean(event, "a"); }).size(), 200u);
}

}  // namespace
}  // namespace reports::fields
