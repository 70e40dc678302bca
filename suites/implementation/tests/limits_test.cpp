#include "suites/implementation/limits.hpp"

#include "suites/implementation/tests/support.hpp"

namespace suites::implementation::tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Limits limits(const char* json) {
  const Json parsed = Json::parse(json);
  return limits_from(Fields(parsed, "limits"));
}

Sizes sizes() { return {2, 100, 6, 3, 48, 32, {.l = 32, .d = 16, .l_sel = 64, .n_sel = 16, .w = 512}}; }

TEST(Limits, HaveANameForEverySize) {
  const std::map<std::string, std::int64_t> wanted = {
      {"heads_per_group", 2}, {"d_k", 48},   {"d_v", 32}, {"l", 32},      {"d", 16},
      {"l_sel", 64},          {"n_sel", 16}, {"w", 512},  {"tokens", 100}};
  EXPECT_EQ(sizes().by_name(), wanted);
}

TEST(Limits, ThatAreKeptSayNothing) {
  EXPECT_THAT(limits("{}").broken_by(sizes()), IsEmpty());
  EXPECT_THAT(limits(R"({"d_k": 48, "l": [16, 32], "tokens": {"min": 100, "max": 100, "multiple_of": 4},
                         "equal": [["d_v", "l"], ["d"]]})")
                  .broken_by(sizes()),
              IsEmpty());
}

TEST(Limits, ThatAreBrokenSayEachWhatIsAllowed) {
  EXPECT_THAT(limits(R"({"d_k": 64, "l": [8, 16], "tokens": {"min": 128, "multiple_of": 64}, "w": {"max": 256},
                         "equal": [["l", "d", "l_sel"], ["d_v", "l"]]})")
                  .broken_by(sizes()),
              ElementsAre("d_k is 48; allowed: 64", "l is 32; allowed: 8 or 16",
                          "tokens is 100; allowed: at least 128, a multiple of 64", "w is 512; allowed: at most 256",
                          "l = 32, d = 16, l_sel = 64; allowed: equal ones"));
}

TEST(Limits, SizesAreFittedToWhatIsAllowed) {
  for (const char* json :
       {R"({"d_k": 64, "l": [8, 16], "w": {"max": 256}, "equal": [["l", "d", "l_sel"], ["d_v", "l"]]})",
        R"({"heads_per_group": [16, 32], "l_sel": [16, 32], "equal": [["l", "d", "l_sel"]]})",
        R"({"d_k": {"min": 16, "max": 40, "multiple_of": 16}, "equal": [["d_k", "d_v"]]})", "{}"}) {
    const Sizes fitted = limits(json).fitted(sizes());
    EXPECT_THAT(limits(json).broken_by(fitted), IsEmpty()) << json;
    EXPECT_EQ(fitted.Hq % fitted.G, 0);
    EXPECT_EQ(fitted.S, sizes().S);
  }
}

TEST(Limits, OfNoKnownFormAreRefused) {
  for (const char* bad :
       {R"({"heads": 2})", R"({"d_k": "64"})", R"({"d_k": []})", R"({"d_k": [1.5]})", R"({"d_k": {"multiple_of": 0}})",
        R"({"d_k": {"min": "1"}})", R"({"equal": ["l", "d"]})", R"({"equal": [["l", "x"]]})", R"({"d_k": null})", "[]"})
    EXPECT_EQ(error_of([&] { (void)limits(bad); }).kind, "protocol") << bad;
}

}  // namespace
}  // namespace suites::implementation::tests
