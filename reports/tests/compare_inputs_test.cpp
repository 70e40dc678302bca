// What went in: provenance, settings, the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "reports/tests/support/compared.hpp"
#include "reports/tests/support/sample.hpp"

namespace reports {
namespace {

using sample::Compared;
using sample::names;
using sample::provenance;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Compare, EqualRunsHaveNoDifferenceAndSaySo) {
  const Comparison all = Compared()();
  EXPECT_THAT(names(all.environment), IsEmpty());
  EXPECT_THAT(names(all.configuration), IsEmpty());
  EXPECT_THAT(names(all.plan), IsEmpty());
  EXPECT_EQ(all.steps.at(0).went_in + all.steps.at(0).came_out, 0);
  EXPECT_EQ(all.steps.at(0).in_both, 2);
  EXPECT_THAT(to_text(all),
              AllOf(HasSubstr("what went in: no difference is recorded\n"),
                    HasSubstr("Nothing that is recorded of what went in differs, and nothing of what came "
                              "out does that can be judged.\n")));
}

// Each value of the provenance is changed, and then removed, in turn: what a provider adds cannot be forgotten.
TEST(Compare, EveryFieldOfTheProvenanceIsCompared) {
  const Json flat = provenance().flatten();
  int fields = 0;
  for (const auto& [pointer, value] : flat.items()) {
    for (const bool removed : {false, true}) {
      if (value.is_null() || value.empty()) continue;  // an empty list
      Compared runs;
      Json& changed = runs[1].provenance[Json::json_pointer(pointer)];
      if (removed)
        changed = nullptr;
      else if (value.is_boolean())
        changed = !value.get<bool>();
      else
        changed = value.is_number() ? Json(value.get<int>() + 1) : Json(value.get<std::string>() + "x");
      const Comparison all = runs();
      std::vector<Difference> rows = all.environment;
      rows.insert(rows.end(), all.configuration.begin(), all.configuration.end());
      rows.insert(rows.end(), all.plan.begin(), all.plan.end());
      ASSERT_EQ(rows.size(), 1U) << pointer;
      const bool origin = pointer.ends_with("/origin");
      EXPECT_EQ(all.steps[0].went_in, origin ? 0 : 1) << pointer;
      EXPECT_EQ(all.steps[0].origins, origin ? 1 : 0) << pointer;
      // The words of the pointer, but for numbers of a list of scalars and for value and origin, are those of the name.
      const std::string first = pointer.substr(1, pointer.find('/', 1) - 1);
      EXPECT_THAT(rows[0].name, testing::StartsWith(first.substr(0, first.find('~')))) << pointer;
      EXPECT_THAT(to_text(all), Not(HasSubstr("no difference is recorded"))) << pointer;
      ++fields;
    }
  }
  EXPECT_GT(fields, 80);
}

TEST(Compare, WhatIsAddedIsADifferenceToo) {
  Compared runs;
  runs[1].provenance["flags"]["set"]["NSA_SEL_MASK"] = "1";
  runs[1].provenance["environment"]["CUDA_VISIBLE_DEVICES"] = "3";
  runs[1].provenance["gpus"].push_back({{"index", 1}, {"name", "NVIDIA H100"}});
  runs[1].provenance["selection"]["cases"] = {"b*"};
  const Comparison all = runs();
  EXPECT_THAT(names(all.environment), ElementsAre("environment.CUDA_VISIBLE_DEVICES", "flags.set.NSA_SEL_MASK",
                                                  "gpus[1].index", "gpus[1].name"));
  EXPECT_THAT(names(all.plan), ElementsAre("selection.cases"));
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("NSA_SEL_MASK +not set +1\n"),
                                  testing::ContainsRegex("gpus\\[1\\].name +none +NVIDIA H100\n"),
                                  testing::ContainsRegex("selection.cases +none +b\\*\n")));
}

