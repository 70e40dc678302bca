#include "suites/machine/flags.hpp"

#include <gtest/gtest.h>

#include <set>

#include "suites/codes.hpp"

namespace suites::machine {
namespace {

TEST(Flags, MisspeltAndRetiredNamesAreTold) {
  const Inspection found = judge_flags({{"NSA_USE_FA", "1"}, {"NSA_FWE_DOC_BATCH", "64"}, {"NSA_USE_FA2", "1"}});
  ASSERT_EQ(found.judgements.size(), 2U);
  for (const Judgement& j : found.judgements) {
    if (j.code == codes::kUnknownFlag)
      EXPECT_NE(j.what_failed.find("did you mean NSA_USE_FA2?"), std::string::npos) << j.what_failed;
    else
      EXPECT_EQ(j.code, codes::kRetiredFlag);
  }
  EXPECT_TRUE(judge_flags({{"NSA_USE_FA2", "1"}}).sound());
}

// READY with them would call a model fit to train that is not NSA, or does not learn its gates.
TEST(Flags, ForDebuggingAreToldWithWhatTheyDo) {
  for (const auto& [name, value] :
       {std::pair{"NSA_FORCE_BRANCH", "win"}, {"NSA_FORCE_UNIFORM_GATE", "1"}, {"NSA_STOPGRAD_GATES", "yes"}}) {
    const Inspection found = judge_flags({{name, value}});
    ASSERT_EQ(found.judgements.size(), 1U) << name;
    EXPECT_EQ(found.judgements[0].code, codes::kDebuggingFlag);
    EXPECT_EQ(found.judgements[0].what_failed.find(std::string(name) + "=" + value + " is set: "), 0U);
  }
  EXPECT_TRUE(judge_flags({{"NSA_FORCE_BRANCH", "none"}, {"NSA_STOPGRAD_GATES", "0"}}).sound());
  EXPECT_TRUE(judge_flags({{"NSA_FORCE_BRANCH", "nonsense"}}).sound()) << "refused before any run";
}

// A flag that is added to the product must get its row here.
TEST(Flags, EveryFieldHasItsVariableAndMeaning) {
  const nsa::EffectiveFlags flags = nsa::resolve({{"NSA_FORCE_BRANCH", "win"}});
  const std::vector<FlagRow> rows = flag_rows(flags);
  EXPECT_EQ(rows.size(), nsa::flatten(flags).size());
  std::set<std::string> variables;
  for (const FlagRow& row : rows) {
    EXPECT_NE(row.variable, "") << row.field;
    EXPECT_NE(row.meaning, "") << row.field;
    EXPECT_NE(row.origin, "") << row.field;
    EXPECT_TRUE(variables.insert(row.variable).second) << row.variable << " stands twice";
    if (row.field == "forced_branch") {
      EXPECT_EQ(row.value, "win");
      EXPECT_EQ(row.origin, "NSA_FORCE_BRANCH=win");
    }
  }
}

}  // namespace
}  // namespace suites::machine
