// Mutants of the sources in the score: whatever notices them, those that change nothing, and who noticed first.
#include "suites/selftest/mutants.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "suites/selftest/baseline.hpp"
#include "suites/selftest/text.hpp"

namespace suites::selftest {
namespace mutants_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kName = "sdpa-rows-boundary-4787f1";

Planted mutant() {
  Planted row{{kName, "nsa/sdpa/rows.cpp:29: `>` becomes `>=`", {}, nullptr}, "sources", "forward,parity"};
  row.any_code = true;
  return row;
}

Json a_case(const std::string& id, const std::string& code, const std::string& severity = "block") {
  Json findings = Json::array();
  if (!code.empty()) findings.push_back({{"code", code}, {"severity", severity}, {"title", "a title"}});
  return {{"id", id}, {"status", code.empty() ? "pass" : "fail"}, {"findings", findings}};
}

Evidence of(const std::vector<Json>& cases, bool ready = false) {
  Evidence evidence;
  evidence.report = {{"run", {{"faults", {kName}}}},   {"verdict", ready ? "READY" : "NOT READY"},
                     {"reasons", {"a reason"}},        {"findings", Json::array()},
                     {"suites", {{{"cases", cases}}}}, {"causes", {{{"codes", {"NSA-N001"}}}}}};
  evidence.exit_code = ready ? 0 : 1;
  evidence.began = "2026-11-26T07:00:00.000Z";
  for (const Json& one : cases)
    for (Json finding : one["findings"]) {
      finding["case"] = one["id"];
      finding["t"] = "2026-11-26T07:00:02.500Z";
      evidence.findings.push_back(finding);
    }
  evidence.reached = true;
  return evidence;
}

TEST(Mutants, AnyCodeCatchesOneAndNoCauseIsPraised) {
  const Trial trial = judge(mutant(), of({a_case("forward/a", ""), a_case("parity/b", "NSA-N001")}));
  EXPECT_EQ(trial.outcome, Outcome::caught);
  EXPECT_FALSE(trial.cause_first);
  EXPECT_TRUE(trial.reached);
  EXPECT_EQ(trial.seconds, 2.5);
  EXPECT_EQ(trial.first_suite, "parity");
  EXPECT_THAT(trial.ran, ElementsAre("forward/a", "parity/b"));
  EXPECT_THAT(trial.noticed, ElementsAre("parity/b"));
}

TEST(Mutants, TheHarnesssOwnFindingsAreACrash) {
  const Trial trial = judge(mutant(), of({a_case("forward/a", "NSA-X004")}));
  EXPECT_EQ(trial.outcome, Outcome::by_crash);
  EXPECT_EQ(trial.first_suite, "forward");
  EXPECT_EQ(judge(mutant(), of({a_case("forward/a", "NSA-X004"), a_case("forward/b", "NSA-N001")})).outcome,
            Outcome::caught);
}

TEST(Mutants, AWarningIsNoCatch) {
  EXPECT_EQ(judge(mutant(), of({a_case("forward/a", "NSA-N001", "warn")}, /*ready=*/true)).outcome, Outcome::survived);
  EXPECT_EQ(judge(mutant(), of({a_case("forward/a", "NSA-N001")}, /*ready=*/true)).outcome, Outcome::other_reason);
}

// A mutated loop may never end. Of another fault nothing is known then.
TEST(Mutants, ARunWithoutAnEndIsACrash) {
  Evidence endless;
  endless.exit_code = 128 + 9;
  endless.overran = true;
  endless.trouble = "still running after 600 s, and killed";
  EXPECT_EQ(judge(mutant(), endless).outcome, Outcome::by_crash);
  endless.overran = false;
  EXPECT_EQ(judge(mutant(), endless).outcome, Outcome::broken);
  Planted other = mutant();
  other.any_code = false;
  endless.overran = true;
  EXPECT_EQ(judge(other, endless).outcome, Outcome::broken);
}

TEST(Mutants, OneThatChangesNothingIsEquivalentWhereItSurvived) {
  const Equivalents known = {{kName, "the limit is never met exactly by any shape"}};
  Trial trial = judge(mutant(), of({a_case("forward/a", "")}, /*ready=*/true));
  mark(trial, known);
  EXPECT_EQ(trial.outcome, Outcome::equivalent);
  EXPECT_THAT(trial.why, HasSubstr("never met"));
  EXPECT_EQ(score("all", std::vector{trial}).equivalent, 1u);
  EXPECT_EQ(score("all", std::vector{trial}).survived, 0u);
  EXPECT_THAT(wrongly_marked(std::vector{trial}, known), IsEmpty());

  Trial noticed_one = judge(mutant(), of({a_case("forward/a", "NSA-N001")}));
  mark(noticed_one, known);
  EXPECT_EQ(noticed_one.outcome, Outcome::caught);
  EXPECT_THAT(wrongly_marked(std::vector{noticed_one}, known), ElementsAre(kName));

  Trial unknown = judge(mutant(), of({a_case("forward/a", "")}, /*ready=*/true));
  mark(unknown, {{"another", "a reason that is long enough"}});
  EXPECT_EQ(unknown.outcome, Outcome::survived);
  EXPECT_THAT(marked_in_vain(std::vector<std::string>{kName}, {{kName, ""}, {"gone", ""}}), ElementsAre("gone"));
}

TEST(Mutants, EveryEquivalentHasAReason) {
  const auto file = [](const std::string& mutants, const std::string& schema = kEquivalentSchema,
                       const std::string& version = "1.2.0") {
    return R"({"schema": ")" + schema + R"(", "schema_version": ")" + version + R"(", "mutants": )" + mutants + "}";
  };
  EXPECT_EQ(parse_equivalents(file(R"({"a": "it is computed and never read"})"), "f").at("a"),
            "it is computed and never read");
  EXPECT_THAT(parse_equivalents(file("{}"), "f"), IsEmpty());
  for (const std::string& bad :
       {std::string(), std::string("[]"), file("[]"), file(R"({"a": "why not"})"), file(R"({"a": 1})"),
        file("{}", "nsa-validate/selftest-baseline"), file("{}", kEquivalentSchema, "2.0.0"), std::string("{")})
    EXPECT_THROW((void)parse_equivalents(bad, "f"), BaselineError) << bad;
}

TEST(Mutants, WhoNoticedFirstAndWhoNeverDid) {
  std::vector<Trial> trials = {judge(mutant(), of({a_case("forward/a", ""), a_case("parity/b", "NSA-N001")})),
                               judge(mutant(), of({a_case("forward/a", ""), a_case("autograd/c", "")}, true)),
                               judge(mutant(), of({a_case("forward/d", "NSA-X004")}))};
  const auto first = by_first_suite(trials);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].name, "parity");
  EXPECT_EQ(first[0].caught, 1u);
  EXPECT_EQ(first[1].name, "forward");
  EXPECT_EQ(first[1].by_crash, 1u);
  const auto kinds = by_kind(trials);
  ASSERT_EQ(kinds.size(), 1u);
  EXPECT_EQ(kinds[0].name, "boundary");
  EXPECT_THAT(by_suite(trials), IsEmpty()) << "no suite was to find them";

  const Noticed all = noticed(trials);
  EXPECT_THAT(all.silent_cases, ElementsAre("autograd/c", "forward/a"));
  EXPECT_THAT(all.silent_suites, ElementsAre("autograd"));
  EXPECT_EQ(all.codes.at("NSA-N001"), 1u);
}

TEST(Mutants, SurvivorsAreToldWithTheirPlace) {
  Result result;
  result.trials = {judge(mutant(), of({a_case("forward/a", "")}, true))};
  result.trials[0].command = "the command";
  EXPECT_THAT(text_of(result), HasSubstr("computed; nsa/sdpa/rows.cpp:29: `>` becomes `>=`"));
  EXPECT_THAT(text_of(result), HasSubstr("the command"));
  result.trials[0].reached = false;
  EXPECT_THAT(text_of(result), HasSubstr("never computed; nsa/sdpa/rows.cpp:29"));
  mark(result.trials[0], {{kName, "nobody can see it, for a good reason"}});
  EXPECT_THAT(text_of(result), Not(HasSubstr("rows.cpp:29")));
  EXPECT_THAT(text_of(result), HasSubstr("1 more are equivalent"));
  EXPECT_EQ(json_of(result)["total"]["equivalent"], 1);
  EXPECT_EQ(json_of(result)["faults"][0]["reached"], false);
}

}  // namespace mutants_test
}  // namespace suites::selftest
