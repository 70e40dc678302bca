#include "reports/compare.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "reports/causes.hpp"
#include "reports/schema.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/tests/support/schema_validator.hpp"

namespace reports {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// What a run on a GPU records; every kind of value that a provider writes.
Json provenance() {
  return Json::parse(R"({
    "program": {"name": "nsa-validate", "version": "0.1.0"},
    "source": {"folder": "/src", "git_sha": "0123abcd", "dirty": false},
    "build": {"build_id": "b1", "source_hash": "b1", "compiler": "g++ 12.2.0", "type": "Release"},
    "host": {"hostname": "node", "kernel": "6.18", "cpu": "A CPU", "cores": 16, "memory_bytes": 1024, "container": "none"},
    "environment": {"OMP_NUM_THREADS": "2"},
    "settings": {"files": [{"path": "ci.yaml", "hash": "f1"}],
                 "values": {"run.seed": {"value": "42", "origin": "default"},
                            "s_sweep.lengths": {"value": "[1, 2]", "origin": "ci.yaml:3"}}},
    "flags": {"set": {"NSA_USE_FA2": "1"}, "effective": {"fa2_all": {"value": "true", "origin": "NSA_USE_FA2"}}},
    "config": {"file": "m.yaml", "hash": "c1", "resolved": {"model.dim": "64"}},
    "selection": {"suites": ["smoke"], "level": "smoke", "cases": [], "exclude": ["a*"], "partial": false,
                  "guards_left_out": [], "fail_fast": false},
    "device": {"cuda_usable": true, "why_not": ""},
    "torch": {"version": "2.11.0", "threads": 2},
    "cuda": {"runtime": "13.0", "driver_supports": "13.0", "driver": "580.1"},
    "gpus": [{"index": 0, "name": "NVIDIA H200", "sm": "9.0", "ecc": true}],
    "what a provider adds one day": {"and": [{"deep": [1, 2]}]}
  })");
}

// Runs "r1", "r2", ... of the same two cases, alpha/case0 and alpha/case1, which pass.
class Compared {
 public:
  explicit Compared(std::size_t runs = 2) {
    for (std::size_t i = 0; i < runs; ++i) {
      runs_.push_back({"out/" + std::to_string(i + 1), sample::run_of({Status::pass, Status::pass})});
      runs_.back().run.id = "r" + std::to_string(i + 1);
      runs_.back().run.provenance = provenance();
    }
  }
  reports::Run& operator[](std::size_t i) { return runs_[i].run; }
  Case& at(std::size_t run, std::size_t c = 0) { return runs_[run].run.suites[0].cases[c]; }
  [[nodiscard]] Comparison operator()() {
    for (NamedRun& named : runs_) find_causes(named.run, {});
    return compare(runs_);
  }
  std::vector<NamedRun> runs_;
};

std::vector<std::string> names(const std::vector<Difference>& rows) {
  std::vector<std::string> all;
  for (const Difference& row : rows) all.push_back(row.name);
  return all;
}

// What comes to be of one metric that has these values in the runs.
Figure::Step change(const Json& before, const Json& after, const Json& fact_before = {}, const Json& fact_after = {}) {
  Compared runs;
  runs.at(0).metrics = {{"speed", before, "tok/s"}, {"kept", 1, "1"}};
  runs.at(1).metrics = {{"speed", after, "tok/s"}, {"kept", 1, "1"}};
  if (!fact_before.is_null()) runs.at(0).facts["speed"] = fact_before;
  if (!fact_after.is_null()) runs.at(1).facts["speed"] = fact_after;
  const Comparison all = runs();
  return all.figures.empty() ? Figure::Step{} : all.figures.at(0).steps.at(0);
}

Json interval(double low, double high, int n = 7) { return {{"low", low}, {"high", high}, {"n", n}}; }

// -- what went in

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

// -- what came out

