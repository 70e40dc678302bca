#include "suites/implementation/fields.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace {

const Json kSome = Json::parse(R"({"text": "a", "yes": true, "n": -3, "big": 9223372036854775807, "huge": 1e300,
  "over": 9223372036854775808, "real": 0.5, "none": null, "list": [1, 2], "mixed": [1, "a"], "words": ["a", "b"],
  "inner": {"n": 1}})");

std::string complaint(const std::function<void(const Fields&)>& read) {
  const auto error = error_of([&] { read(Fields(kSome, "here")); });
  EXPECT_EQ(error.kind, "protocol");
  return error.message;
}

TEST(Fields, ReadWhatIsThere) {
  const Fields fields(kSome, "here");
  EXPECT_EQ(fields.text("text"), "a");
  EXPECT_TRUE(fields.truth("yes"));
  EXPECT_EQ(fields.integer("n"), -3);
  EXPECT_EQ(fields.integer("big"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(fields.number("real"), 0.5);
  EXPECT_EQ(fields.number("n"), -3);
  EXPECT_EQ(fields.integers("list"), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(fields.numbers("list"), (std::vector<double>{1, 2}));
  EXPECT_EQ(fields.texts("words"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(fields.object("inner").integer("n"), 1);
  EXPECT_TRUE(fields.has("n"));
  EXPECT_FALSE(fields.has("none"));
  EXPECT_FALSE(fields.has("other"));
}

TEST(Fields, RefuseWhatIsOfAnotherType) {
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.text("n"); }), "here: n is -3; allowed: a text");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.text("other"); }), "here: other is not there; allowed: a value");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.truth("n"); }), "here: n is -3; allowed: true or false");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.integer("real"); }),
            "here: real is 0.5; allowed: a whole number of 64 bits");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.integers("mixed"); }),
            "here: mixed is [1,\"a\"]; allowed: a list of whole numbers");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.texts("text"); }), "here: text is \"a\"; allowed: a list of texts");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.object("inner").text("n"); }),
            "here: inner: n is 1; allowed: a text");
  EXPECT_EQ(complaint([](const Fields& f) { (void)f.object("list"); }), "here: list is [1,2]; allowed: an object");
  for (const char* key : {"over", "huge", "yes", "none"})
    EXPECT_NE(complaint([&](const Fields& f) { (void)f.integer(key); }), "nothing was thrown") << key;
}

}  // namespace
}  // namespace suites::implementation::tests
