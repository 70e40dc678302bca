#include "harness/context.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "harness/forwarding_context.hpp"

namespace {

using harness::Json;

class Recording : public harness::Context {
 public:
  [[nodiscard]] const harness::Settings& settings() const override { return settings_; }
  [[nodiscard]] bool cuda() const override { return false; }
  [[nodiscard]] std::filesystem::path run_folder() const override { return "."; }
  [[nodiscard]] std::string run_id() const override { return "id"; }
  [[nodiscard]] const Json& planned_provenance() const override { return provenance_; }
  [[nodiscard]] std::uint64_t seed(std::string_view, int) const override { return 1; }
  void phase(std::string_view) override {}
  void progress() override {}
  void metric(std::string_view, double, std::string_view) override {}
  void fact(std::string_view, const Json&) override {}
  void artifact(const std::filesystem::path&) override {}
  void finding(std::string_view code, std::string_view message, const Json& evidence) override {
    findings.push_back({{"code", code}, {"message", message}, {"evidence", evidence}});
  }
  void finding(std::string_view, reports::Severity, std::string_view, const Json&) override {}
  std::vector<Json> checks, findings;

 protected:
  void check(std::string_view name, bool pass, const Json& measured, std::string_view comparator, const Json& bound,
             std::string_view unit) override {
    checks.push_back({{"name", name},
                      {"pass", pass},
                      {"measured", measured},
                      {"comparator", comparator},
                      {"bound", bound},
                      {"unit", unit}});
  }

 private:
  harness::Settings settings_{{}};
  Json provenance_;
};

TEST(Context, APassedCheckIsRecordedWithoutFinding) {
  Recording context;
  EXPECT_TRUE(context.expect_at_most("error", 0.5, 1, "ulp", "C"));
  EXPECT_TRUE(context.expect_at_least("speed", 2, 1, "token/s", "C"));
  EXPECT_TRUE(context.expect_within("share", 0.5, 0, 1, "1", "C"));
  EXPECT_TRUE(context.expect_equal("shape", Json{1, 2}, Json{1, 2}, "C"));
  EXPECT_TRUE(context.expect("finite", true, "is not", "C"));
  EXPECT_EQ(context.checks.size(), 5U);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks[0]["comparator"], "<=");
  EXPECT_EQ(context.checks[2]["bound"], Json({0.0, 1.0}));
}

TEST(Context, AFailedCheckRaisesItsCodeWithTheNumbers) {
  Recording context;
  EXPECT_FALSE(context.expect_at_most("error", 2.5, 1, "ulp", "C-1", {{"row", 3}}));
  ASSERT_EQ(context.findings.size(), 1U);
  EXPECT_EQ(context.findings[0]["code"], "C-1");
  EXPECT_EQ(context.findings[0]["message"], "error is 2.5 ulp, allowed is at most 1 ulp");
  EXPECT_EQ(context.findings[0]["evidence"]["row"], 3);
  EXPECT_FALSE(context.expect_at_least("speed", 2, 300, "", "C-2"));
  EXPECT_FALSE(context.expect_within("share", 2, 0, 1, "1", "C-3"));
  EXPECT_FALSE(context.expect_equal("shape", Json{1, 2}, Json{2, 1}, "C-4"));
  EXPECT_FALSE(context.expect("finite", false, "3 of 7 values are not finite", "C-5"));
  ASSERT_EQ(context.findings.size(), 5U);
  EXPECT_EQ(context.findings[3]["message"], "shape is [1,2], wanted is [2,1]");
  EXPECT_EQ(context.findings[4]["message"], "3 of 7 values are not finite");
}

TEST(Context, NanNeverPassesAndIsRecordedAsAWord) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Recording context;
  EXPECT_FALSE(context.expect_at_most("a", nan, 1, "", "C"));
  EXPECT_FALSE(context.expect_at_least("b", nan, 1, "", "C"));
  EXPECT_FALSE(context.expect_within("c", nan, 0, 1, "", "C"));
  EXPECT_FALSE(context.expect_at_most("d", 0, nan, "", "C"));
  EXPECT_FALSE(context.expect_equal("e", nan, nan, "C"));
  EXPECT_EQ(context.findings.size(), 5U);
  EXPECT_EQ(context.checks[0]["measured"], "NaN");
  EXPECT_EQ(context.checks[0]["pass"], false);
}

TEST(Context, SkipLeavesTheCase) {
  const Recording context;
  try {
    context.skip("no_cuda", "needs a GPU");
    FAIL() << "skip returned";
  } catch (const harness::Skipped& skipped) {
    EXPECT_EQ(skipped.reason_code, "no_cuda");
    EXPECT_EQ(skipped.reason, "needs a GPU");
  }
}

TEST(ForwardingContext, PassesChecksAndFindingsOn) {
  Recording inner;
  harness::ForwardingContext context(inner);
  EXPECT_TRUE(context.expect_at_most("error", 0.5, 1, "ulp", "C"));
  EXPECT_FALSE(context.expect_at_most("error", 2, 1, "ulp", "D", {{"row", 3}}));
  context.finding("E", "seen", {{"row", 4}});
  EXPECT_EQ(inner.checks.size(), 2U);
  ASSERT_EQ(inner.findings.size(), 2U);
  EXPECT_EQ(inner.findings[0]["code"], "D");
  EXPECT_EQ(inner.findings[0]["evidence"], (Json{{"row", 3}}));
  EXPECT_EQ(inner.findings[1]["message"], "seen");
  EXPECT_EQ(context.run_id(), "id");
}

}  // namespace