TEST(Compare, ResultsThatDifferForNoRecordedReasonAreSaidToBeNotRepeatable) {
  Compared runs;
  runs.at(1).status = Status::fail;
  runs.at(1).findings = {sample::finding(Severity::block)};
  runs.at(1, 1).facts["load"] = {{"busy", true}};
  const Comparison all = runs();
  EXPECT_EQ(all.steps[0].went_in, 0);
  EXPECT_EQ(all.steps[0].came_out, 3) << "verdict, finding, outcome";
  EXPECT_EQ(all.steps[0].verdict,
            "Nothing that is recorded of what went in differs, and the results do: they are not repeatable, or it is a "
            "matter of the machine; others were at work on the machine in 1 case of run 2.");
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("verdict +READY +NOT READY\n"),
                                  testing::ContainsRegex("NSA-T001 alpha/case0 +- +block +new .A title.\n"),
                                  testing::ContainsRegex("alpha/case0 +pass +fail\n")));
  runs[1].provenance["cuda"]["driver"] = "590.2";
  EXPECT_EQ(runs().steps[0].verdict, "") << "there may be a reason";
}

TEST(Compare, InputsThatDifferAndResultsThatDoNot) {
  Compared runs;
  runs[1].provenance["cuda"]["driver"] = "590.2";
  runs.at(0).metrics = {{"m", 1, "1"}};
  runs.at(1).metrics = {{"m", 2, "1"}};
  EXPECT_EQ(runs().steps[0].verdict,
            "What went in differs, and nothing of what came out does that can be judged (1 cannot).");
}

// No interval says that a loss has changed; but from the same seed it would be the same.
TEST(Compare, FiguresThatAreNoTimesAndNotTheSameBitForBitAreCounted) {
  Compared runs;
  runs.at(0).metrics = {{"loss", 5.5, "nat"}, {"step", 1, "ms"}, {"to_model", 2, "1"}};
  runs.at(1).metrics = {{"loss", 5.6, "nat"}, {"step", 2, "ms"}, {"to_model", 3, "1"}};
  EXPECT_EQ(runs().steps[0].not_judged, 3);
  EXPECT_EQ(runs().steps[0].inexact, 1) << "neither the time nor the ratio beside it";
  EXPECT_THAT(runs().steps[0].verdict,
              HasSubstr("can be judged (3 cannot); 1 figure that is no time is not the same bit for bit."));
  runs.at(0, 1).metrics = {{"error", 2, ""}};
  runs.at(1, 1).metrics = {{"error", 3, ""}};
  EXPECT_EQ(runs().steps[0].inexact, 2);
  EXPECT_THAT(runs().steps[0].verdict, HasSubstr("2 figures that are no times are"));
  runs[1].provenance["cuda"]["driver"] = "590.2";
  EXPECT_THAT(runs().steps[0].verdict, Not(HasSubstr("bit for bit"))) << "there may be a reason";
}

