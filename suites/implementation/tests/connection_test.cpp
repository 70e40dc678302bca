#include "suites/implementation/connection.hpp"

#include <ATen/ATen.h>

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace {

using testing::HasSubstr;

constexpr Connection::Seconds kLong{60};

class ConnectionTest : public PythonTest {
 protected:
  [[nodiscard]] Connection connection(const std::string& body) const { return {kPython, program(body), adapter}; }
  // What the first request to a program throws.
  [[nodiscard]] ImplementationError first_error(const std::string& body) const {
    Connection to = connection(body);
    const ImplementationError error = error_of([&] { (void)to.ask("describe", Json::object(), kLong); });
    EXPECT_EQ(to.running(), !error.process_is_gone()) << error.what();
    return error;
  }
};

constexpr const char* kEcho = "while True:\n  one = request()\n  ok(one, came=one)\n";

TEST_F(ConnectionTest, RequestsAreNumbered) {
  Connection to = connection(kEcho);
  EXPECT_EQ(to.ask("memory", {{"more", 1.5}}, kLong)["came"], (Json{{"id", 1}, {"do", "memory"}, {"more", 1.5}}));
  EXPECT_EQ(to.ask("leave", Json::object(), kLong)["came"], (Json{{"id", 2}, {"do", "leave"}}));
}

TEST_F(ConnectionTest, AnErrorOfTheHostIsThrownAndItGoesOn) {
  Connection to = connection(R"py(
one = request()
print("heard")
error(one, "exception", "no such thing", "ValueError", "Traceback\n  a.py")
while True: error(request(), "import", "no torch")
)py");
  const auto first = error_of([&] { (void)to.ask("forward", Json::object(), kLong); });
  EXPECT_EQ(first.kind, "exception");
  EXPECT_EQ(first.message, "ValueError: no such thing");
  EXPECT_EQ(first.traceback, "Traceback\n  a.py");
  EXPECT_EQ(error_of([&] { (void)to.ask("forward", Json::object(), kLong); }).message, "no torch");
  EXPECT_TRUE(to.running());
  EXPECT_EQ(to.last_words(), "heard\n");
}

TEST_F(ConnectionTest, WhatIsNoAnswerIsRefused) {
  const auto complaint = [&](const std::string& answer) {
    const auto error = first_error("request()\nsay(" + answer + ")\nrequest()");
    EXPECT_EQ(error.kind, "protocol") << answer;
    return error.message;
  };
  EXPECT_EQ(complaint(R"("Hello!\n")"), "no JSON object in answer to describe: Hello!");
  EXPECT_EQ(complaint(R"("\n")"), "no JSON object in answer to describe: ");
  EXPECT_EQ(complaint(R"(b"\xff\x00\n")"), std::string("no JSON object in answer to describe: \xEF\xBF\xBD\0", 42));
  EXPECT_EQ(complaint(R"("[" * 100000 + "\n")").substr(0, 40), "no JSON object in answer to describe: [[");
  EXPECT_EQ(complaint(R"('{"id": 7, "ok": {}}\n')"),
            R"(the answer to describe has another id than 1: {"id": 7, "ok": {}})");
  EXPECT_THAT(complaint(R"('{"id": null, "error": {"kind": "request"}}\n')"), HasSubstr("another id"));
  EXPECT_THAT(complaint(R"('{"ok": {}}\n')"), HasSubstr("another id"));
  EXPECT_THAT(complaint(R"('{"id": 1}\n')"), HasSubstr("neither ok nor error"));
}

TEST_F(ConnectionTest, AnErrorWithoutAKindIsRefused) {
  const auto error = first_error("request()\nsay('{\"id\": 1, \"error\": {\"message\": \"x\"}}\\n')\nrequest()");
  EXPECT_EQ(error.message, "an error of the host: kind is not there; allowed: a value");
}

// Twice what came, behind it.
constexpr const char* kDouble = R"py(
while True:
    one = request()
    out = {name: put([2 * x for x in get(place)], place["dtype"], place["shape"]) for name, place in one["in"].items()}
    ok(one, out={**out, "none": None}, arena=arena_size())
)py";

TEST_F(ConnectionTest, TensorsCrossBothWays) {
  Connection to = connection(kDouble);
  for (const std::int64_t count : {3, 0, 1 << 18, 5}) {  // the third makes the arena larger on both sides
    const Named in = {{"a", at::randn({count, 2}, at::kDouble)}, {"b", at::randn({2, count})}};
    Json body = Json::object();
    body["in"] = to.put(in, body);
    const Json answer = to.ask("double", body, kLong);
    const Named out = to.take(Fields(answer, "answer"), "out");
    ASSERT_EQ(out.size(), 3U);
    EXPECT_TRUE(at::equal(named(out, "a"), 2 * in[0].second));
    EXPECT_TRUE(at::equal(named(out, "b"), 2 * in[1].second));
    EXPECT_FALSE(out[2].second.defined());
  }
}

TEST_F(ConnectionTest, PlacesOutsideTheArenaAreRefused) {
  Connection to = connection(R"py(
far = {"dtype": "fp64", "shape": [8], "at": 1 << 40}
ok(request(), out={"o": far}, arena=arena_size())
ok(request(), out={"o": {**far, "at": 0}}, arena=1 << 60)
ok(request(), out={"o": {**far, "dtype": "fp8"}}, arena=arena_size())
request()
)py");
  const auto complaint = [&] {
    const Json answer = to.ask("forward", Json::object(), kLong);
    const auto error = error_of([&] { (void)to.take(Fields(answer, "answer"), "out"); });
    EXPECT_EQ(error.kind, "protocol");
    return error.message;
  };
  EXPECT_THAT(complaint(), HasSubstr("a tensor fp64 [8] at byte 1099511627776 of the arena: it would end outside"));
  EXPECT_THAT(complaint(), HasSubstr("the arena is said to have"));
  EXPECT_EQ(complaint(), "o: dtype is \"fp8\"; allowed: fp64, fp32, bf16, fp16 or int32");
}

}  // namespace
}  // namespace suites::implementation::tests
