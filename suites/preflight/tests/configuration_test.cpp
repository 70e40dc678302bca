// The keys of a configuration file, and what was planned.
#include <utility>

#include "suites/preflight/tests/preflight.hpp"

namespace suites::preflight_tests {
namespace {

class Keys : public Preflight {
 protected:
  [[nodiscard]] nsa::Config load(const std::string& yaml, const std::vector<nsa::Override>& overrides) const {
    write("keys.yaml", yaml);
    return nsa::load_config(folder / "keys.yaml", overrides);
  }
};

TEST_F(Keys, OfTheProductReachTheirFields) {
  checks::configuration_keys(context, [&](const auto& yaml, const auto& overrides) { return load(yaml, overrides); });
  EXPECT_TRUE(context.findings.empty()) << context.findings.front().message;
  EXPECT_EQ(context.checks, 2);
}

TEST_F(Keys, OneThatIsBoundToAnotherFieldIsFound) {
  checks::configuration_keys(context, [&](const auto& yaml, const auto& overrides) {
    nsa::Config config = load(yaml, overrides);
    config.train.deterministic = std::exchange(config.train.gradient_checkpointing, false);
    return config;
  });
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigKey)});
  EXPECT_EQ(context.findings[0].evidence["said"], "train.gradient_checkpointing = true does not reach its field");
}

TEST_F(Keys, AnOverrideThatLosesToTheFileIsFound) {
  checks::configuration_keys(context, [&](const auto& yaml, const auto&) { return load(yaml, {}); });
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigKey)});
  EXPECT_EQ(context.findings[0].evidence["said"], "model.name = other of a file is not overridden from outside");
}

TEST_F(Preflight, PlannedConfigurationAgrees) {
  checks::configuration(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  EXPECT_EQ(context.checks, 1);
}

TEST_F(Preflight, DriftFromThePlanListsEveryKey) {
  seams->configuration.push_back([](nsa::Config& c) {
    c.train.gradient_checkpointing = !c.train.gradient_checkpointing;
    c.train.batch_size *= 2;
  });
  checks::configuration(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigDrift)});
  const auto& rows = context.findings[0].evidence["differences"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["key"], "train.batch_size");
  EXPECT_EQ(rows[1]["key"], "train.gradient_checkpointing");
}

TEST_F(Preflight, DriftFromAnExpectedFile) {
  write("same.yaml", "nsa:\n  l_sel: 16\n");
  settings.set("preflight.expect", (folder / "same.yaml").string(), "test");
  checks::configuration(subject(), context);
  EXPECT_TRUE(context.findings.empty());
  write("other.yaml", "train:\n  accumulate_grad_batches: 7\n");
  settings.set("preflight.expect", (folder / "other.yaml").string(), "test");
  checks::configuration(subject(), context);
  ASSERT_EQ(all_codes(), Codes{code(codes::kConfigDrift)});
  EXPECT_NE(context.findings[0].message.find("train.accumulate_grad_batches is 1, expected 7"), std::string::npos)
      << context.findings[0].message;
}

TEST_F(Preflight, MissingPlanIsAnErrorNotAPass) {
  context.provenance = harness::Json::object();
  EXPECT_THROW(checks::configuration(subject(), context), std::runtime_error);
}

}  // namespace
}  // namespace suites::preflight_tests