TEST(Compare, FindingsThatAreNewGoneStillThereAndChanged) {
  Compared runs;
  const auto with = [](const std::string& code, Severity severity, Json evidence) {
    Finding f = sample::finding(severity);
    f.code = code;
    f.evidence = std::move(evidence);
    return f;
  };
  runs.at(0).findings = {with("GONE", Severity::block, {}), with("SAME", Severity::block, {{"x", 1}}),
                         with("PLACE", Severity::block, {{"layer", 1}, {"op", "a"}}),
                         with("SEVERITY", Severity::block, {}), with("EVIDENCE", Severity::block, {{"error", 0.5}})};
  runs.at(1).findings = {with("SAME", Severity::block, {{"x", 1}}),
                         with("PLACE", Severity::block, {{"layer", 2}, {"op", "a"}}),
                         with("SEVERITY", Severity::degrade, {}), with("EVIDENCE", Severity::block, {{"error", 0.7}}),
                         with("NEW", Severity::block, {})};
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).status = Status::fail;
  const Comparison all = runs();
  std::map<std::string, FindingRow::Step> steps;
  for (const FindingRow& row : all.findings) steps[row.code] = row.steps.at(0);
  using Change = FindingRow::Change;
  EXPECT_EQ(steps["NEW"].change, Change::appeared);
  EXPECT_EQ(steps["GONE"].change, Change::gone);
  EXPECT_EQ(steps["SAME"].change, Change::same);
  EXPECT_THAT(steps["SEVERITY"].what, ElementsAre("severity"));
  EXPECT_THAT(steps["PLACE"].what, ElementsAre("place", "evidence"));
  EXPECT_THAT(steps["EVIDENCE"].what, ElementsAre("evidence"));
  EXPECT_EQ(all.steps[0].came_out, 4) << "not the evidence, which nobody can judge";
  EXPECT_EQ(all.steps[0].not_judged, 1);
  const std::string text = to_text(all);
  EXPECT_THAT(text,
              testing::ContainsRegex("SEVERITY alpha/case0 +block +degrade +severity block -> degrade .A title.\n"));
  EXPECT_THAT(text, HasSubstr("another place; evidence: layer 1 -> 2 (A title)\n"));
  EXPECT_THAT(text, HasSubstr("evidence: error 0.5 -> 0.7\n"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("SAME alpha")), HasSubstr("1 finding still there, the same in all runs")));
}

TEST(Compare, OfSeveralFindingsOfACodeEachIsFollowedAtItsPlace) {
  Compared runs;
  const auto at_layer = [](int layer) {
    Finding f = sample::finding(Severity::block);
    f.evidence = {{"layer", layer}};
    return f;
  };
  runs.at(0).findings = {at_layer(1), at_layer(2), at_layer(3)};
  runs.at(1).findings = {at_layer(3), at_layer(1)};
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).status = Status::fail;
  const Comparison all = runs();
  std::vector<FindingRow::Change> changes;
  for (const FindingRow& row : all.findings) changes.push_back(row.steps.at(0).change);
  EXPECT_THAT(changes, ElementsAre(FindingRow::Change::same, FindingRow::Change::gone, FindingRow::Change::same));
}

TEST(Compare, AFindingThatMovesToAnotherCaseHasMoved) {
  Compared runs;
  runs.at(0, 0).findings = runs.at(1, 1).findings = {sample::finding(Severity::warn)};
  const Comparison all = runs();
  ASSERT_EQ(all.findings.size(), 1U);
  EXPECT_THAT(all.findings[0].steps[0].what, ElementsAre("place"));
  EXPECT_THAT(to_text(all), HasSubstr("moved from alpha/case0 (A title)\n"));
}

// A case that crashed, or never ran, does not say that a finding is gone.
TEST(Compare, NobodySaysThatAFindingIsGoneWhoseCaseDidNotGetToItsEnd) {
  for (const Status status : {Status::not_run, Status::crash, Status::hang, Status::blocked, Status::skip,
                              Status::inconclusive, Status::cancelled, Status::error, Status::infra_error}) {
    Compared runs;
    runs.at(0).findings = {sample::finding(Severity::warn)};
    runs.at(1).status = status;
    const Comparison all = runs();
    EXPECT_EQ(all.findings.at(0).by_run.at(1).seen, FindingRow::Seen::no_answer) << to_string(status);
    EXPECT_EQ(all.findings.at(0).steps.at(0).change, FindingRow::Change::no_longer_told);
    EXPECT_THAT(to_text(all), HasSubstr("nobody can tell now (A title)"));
  }
}

TEST(Compare, FindingsOfTheRunItself) {
  Compared runs;
  runs[1].findings = {sample::finding(Severity::degrade, "infrastructure")};
  EXPECT_EQ(runs().findings.at(0).steps.at(0).change, FindingRow::Change::appeared);
  EXPECT_THAT(to_text(runs()), HasSubstr("NSA-T001 the run"));
  runs[0].complete = false;
  EXPECT_EQ(runs().findings.at(0).steps.at(0).change, FindingRow::Change::first_told);
}