TEST(Compare, WhereItStands) {
  Compared runs;
  Json& p = runs[1].provenance;
  p["cuda"]["driver"] = "590.2";
  p["source"]["git_sha"] = "4567";
  p["settings"]["values"]["run.seed"] = {{"value", "7"}, {"origin", "--seed"}};
  p["flags"]["effective"]["fa2_all"]["value"] = "false";
  p["config"]["resolved"]["model.dim"] = "128";
  p["selection"]["fail_fast"] = true;
  runs[1].faults = {"flag-ignored"};
  const Comparison all = runs();
  EXPECT_THAT(names(all.environment), ElementsAre("source.git_sha", "cuda.driver"));
  EXPECT_THAT(names(all.configuration), ElementsAre("settings.values.run.seed", "flags.effective.fa2_all",
                                                    "config.resolved.model.dim", "planted faults"));
  EXPECT_THAT(names(all.plan), ElementsAre("selection.fail_fast"));
  EXPECT_THAT(to_text(all), testing::ContainsRegex("run.seed +42 \\(default\\) +7 \\(--seed\\)\n"));
}

TEST(Compare, AnOriginAloneHasNoEffect) {
  Compared runs;
  runs[1].provenance["settings"]["values"]["run.seed"]["origin"] = "--seed";
  const Comparison all = runs();
  EXPECT_EQ(all.steps[0].went_in, 0);
  EXPECT_EQ(all.steps[0].origins, 1);
  EXPECT_THAT(all.steps[0].verdict,
              HasSubstr("Nothing that is recorded of what went in differs but where settings came"));
  EXPECT_THAT(to_text(all), testing::ContainsRegex("run.seed +42 \\(default\\) +42 \\(--seed\\)\n"));
}

// Each field of a run's head, where the provenance does not tell it.
TEST(Compare, EveryFieldOfTheHeadThatGoesInIsCompared) {
  const std::vector<std::pair<std::string, std::function<void(reports::Run&)>>> changes{
      {"level", [](reports::Run& run) { run.level = "standard"; }},
      {"partial", [](reports::Run& run) { run.partial = true; }},
      {"device", [](reports::Run& run) { run.device = "cpu"; }},
      {"master_seed", [](reports::Run& run) { run.master_seed = 7; }},
      {"planted faults", [](reports::Run& run) { run.faults = {"x"}; }},
      {"required: alpha/case0", [](reports::Run& run) { run.suites[0].cases[0].required = false; }},
      {"level: alpha/case0", [](reports::Run& run) { run.suites[0].cases[0].level = "standard"; }},
      {"case alpha/case1", [](reports::Run& run) { run.suites[0].cases.pop_back(); }},
      {"suite alpha", [](reports::Run& run) { run.suites.clear(); }}};
  for (const auto& [name, change_it] : changes) {
    Compared runs;
    change_it(runs[1]);
    const Comparison all = runs();
    std::vector<std::string> found = names(all.configuration);
    for (const std::string& row : names(all.plan)) found.push_back(row);
    EXPECT_THAT(found, ElementsAre(name));
    EXPECT_EQ(all.steps[0].went_in, 1) << name;
  }
}

TEST(Compare, OfTheSameMasterSeedTheSeedsOfCasesAreTheSame) {
  Compared runs;
  runs.at(0).seed = 1;
  runs.at(1).seed = 2;
  EXPECT_THAT(names(runs().plan), ElementsAre("seed: alpha/case0"));
  runs[1].master_seed = 7;
  EXPECT_THAT(names(runs().plan), IsEmpty()) << "another master seed says it";
}

TEST(Compare, ACaseThatRanInOneOnlyStandsInThePlan) {
  Compared runs;
  runs.at(1, 1).id = "alpha/other";
  runs.at(1, 1).status = Status::fail;
  runs.at(1, 1).findings = {sample::finding(Severity::block)};
  const Comparison all = runs();
  EXPECT_THAT(names(all.plan), ElementsAre("case alpha/case1", "case alpha/other"));
  EXPECT_THAT(names(all.outcomes), IsEmpty());
  EXPECT_EQ(all.findings.at(0).steps.at(0).change, FindingRow::Change::first_told) << "nobody had looked before";
  EXPECT_THAT(to_text(all), testing::ContainsRegex("case alpha/other +not planned +planned\n"));
}

}  // namespace
}  // namespace reports
