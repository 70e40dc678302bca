// What runs have left against what must be said: each kind of look says yes and says no, and what cannot be known here
// is neither.
#include "suites/scenario/judge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "suites/scenario/text.hpp"

namespace suites::scenario {
namespace judging {

using reports::Status;
using testing::HasSubstr;
using Kind = Look::Kind;

reports::Finding finding(const std::string& code, const std::string& message) {
  reports::Finding one;
  one.code = code;
  one.severity = reports::Severity::block;
  one.category = "numerics";
  one.message = message;
  one.evidence = {{"op", "attend_window"}};
  return one;
}

reports::Case a_case(const std::string& name, Status status) {
  reports::Case one;
  one.id = "parity/" + name;
  one.suite = "parity";
  one.name = name;
  one.status = status;
  one.facts = Json::object();
  return one;
}

// parity/leaks fails, parity/sound passes, parity/device was skipped, parity/unsure cannot tell.
reports::Run a_run(const std::string& id) {
  reports::Run run;
  run.id = id;
  run.level = "smoke";
  run.device = "cpu";
  run.complete = true;
  run.faults = Json::array({"leak"});
  run.provenance = {{"flags", {{"set", {{"NSA_USE_FA2", "1"}}}}},
                    {"config", {{"resolved", {{"train.batch_size", "2"}}}}}};
  reports::Case leaks = a_case("leaks", Status::fail), sound = a_case("sound", Status::pass),
                device = a_case("device", Status::skip), unsure = a_case("unsure", Status::inconclusive);
  leaks.findings = {finding("NSA-N005", "row 7 moved")};
  sound.metrics = {{"rate", 12.5, "tok/s"}, {"bad", "NaN", "1"}};
  sound.facts = {{"table", {{"std", 0.25}, {"lengths", {512, 2048}}}}};
  device.reason_code = "no_cuda";
  device.reason = "needs a GPU";
  device.required = false;
  unsure.reason = "the machine is busy";
  unsure.metrics = {{"rate", 3.0, "tok/s"}};
  run.suites = {{"parity", "p", {}, {leaks, sound, device, unsure}, 0}};
  reports::LikelyCause first, second;
  first.id = "future-leak";
  first.what = "attend_window reads tokens after its own";
  first.codes = {"NSA-N005"};
  second.id = "NSA-E005";
  second.what = "A .HALT file";
  second.codes = {"NSA-E005"};
  run.causes = {first, second};
  return run;
}

Scenario a_scenario() {
  Scenario day;
  day.name = "day";
  day.attempts.resize(2);
  day.attempts[0].name = "v1";
  day.attempts[1].name = "v2";
  day.attempts[1].flags = {{"NSA_USE_FA2", "1"}};
  day.attempts[1].inject = {"leak"};
  day.judged = "v2";
  day.verdict = "NOT READY";
  day.exit_code = 1;
  day.causes = {{"the future", {"future-leak"}, {"attend_window"}, ""}, {"HALT", {"NSA-E005"}, {}, ""}};
  return day;
}

std::vector<Ran> ran() {
  reports::Run before = a_run("r1");
  before.suites[0].cases[0] = a_case("leaks", Status::pass);
  before.causes.clear();
  before.provenance["flags"]["set"] = {{"NSA_USE_FA2", "0"}};
  return {{"v1", {"v1", before}, 8}, {"v2", {"v2", a_run("r2")}, 1}};
}

Look look(Kind kind, const std::string& where = "*") {
  Look one;
  one.kind = kind;
  one.where = where;
  return one;
}
Answer ask(const Look& one) { return answer(one, a_scenario(), ran()); }
State state(const Look& one) { return ask(one).state; }

TEST(Judge, AFindingIsOneOfItsCodeInItsPlaceThatNamesWhatItMust) {
  Look one = look(Kind::finding, "parity/leaks");
  one.code = "NSA-N005";
  one.wanted.names = {"row 7", "attend_window"};
  EXPECT_EQ(ask(one).seen, "NSA-N005 parity/leaks: row 7 moved");
  one.wanted.names = {"row 8"};
  EXPECT_EQ(state(one), State::missing);
  EXPECT_THAT(ask(one).seen, HasSubstr("it must name row 8"));
  one.where = "parity/sound";
  EXPECT_EQ(state(one), State::missing) << "in another place";
  one.where = "parity/device";
  EXPECT_EQ(state(one), State::not_shown) << "nobody could look";
  one.where = "parity/unsure";
  EXPECT_THAT(ask(one).seen, HasSubstr("cannot tell: the machine is busy"));
}

TEST(Judge, CleanIsWhatRanWithoutIt) {
  EXPECT_EQ(state(look(Kind::clean, "parity/sound")), State::ok);
  EXPECT_EQ(state(look(Kind::clean, "parity/leaks")), State::missing);
  EXPECT_EQ(state(look(Kind::clean, "parity/device")), State::not_shown);
  EXPECT_EQ(state(look(Kind::clean, "parity/none")), State::missing) << "what does not exist is not clean";
  Look other = look(Kind::clean, "parity/leaks");
  other.code = "NSA-E005";
  EXPECT_EQ(state(other), State::ok) << "it ran to its end, and this is not what it found";
  std::vector<Ran> broken = ran();
  broken[1].run.run.suites[0].cases[0].status = Status::crash;
  EXPECT_EQ(answer(other, a_scenario(), broken).state, State::missing) << "it broke off before it could tell";
}

TEST(Judge, AnOutcomeIsThatOfEveryCaseThatRan) {
  Look one = look(Kind::outcome, "parity/s*");
  one.word = "pass";
  EXPECT_EQ(state(one), State::ok);
  one.where = "parity/?eaks";
  EXPECT_EQ(state(one), State::missing);
  one.where = "parity/device";
  EXPECT_EQ(state(one), State::not_shown);
}

TEST(Judge, AFigureMustLieWithinItsBoundsAndNanLiesNowhere) {
  Look one = look(Kind::metric, "parity/sound");
  one.key = "rate";
  one.wanted.at_least = 12;
  EXPECT_EQ(state(one), State::ok);
  one.wanted.at_most = 12.4;
  EXPECT_EQ(state(one), State::missing);
  one.key = "bad";
  one.wanted = {};
  one.wanted.at_most = std::numeric_limits<double>::infinity();
  EXPECT_EQ(state(one), State::missing) << "NaN";
  one.key = "none";
  EXPECT_EQ(state(one), State::missing);
  one.key = "rate";
  one.where = "parity/unsure";
  one.wanted = {};
  one.wanted.at_least = 12;
  EXPECT_THAT(ask(one).seen, HasSubstr("cannot tell: the machine is busy")) << "its figure is 3";
}

TEST(Judge, FactsAndTheRecordAreReadAtTheirPlace) {
  Look one = look(Kind::told, "parity/sound");
  one.key = "table";
  one.at = "/lengths";
  one.wanted.is = Json{512, 2048};
  EXPECT_EQ(state(one), State::ok);
  one.wanted.is = Json{512};
  EXPECT_EQ(state(one), State::missing);
  one.at = "/none";
  EXPECT_EQ(state(one), State::missing);
  Look record = look(Kind::record);
  record.at = "/config/resolved/train.batch_size";
  record.wanted.is = "2";
  EXPECT_EQ(state(record), State::ok);
  record.wanted.is = "1";
  EXPECT_EQ(state(record), State::missing);
}

TEST(Judge, ComparisonsAreOfTwoAttempts) {
  Look one = look(Kind::compared);
  one.from = "v1";
  one.attempt = "v2";
  one.code = "NSA-N005";
  one.word = "new";
  EXPECT_EQ(state(one), State::ok);
  one.word = "gone";
  EXPECT_THAT(ask(one).seen, HasSubstr("new; wanted gone"));
  one.code = "NSA-E005";
  EXPECT_THAT(ask(one).seen, HasSubstr("in neither of v1 and v2"));
  Look in = look(Kind::went_in);
  in.from = "v1";
  in.attempt = "v2";
  in.key = "flags.set.NSA_USE_FA2";
  EXPECT_THAT(ask(in).seen, HasSubstr("0 in v1, 1 in v2"));
  in.key = "config.resolved.train.batch_size";
  EXPECT_EQ(state(in), State::missing);
}

TEST(Judge, CausesMustComeInTheirOrder) {
  Scenario day = a_scenario();
  Result result = judge(day, ran(), "cpu");
  EXPECT_EQ(result.causes.at(0).answer.state, State::ok);
  EXPECT_EQ(result.causes.at(1).answer.state, State::ok);
  EXPECT_EQ(result.exit_code, 0);
  std::swap(day.causes[0], day.causes[1]);
  result = judge(day, ran(), "cpu");
  EXPECT_EQ(result.causes.at(0).answer.state, State::ok);
  EXPECT_THAT(result.causes.at(1).answer.seen, HasSubstr("not in this order"));
  EXPECT_EQ(result.exit_code, 1);
  day.causes = {{"the future", {"future-leak"}, {"attend_selected"}, ""}};
  result = judge(day, ran(), "cpu");
  EXPECT_EQ(result.causes.at(0).answer.state, State::missing) << "another place is named";
  EXPECT_EQ(result.besides.size(), 2u);
}

TEST(Judge, ACauseThatACaseCouldNotTellIsNotShown) {
  Scenario day = a_scenario();
  day.causes = {{"slow", {"NSA-P021"}, {}, ""}};
  EXPECT_EQ(judge(day, ran(), "cpu").exit_code, 1);
  std::vector<Ran> all = ran();
  all[1].run.run.suites[0].cases[3].reason = "not judged: NSA-P021 SLOW";
  const Result result = judge(day, all, "cpu");
  EXPECT_EQ(result.causes.at(0).answer.state, State::not_shown);
  EXPECT_EQ(result.exit_code, 8);
}

TEST(Judge, WhatCannotBeShownIsToldAndIsNoPass) {
  Scenario day = a_scenario();
  day.facts = {{"network", "s", "", "no network", {}},
               {"gpu", "s", "a device", "", {look(Kind::clean, "parity/sound")}}};
  Result result = judge(day, ran(), "cpu");
  EXPECT_EQ(result.count(State::not_shown), 2u);
  EXPECT_EQ(result.exit_code, 8);
  EXPECT_EQ(judge(day, ran(), "cuda").facts.at(1).answer.state, State::ok);
  day.facts.push_back({"missing", "s", "", "", {look(Kind::clean, "parity/sound"), look(Kind::clean, "parity/leaks")}});
  EXPECT_EQ(judge(day, ran(), "cpu").exit_code, 1) << "one look that fails is the fact's";
}

TEST(Judge, AnotherVerdictOrExitCodeIsMissing) {
  Scenario day = a_scenario();
  day.verdict = "CONDITIONAL";
  EXPECT_EQ(judge(day, ran(), "cpu").exit_code, 1);
  day = a_scenario();
  day.exit_code = 6;
  EXPECT_EQ(judge(day, ran(), "cpu").exit_code, 1);
}

TEST(Judge, OnAGpuARunMayEndOtherwise) {
  Scenario day = a_scenario();
  day.exit_code_on_gpu = 5;
  EXPECT_EQ(judge(day, ran(), "cpu").verdict.state, State::ok);
  EXPECT_EQ(judge(day, ran(), "cuda").verdict.state, State::missing);
  day.exit_code = 5;
  day.exit_code_on_gpu = 1;
  EXPECT_EQ(judge(day, ran(), "cpu").verdict.state, State::missing);
  EXPECT_EQ(judge(day, ran(), "cuda").verdict.state, State::ok);
}

TEST(Attempt, AFaultForAGpuKeepsItsPlace) {
  const auto planted = [](const std::string& device) {
    Attempt attempt;
    attempt.inject = {"a", "b", "c"};
    attempt.inject_on_gpu = {"b", "d"};
    attempt.plant_on(device);
    return attempt.inject;
  };
  EXPECT_EQ(planted("cpu"), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(planted("cuda"), (std::vector<std::string>{"a", "b", "c", "d"}));
}

TEST(Judge, ABrokenAttemptIsTroubleAndOneThatWasNotRunIsNone) {
  Scenario day = a_scenario();
  day.facts = {{"a", "s", "", "", {look(Kind::clean, "parity/sound")}}};
  std::vector<Ran> all = ran();
  all[1].trouble = "killed";
  Result result = judge(day, all, "cpu");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.count(State::ok), 0u);
  all[1].trouble.clear();
  all[1].not_run = "needs a GPU";
  result = judge(day, all, "cpu");
  EXPECT_EQ(result.exit_code, 8);
  EXPECT_THAT(text_of(day, all, result, ""), HasSubstr("not run: needs a GPU"));
}

TEST(Judge, ARunMustBeTheOneThatWasAskedFor) {
  const Attempt asked = a_scenario().attempts[1];
  const int own = static_cast<int>(reports::assess(a_run("r")).exit_code);
  EXPECT_EQ(not_as_asked(asked, a_run("r"), own, "cpu"), "");
  EXPECT_THAT(not_as_asked(asked, a_run("r"), own, "cuda"), HasSubstr("is on cpu"));
  EXPECT_THAT(not_as_asked(asked, a_run("r"), 0, "cpu"), HasSubstr("its journal says"));
  reports::Run other = a_run("r");
  other.faults = Json::array();
  EXPECT_THAT(not_as_asked(asked, other, own, "cpu"), HasSubstr("planted are []"));
  other = a_run("r");
  other.complete = false;
  EXPECT_NE(not_as_asked(asked, other, own, "cpu"), "");
  Attempt plain = asked;
  plain.flags.clear();
  EXPECT_THAT(not_as_asked(plain, a_run("r"), own, "cpu"), HasSubstr("flags are set"));
}

TEST(Judge, APlaceThatNoAttemptPlansIsAnError) {
  Scenario day = a_scenario();
  day.facts = {{"a", "s", "", "", {look(Kind::clean, "parity/sound")}}};
  EXPECT_NO_THROW(must_be_planned(day, {{}, {"parity/sound"}}, "day.json"));
  EXPECT_THROW(must_be_planned(day, {{"parity/sound"}, {}}, "day.json"), ScenarioError);
}

TEST(Text, EveryFactStandsInTextAndJson) {
  Scenario day = a_scenario();
  day.facts = {{"network", "the text is FineWeb", "", "no network", {}}};
  const Result result = judge(day, ran(), "cpu");
  const std::string text = text_of(day, ran(), result, "compare: nothing\n");
  EXPECT_THAT(text,
              HasSubstr("not shown  network\n             seed: the text is FineWeb\n             here: no network"));
  EXPECT_THAT(text, HasSubstr("scenario day: 3 ok, 0 missing, 1 not shown on cpu; exit code 8\n"));
  const Json json = json_of(day, ran(), result);
  EXPECT_EQ(json["facts"][0]["state"], "not shown");
  EXPECT_EQ(json["exit_code"], 8);
  EXPECT_EQ(json["causes"].size(), 2u);
}

}  // namespace judging
}  // namespace suites::scenario