TEST(Compare, OutcomesWithTheirReasonsAndChecksWithTheirBounds) {
  Compared runs;
  runs.at(0).status = runs.at(1).status = Status::skip;
  runs.at(0).reason_code = "no_cuda";
  runs.at(1).reason_code = "unsupported";
  runs.at(0, 1).checks = {
      {"holds", true, 1, "<=", 2, "1"}, {"bound", true, 1, "<=", 2, "1"}, {"m", true, 1, "<=", 2, ""}};
  runs.at(1, 1).checks = {
      {"holds", false, 3, "<=", 2, "1"}, {"bound", true, 1, "<=", 9, "1"}, {"m", true, 2, "<=", 2, ""}};
  const Comparison all = runs();
  EXPECT_THAT(names(all.outcomes), ElementsAre("alpha/case0"));
  ASSERT_EQ(all.checks.size(), 2U);
  EXPECT_TRUE(all.checks[0].decides);
  EXPECT_FALSE(all.checks[1].decides);
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("alpha/case0 +skip \\(no_cuda\\) +skip \\(unsupported\\)\n"),
                                  testing::ContainsRegex("holds +holds: <= 2 +fails: <= 2\n"),
                                  testing::ContainsRegex("bound +holds: <= 2 +holds: <= 9\n")));
  EXPECT_EQ(all.steps[0].not_judged, 1) << "the bound";
}

TEST(Compare, WaysThatRanInCasesOfAllRuns) {
  Compared runs;
  const auto route = [](const char* backend, const char* kernel) {
    return Json::array({{{"op", "attend"},
                         {"backend", backend},
                         {"variant", "in_one"},
                         {"why", "w"},
                         {"calls", 2},
                         {"kernel", kernel}}});
  };
  runs.at(0).facts["routes"] = route("cuda", "joint");
  runs.at(1).facts["routes"] = route("cuda", "joint");
  runs.at(1, 1).facts["routes"] = route("sdpa", "");
  runs.at(0, 1).status = Status::skip;
  EXPECT_THAT(names(runs().ways), IsEmpty()) << "a case that ran in one only";
  runs.at(1).facts["routes"] = route("cuda", "parts");
  EXPECT_THAT(names(runs().ways), ElementsAre("attend"));
  EXPECT_THAT(to_text(runs()), testing::ContainsRegex("attend +cuda/in_one \\(joint\\) +cuda/in_one \\(parts\\)\n"));
  for (const Json& odd : {Json(3), Json::array({3}), Json::array({{{"op", 3}}})}) {
    runs.at(1).facts["routes"] = odd;
    EXPECT_NO_THROW((void)runs());
  }
}

TEST(Compare, CausesWithTheirRank) {
  Compared runs;
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).status = Status::fail;
  Finding first = sample::finding(Severity::block), second = sample::finding(Severity::degrade);
  first.code = "NSA-T002";
  runs.at(0).findings = {second};
  runs.at(1).findings = {second, first};
  const Comparison all = runs();
  EXPECT_THAT(names(all.causes), testing::UnorderedElementsAre("NSA-T001", "NSA-T002"));
  EXPECT_THAT(to_text(all), testing::ContainsRegex("NSA-T002 +- +1. \\(block\\) +A title"));
  runs.at(0).findings = {second, first};
  EXPECT_THAT(names(runs().causes), IsEmpty());
}

// -- figures

TEST(Compare, AChangeIsOneOnlyBeyondTheNoiseThatTheReportKnows) {
  using Change = Figure::Change;
  EXPECT_EQ(change(100, 100).change, Change::same);
  EXPECT_EQ(change(100, 120).change, Change::no_interval);
  EXPECT_NEAR(change(100, 120).percent.value(), 20, 1e-9);
  EXPECT_EQ(change(100, 120, interval(90, 110)).change, Change::no_interval) << "of one of them";
  EXPECT_EQ(change(100, 120, interval(90, 110), interval(115, 125)).change, Change::changed);
  EXPECT_EQ(change(100, 120, interval(90, 116), interval(115, 125)).change, Change::within_noise);
  EXPECT_EQ(change(120, 100, interval(115, 125), interval(90, 115)).change, Change::within_noise) << "they touch";
  EXPECT_EQ(change(120, 100, interval(116, 125), interval(90, 115)).change, Change::changed);
}

TEST(Compare, AnIntervalThatIsNoneDoesNotCount) {
  using Change = Figure::Change;
  const Json good = interval(119, 121);
  EXPECT_EQ(change(100, 120, interval(99, 101), good).change, Change::changed);
  EXPECT_EQ(change(100, 120, interval(99, 101, 1), good).change, Change::no_interval) << "one repeat";
  EXPECT_EQ(change(100, 120, interval(101, 99), good).change, Change::no_interval) << "its ends are swapped";
  EXPECT_EQ(change(100, 120, interval(101, 102), good).change, Change::no_interval) << "does not hold its value";
  EXPECT_EQ(change(100, 120, {{"low", "NaN"}, {"high", 101}}, good).change, Change::no_interval);
  EXPECT_EQ(change(100, 120, {{"high", 101}}, good).change, Change::no_interval);
  EXPECT_EQ(change(100, 120, {{"interval", {99, 101}}}, good).change, Change::changed);
  EXPECT_EQ(change(100, 120, {{"interval", {99}}}, good).change, Change::no_interval);
  EXPECT_EQ(change(100, 120, Json::array({99, 100, 101}), good).change, Change::changed) << "the repeats themselves";
  EXPECT_EQ(change(100, 120, Json::array({99, 101}), good).change, Change::no_interval) << "two are no range";
  EXPECT_EQ(change(100, 120, Json::array({99, 100, "x"}), good).change, Change::no_interval);
}

TEST(Compare, EndsBesideAFigureAreItsIntervalAndNoFigures) {
  Compared runs;
  runs.at(0).metrics = {{"step", 100, "s"}, {"step_low", 99, "s"}, {"step_high", 101, "s"}};
  runs.at(1).metrics = {{"step", 120, "s"}, {"step_low", 119, "s"}, {"step_high", 121, "s"}};
  EXPECT_EQ(runs().figures.size(), 1U);
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::changed);
  runs.at(1).metrics[1].unit = "ms";
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::no_interval);
}

TEST(Compare, WhatABuildDiffersByFromItselfIsNoise) {
  Compared runs;
  for (std::size_t i = 0; i < 2; ++i) runs.at(i).facts["noise_floor"] = {{"floor_percent", 5}};
  const auto set = [&](double after) {
    runs.at(0).metrics = {{"speed", 100, "tok/s"}};
    runs.at(1).metrics = {{"speed", after, "tok/s"}};
    runs.at(0).facts["speed"] = interval(99.9, 100.1);
    runs.at(1).facts["speed"] = interval(after - 0.1, after + 0.1);
    return runs().figures.at(0).steps.at(0).change;
  };
  EXPECT_EQ(set(104), Figure::Change::within_noise);
  EXPECT_EQ(set(106), Figure::Change::changed);
  EXPECT_EQ(set(96), Figure::Change::within_noise);
  EXPECT_EQ(set(94), Figure::Change::changed);
  runs.at(1).facts["load"] = {{"busy", true}};
  EXPECT_EQ(set(94), Figure::Change::machine_busy) << "a busy machine accuses nobody";
  EXPECT_EQ(runs().steps[0].came_out, 0);
}

TEST(Compare, WhatIsNoNumberIsNeverEqualToOne) {
  using Change = Figure::Change;
  const std::vector<Json> no_numbers{number(kNaN), number(INFINITY), number(-INFINITY)};
  for (const Json& word : no_numbers) {
    EXPECT_EQ(change(1, word).change, Change::not_finite) << word;
    EXPECT_EQ(change(word, 1).change, Change::not_finite) << word;
    EXPECT_EQ(change(1, word, interval(0, 2), interval(0, 2)).change, Change::not_finite) << word;
    EXPECT_FALSE(change(1, word).percent);
    for (const Json& other : no_numbers)
      EXPECT_EQ(change(word, other).change, word == other ? Change::same : Change::not_finite) << word << other;
  }
  Compared runs;
  runs.at(0).metrics = {{"loss", 1.5, "nat"}, {"never", number(kNaN), "1"}};
  runs.at(1).metrics = {{"loss", number(kNaN), "nat"}, {"never", number(kNaN), "1"}};
  const Comparison all = runs();
  EXPECT_EQ(all.never_finite, 1);
  EXPECT_EQ(all.equal_figures, 0);
  EXPECT_EQ(all.steps[0].came_out, 1);
  EXPECT_THAT(to_text(all), AllOf(testing::ContainsRegex("loss +1.5 nat +NaN nat +not a finite number\n"),
                                  HasSubstr("1 figure NaN or infinite in all runs")));
}

TEST(Compare, AFigureThatIsMissingIsToldWhereItsCaseRan) {
  Compared runs;
  runs.at(0).metrics = {{"m", 1, "s"}};
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::missing);
  EXPECT_THAT(to_text(runs()), testing::ContainsRegex("m +1 s +missing +missing now\n"));
  runs.at(1).status = Status::skip;
  EXPECT_THAT(runs().figures, IsEmpty()) << "its outcome says it";
  EXPECT_EQ(runs().equal_figures, 0);
  runs.at(1).status = Status::pass;
  runs.at(1).metrics = {{"m", 1, "ms"}};
  EXPECT_EQ(runs().figures.at(0).steps.at(0).change, Figure::Change::other_unit);
}

TEST(Compare, FiguresOfOneNameAreComparedInTheirOrder) {
  Compared runs;
  runs.at(0).metrics = {{"m", 0, "1"}, {"m", 5, "1"}};
  runs.at(1).metrics = {{"m", 0, "1"}, {"m", 6, "1"}};
  const Comparison all = runs();
  ASSERT_EQ(all.figures.size(), 1U);
  EXPECT_EQ(all.figures[0].by_run[0].value.value(), 5);
  EXPECT_EQ(all.equal_figures, 1);
}

TEST(Compare, FromZeroThereIsNoPercentage) {
  EXPECT_EQ(change(0, 1).change, Figure::Change::no_interval);
  EXPECT_FALSE(change(0, 1).percent);
  EXPECT_NEAR(change(-2, -1).percent.value(), 50, 1e-9) << "of the size of what was before";
}

// -- three runs, unfinished ones, and what cannot be compared

TEST(Compare, OfThreeRunsEachIsComparedWithTheOneBeforeItAndARowShowsAll) {
  Compared runs(3);
  runs[1].provenance["cuda"]["driver"] = "590.2";
  runs[2].provenance["cuda"]["driver"] = "590.2";
  for (std::size_t i = 0; i < 3; ++i) {
    const double value = i == 2 ? 200 : 100;
    runs.at(i).metrics = {{"speed", value, "tok/s"}};
    runs.at(i).facts["speed"] = interval(value - 1, value + 1);
  }
  runs.at(1).status = Status::fail;
  runs.at(1).findings = {sample::finding(Severity::block)};
  const Comparison all = runs();
  ASSERT_EQ(all.steps.size(), 2U);
  EXPECT_EQ(all.steps[0].went_in, 1);
  EXPECT_EQ(all.steps[0].verdict, "");
  EXPECT_EQ(all.steps[1].went_in, 0);
  EXPECT_THAT(all.steps[1].verdict, HasSubstr("they are not repeatable"));
  EXPECT_EQ(all.findings.at(0).steps[0].change, FindingRow::Change::appeared);
  EXPECT_EQ(all.findings.at(0).steps[1].change, FindingRow::Change::gone);
  const std::string text = to_text(all);
  EXPECT_THAT(text, testing::ContainsRegex("cuda.driver +580.1 +590.2 +590.2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("NSA-T001 alpha/case0 +- +block +- +2: new; 3: gone .A title.\n"));
  EXPECT_THAT(text, testing::ContainsRegex("speed +100 tok/s +100 tok/s +200 tok/s +3: .100.0 %, beyond the noise\n"));
  EXPECT_THAT(text, HasSubstr("\n2 -> 3: Nothing that is recorded of what went in differs"));
  EXPECT_THAT(text, HasSubstr("\ncompare: 1 -> 2: 1 difference in what went in"));
}

TEST(Compare, AFindingThatComesBackIsTheSameRow) {
  Compared runs(3);
  runs.at(0).findings = runs.at(2).findings = {sample::finding(Severity::warn)};
  const Comparison all = runs();
  ASSERT_EQ(all.findings.size(), 1U);
  EXPECT_THAT(to_text(all), testing::ContainsRegex("warn +- +warn +2: gone; 3: new .A title.\n"));
}

TEST(Compare, AnUnfinishedRunIsComparedAsFarAsItGoesAndCalledSo) {
  Compared runs;
  runs[1].complete = false;
  runs.at(1, 1).status = Status::not_run;
  runs.at(1, 1).reason_code = "not_reached";
  const Comparison all = runs();
  EXPECT_EQ(all.steps[0].came_out, 0) << "what was not reached, and the verdict of an incomplete run, are no results";
  EXPECT_EQ(all.steps[0].in_both, 1);
  EXPECT_THAT(all.steps[0].verdict, testing::EndsWith("; run 2 is unfinished."));
  EXPECT_THAT(to_text(all),
              AllOf(HasSubstr("unfinished: its journal has no end; it is compared as far as it goes, 1 of 2 cases\n"),
                    testing::ContainsRegex("alpha/case1 +pass +not_run \\(not_reached\\)\n"),
                    testing::ContainsRegex("verdict +READY +CONDITIONAL\n")));
  runs.at(1, 0).status = Status::crash;
  EXPECT_EQ(runs().steps[0].came_out, 1) << "but a case that ran to another end is one";
  runs[1].complete = true;
  runs[1].interruption = ExitCode::interrupted;
  EXPECT_THAT(to_text(runs()), HasSubstr("unfinished: interrupted with exit code 130;"));
}

// Nothing to compare must not look like no difference.
TEST(Compare, WhereNoCaseRanInBothItSaysThatNothingWasCompared) {
  Compared runs;
  for (std::size_t i = 0; i < 2; ++i) runs.at(1, i).status = Status::skip;
  EXPECT_EQ(runs().steps[0].in_both, 0);
  EXPECT_EQ(runs().steps[0].verdict, "No case ran in both: nothing of what came out can be compared.");
  runs[1].suites[0].name = "beta";
  for (std::size_t i = 0; i < 2; ++i) {
    runs.at(1, i).suite = "beta";
    runs.at(1, i).id = "beta/case" + std::to_string(i);
  }
  EXPECT_THAT(names(runs().plan), ElementsAre("suite alpha", "suite beta"));
  EXPECT_THAT(to_text(runs()), AllOf(HasSubstr("No case ran in both"), HasSubstr("0 cases ran in both")));
}

TEST(Compare, RefusesFewerThanTwoRunsAndTheSameRunTwice) {
  const auto refusal = [](const std::vector<NamedRun>& runs) {
    try {
      (void)compare(runs);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("was accepted");
  };
  Compared runs(3);
  EXPECT_THAT(refusal({}), HasSubstr("no run"));
  EXPECT_THAT(refusal({runs.runs_[0]}), HasSubstr("out/1: one run only"));
  runs[2].id = "r1";
  EXPECT_THAT(refusal(runs.runs_), HasSubstr("out/1 and out/3 are the same run, r1"));
}

// -- the writers

TEST(Compare, TheJsonIsAsTheSchemaSays) {
  const Json schema = Json::parse(comparison_schema());
  Compared many(3);
  many.runs_.push_back({"mixed", sample::mixed()});
  many.at(1).metrics = {{"m", number(kNaN), "1"}};
  many.at(0).metrics = {{"m", 1, "1"}};
  many.at(0).facts["m"] = interval(0, 2);
  many[2].complete = false;
  many[1].interruption = ExitCode::terminated;
  many.at(0).checks = {{"c", true, 1, "<=", 2, ""}};
  many.at(1).checks = {{"c", false, number(kNaN), "<=", 2, ""}};
  for (Compared runs : {Compared(), many}) {
    const Json json = Json::parse(dump(to_json(runs())));
    EXPECT_THAT(schema::violations(schema, json), IsEmpty());
    for (const char* where : {"/runs", "/steps", "/went_in", "/came_out/findings", "/schema", "/runs/0/complete"}) {
      Json bad = json;
      bad[Json::json_pointer(where)] = 3;
      EXPECT_THAT(schema::violations(schema, bad), Not(IsEmpty())) << where;
    }
  }
}

TEST(Compare, TheListsOfWordsAreThoseOfTheSchema) {
  const Json schema = Json::parse(comparison_schema());
  Json seen = Json::array(), finding = Json::array(), figure = Json::array();
  for (int i = 0; i <= static_cast<int>(FindingRow::Seen::no_answer); ++i)
    seen.push_back(to_string(static_cast<FindingRow::Seen>(i)));
  for (int i = 0; i <= static_cast<int>(FindingRow::Change::no_longer_told); ++i)
    finding.push_back(to_string(static_cast<FindingRow::Change>(i)));
  for (int i = 0; i <= static_cast<int>(Figure::Change::not_run); ++i)
    figure.push_back(to_string(static_cast<Figure::Change>(i)));
  const Json& definitions = schema["definitions"];
  EXPECT_EQ(definitions["finding"]["properties"]["runs"]["items"]["properties"]["seen"]["enum"], seen);
  EXPECT_EQ(definitions["finding"]["properties"]["steps"]["items"]["properties"]["change"]["enum"], finding);
  EXPECT_EQ(definitions["figure"]["properties"]["steps"]["items"]["properties"]["change"]["enum"], figure);
}

TEST(Compare, TheLastLineOfTheTextSaysHowMuchIsDifferent) {
  const std::string text = to_text(Compared()());
  EXPECT_THAT(text,
              testing::EndsWith(
                  "\ncompare: no difference in what went in, no difference in what came out; 2 cases ran in both\n"));
}

TEST(Compare, TextOfARunBringsNoEscapesToTheTerminal) {
  Compared runs;
  runs.runs_[0].name = "out\x1b[2J";
  runs[1].provenance["cuda"]["driver"] = "x\x1b[31m\nsummary: 9 passed";
  runs.at(1).metrics = {{"m\x1b\n", 1, "\x1b"}};
  runs.at(1).findings = {sample::finding(Severity::warn)};
  runs.at(1).findings[0].code = "C\x1b\n";
  EXPECT_THAT(to_text(runs()), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\nsummary"))));
}

TEST(Compare, ManyRowsAreCutAndTheRestIsCounted) {
  Compared runs;
  for (int i = 0; i < 40; ++i) {
    runs.at(0).metrics.push_back({"m" + std::to_string(i), 1, "1"});
    runs.at(1).metrics.push_back({"m" + std::to_string(i), 2 + i, "1"});
  }
  const std::string text = to_text(runs());
  EXPECT_THAT(text, AllOf(HasSubstr("and 16 more rows; --json has all"), HasSubstr("m39"), Not(HasSubstr(" m1 "))))
      << "the largest change first";
  EXPECT_EQ(to_json(runs())["came_out"]["figures"].size(), 40U);
}

}  // namespace
}  // namespace reports
