// Times that were taken while others used the machine: what a user sees of a case that takes them (the suite
// "disturbed" of the fake program, whose machine is made up), and what a worker tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "harness/load_watch.hpp"
#include "harness/tests/support/fake_run.hpp"
#include "harness/worker.hpp"

namespace {

using harness::Json;
using harness::tests::FakeRun;
using harness::tests::read_text;
using reports::Severity;
using reports::Status;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kLoad = "other processes used 1.7 of 2 cores, threads waited 40 % of their time";

struct Seen {
  int exit_code;
  reports::Case result;
};
Seen run(FakeRun& fake, const std::string& name, std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"--case", "disturbed/" + name, "--out", "run", "--set", "run.calm_s=0"};
  words.insert(words.end(), more.begin(), more.end());
  const int code = fake(words);
  return {code, fake.find("disturbed/" + name)};
}
std::vector<std::string> codes(const reports::Case& c) {
  std::vector<std::string> found;
  for (const reports::Finding& finding : c.findings) found.push_back(finding.code);
  return found;
}

TEST(BusyMachine, TheSecondAttemptOnACalmMachineCounts) {
  FakeRun fake;
  const auto [exit_code, result] = run(fake, "then_fast");
  EXPECT_EQ(exit_code, 0) << fake.err();
  EXPECT_EQ(result.status, Status::pass);
  EXPECT_TRUE(result.findings.empty());
  ASSERT_EQ(result.checks.size(), 1U) << "the first attempt's does not count";
  EXPECT_EQ(result.checks[0].measured, 900);
  EXPECT_FALSE(result.facts.at("load").at("busy").get<bool>());
  const Json& first = result.facts.at("first_attempt").at("withheld").at(0);
  EXPECT_EQ(first.at("code"), "FAKE-004");
  EXPECT_EQ(first.at("measured"), 100);
  EXPECT_EQ(first.at("load"), kLoad);
  EXPECT_THAT(fake.err(), HasSubstr("once more  disturbed/then_fast: FAKE-004 speed is 100"));
  ASSERT_EQ(fake.events("retry").size(), 1U);
  EXPECT_THAT(fake.events("retry")[0].at("reason").get<std::string>(), AllOf(HasSubstr("FAKE-004"), HasSubstr(kLoad)));
}

TEST(BusyMachine, WhatIsSlowOnACalmMachineIsTold) {
  for (const char* name : {"then_slow", "calm_and_slow"}) {
    FakeRun fake;
    const auto [exit_code, result] = run(fake, name);
    EXPECT_EQ(exit_code, 7) << name;
    EXPECT_EQ(result.status, Status::fail) << name;
    EXPECT_THAT(codes(result), ElementsAre("FAKE-004")) << name;
    ASSERT_EQ(result.checks.size(), 1U) << name;
    EXPECT_FALSE(result.checks[0].pass) << name;
  }
}

TEST(BusyMachine, TimesThatAreDisturbedTwiceAccuseNobody) {
  FakeRun fake;
  const auto [exit_code, result] = run(fake, "still_disturbed");
  EXPECT_EQ(exit_code, 8);
  EXPECT_EQ(result.status, Status::inconclusive);
  EXPECT_EQ(result.reason_code, "machine_busy");
  EXPECT_THAT(result.reason, AllOf(HasSubstr("FAKE-004 speed is 100 token/s, needed is at least 300"), HasSubstr(kLoad),
                                   HasSubstr("repeat it")));
  EXPECT_TRUE(result.findings.empty());
  EXPECT_TRUE(result.checks.empty()) << "no failed check that no finding explains";
  EXPECT_EQ(result.facts.at("withheld").at(0).at("bound"), 300);
  EXPECT_THAT(fake.out(), testing::EndsWith("summary: 0 passed, 0 failed, 0 skipped, 1 inconclusive\n"));
  EXPECT_THAT(read_text(fake.run_folder() / "report.md"), HasSubstr("other processes used 1.7 of 2 cores"));
  EXPECT_THAT(read_text(fake.run_folder() / "report.html"), HasSubstr("other processes used 1.7 of 2 cores"));
}

TEST(BusyMachine, ARateThatSufficesUnderLoadIsALowerBound) {
  FakeRun fake;
  const auto [exit_code, result] = run(fake, "fast_all_the_same");
  EXPECT_EQ(exit_code, 0) << "a warning";
  EXPECT_EQ(result.status, Status::pass);
  ASSERT_THAT(codes(result), ElementsAre("NSA-X012"));
  EXPECT_EQ(result.findings[0].severity, Severity::warn);
  EXPECT_THAT(result.findings[0].message, AllOf(HasSubstr(kLoad), HasSubstr("lower bounds")));
  EXPECT_TRUE(result.facts.at("load").at("busy").get<bool>());
  EXPECT_TRUE(fake.events("retry").empty());
}

TEST(BusyMachine, ACalmMachineGivesNoWarning) {
  FakeRun fake;
  const auto [exit_code, result] = run(fake, "calm");
  EXPECT_EQ(exit_code, 0);
  EXPECT_TRUE(result.findings.empty());
  EXPECT_FALSE(result.facts.at("load").at("busy").get<bool>());
}

TEST(BusyMachine, WhatDoesNotRestOnTimesIsToldAsAlways) {
  FakeRun fake;
  const auto [exit_code, result] = run(fake, "not_about_times");
  EXPECT_EQ(exit_code, 1);
  EXPECT_EQ(result.status, Status::fail);
  EXPECT_THAT(codes(result), ElementsAre("FAKE-001"));
  EXPECT_FALSE(result.facts.contains("load")) << "nobody asks";
}

TEST(BusyMachine, AGateThatIsOnlyReportedIsReportedWithTheLoadBesideIt) {
  FakeRun fake;
  const auto [exit_code, result] = run(fake, "still_disturbed", {"--gates", "report"});
  EXPECT_EQ(exit_code, 0);
  EXPECT_THAT(codes(result), ElementsAre("FAKE-004", "NSA-X012"));
  EXPECT_EQ(result.findings[0].severity, Severity::warn);
}

TEST(BusyMachine, InThisProcessToo) {
  FakeRun fake;
  EXPECT_EQ(run(fake, "then_fast", {"--isolation", "none"}).exit_code, 0);
  FakeRun other;
  EXPECT_EQ(run(other, "still_disturbed", {"--isolation", "none"}).exit_code, 8);
}

// A second attempt has the whole time limit again, and a machine that stays busy is waited for so long and no longer.
TEST(BusyMachine, WaitingForACalmMachineIsNoHang) {
  FakeRun fake;
  EXPECT_EQ(fake({"--case", "disturbed/still_disturbed", "--out", "run", "--set", "run.calm_s=3", "--hang", "1",
                  "--timeout", "2"}),
            8);
  const Json phases = fake.events("phase");
  ASSERT_EQ(phases.size(), 1U);
  EXPECT_EQ(phases[0].at("name"), "waiting for a calm machine");
}

// -- time limits

// With FAKE_CROWD=`waiting`, the part of each second in which the case waits for a CPU that others have; "": calm.
Seen at_a_limit(FakeRun& fake, const std::string& name, const char* waiting, std::vector<std::string> more) {
  if (*waiting != '\0') setenv("FAKE_CROWD", waiting, 1);
  std::vector<std::string> words = {"--case", "crowded/" + name, "--out", "run"};
  words.insert(words.end(), more.begin(), more.end());
  const int code = fake(words);
  unsetenv("FAKE_CROWD");
  return {code, fake.find("crowded/" + name)};
}
const std::vector<std::string> kShort = {"--timeout", "0.3", "--hang", "2"};

TEST(BusyMachine, ACaseThatOthersKeepFromTheCpusHasMoreTimeAndSaysSo) {
  FakeRun calm;
  const auto [calm_code, accused] = at_a_limit(calm, "ends_late", "", kShort);
  EXPECT_EQ(calm_code, 6);
  EXPECT_THAT(codes(accused), ElementsAre("NSA-X006"));
  EXPECT_FALSE(accused.facts.contains("more_time"));
  FakeRun busy;
  const auto [exit_code, result] = at_a_limit(busy, "ends_late", "0.75", kShort);
  EXPECT_EQ(exit_code, 0) << busy.err();
  EXPECT_EQ(result.status, Status::pass);
  EXPECT_GE(result.facts.at("more_time").at("after_s").get<double>(), 0.3);
  EXPECT_THAT(result.facts.at("more_time").at("load").at("in_words").get<std::string>(),
              HasSubstr("threads waited 75 % of their time"));
}

TEST(BusyMachine, WhatDoesNotEndInTheTimeThatItHadAloneIsAccused) {
  FakeRun fake;
  const auto [exit_code, result] = at_a_limit(fake, "never_ends", "0.5", kShort);
  EXPECT_EQ(exit_code, 6);
  ASSERT_THAT(codes(result), ElementsAre("NSA-X006"));
  EXPECT_GE(result.duration_s, 0.6) << "twice as long as alone";
  EXPECT_TRUE(result.findings[0].evidence.at("load").at("busy").get<bool>());
}

TEST(BusyMachine, WhatHadTooLittleOfTheCpusToTheEndAccusesNobody) {
  FakeRun fake;
  const auto [exit_code, result] = at_a_limit(fake, "never_ends", "0.95", {"--timeout", "0.2", "--hang", "2"});
  EXPECT_EQ(exit_code, 8);
  EXPECT_EQ(result.status, Status::inconclusive);
  EXPECT_EQ(result.reason_code, "machine_busy");
  EXPECT_GE(result.duration_s, 1.6) << "eight times the limit";
  EXPECT_TRUE(result.findings.empty());
  EXPECT_THAT(result.reason, AllOf(HasSubstr("still running at its absolute limit, 8 times the usual"),
                                   HasSubstr("in phase 'chatting'"), HasSubstr("threads waited 95 % of their time"),
                                   HasSubstr("repeat it on a calm machine")));
  EXPECT_THAT(result.facts.at("given_up").at("stacks").dump(), HasSubstr("nanosleep"));
}

// Silent and busy, as a kernel that is compiled: the time until that is a hang is longer too. An idle one is a hang.
TEST(BusyMachine, SilenceIsJudgedLikewise) {
  const std::vector<std::string> limits = {"--timeout", "60", "--hang", "0.5"};
  FakeRun calm, busy, idle;
  EXPECT_THAT(codes(at_a_limit(calm, "computes_for_long", "", limits).result), ElementsAre("NSA-X002"));
  EXPECT_EQ(at_a_limit(busy, "computes_for_long", "0.75", limits).exit_code, 0) << busy.err();
  const auto [exit_code, result] = at_a_limit(idle, "falls_asleep", "0.95", {"--timeout", "0.3", "--hang", "0.5"});
  EXPECT_EQ(exit_code, 6);
  ASSERT_THAT(codes(result), ElementsAre("NSA-X002"));
  EXPECT_THAT(result.findings[0].message, HasSubstr("no progress and no CPU time"));
}

// -- what a worker tells

class Disturbed : public testing::Test {
 protected:
  Disturbed() {
    program.codes = {{"TIMED", "t", "performance", Severity::degrade, "c", "n", true},
                     {"MILD", "t", "performance", Severity::warn, "c", "n", true},
                     {"OTHER", "t", "numerics", Severity::block, "c", "n"}};
    program.load = [this] { return [this] { return load; }; };
    busy();
  }
  void busy() {
    load.known = true;
    load.cores = 2;
    load.own_cores = 0.5;
    load.others_cores = 1.5;
  }
  std::vector<Json> run(std::function<void(harness::Context&)> work) {
    harness::Case c;
    c.name = "a";
    c.run = std::move(work);
    program.suites = {{"s", "p", {}, [c](const harness::Settings&) { return std::vector{c}; }}};
    harness::WorkOrder order;
    order.suite = "s";
    order.cases = {"s/a"};
    harness::Settings settings(harness::all_setting_specs(program));
    settings.set("run.calm_s", "0", "test");
    std::vector<Json> events;
    harness::run_cases(program, settings, order, [&](const Json& event) { events.push_back(event); });
    return events;
  }
  static std::vector<std::string> told(const std::vector<Json>& events) {
    std::vector<std::string> found;
    for (const Json& event : events) {
      const std::string kind = event.at("event");
      found.push_back(kind == "finding" ? event.at("code") : kind == "fact" ? event.at("key") : event.at("event"));
    }
    return found;
  }
  harness::Program program;
  base::Load load;
};

TEST_F(Disturbed, ARealFaultIsToldAtOnceAndTheTimeBesideItIsAFact) {
  const auto events = run([](harness::Context& context) {
    context.expect_at_least("speed", 1, 2, "tok/s", "TIMED");
    context.expect("right", false, "is wrong", "OTHER");
  });
  EXPECT_THAT(told(events), ElementsAre("case_begin", "check", "OTHER", "withheld", "load", "case_end"));
  EXPECT_EQ(events[1].at("name"), "right");
}

TEST_F(Disturbed, ACaseThatThrowsOrDecidesForItselfIsNotRepeated) {
  const auto slow = [](harness::Context& context) { context.expect_at_least("speed", 1, 2, "tok/s", "TIMED"); };
  const auto thrown = run([&](harness::Context& context) {
    slow(context);
    throw std::runtime_error("broken");
  });
  EXPECT_THAT(told(thrown), ElementsAre("case_begin", "NSA-X004", "withheld", "load", "case_end"));
  EXPECT_EQ(thrown.back().at("status"), "error");
  const auto skipped = run([&](harness::Context& context) {
    slow(context);
    context.skip("unsupported", "cannot");
  });
  EXPECT_THAT(told(skipped), ElementsAre("case_begin", "withheld", "load", "case_end"));
  EXPECT_EQ(skipped.back().at("status"), "skip");
}

TEST_F(Disturbed, AWarningAndAFindingWithoutAComparisonAreTold) {
  const auto events = run([](harness::Context& context) {
    context.expect_at_least("scatter", 1, 2, "%", "MILD");
    context.finding("TIMED", "training stopped");
  });
  EXPECT_THAT(told(events), ElementsAre("case_begin", "check", "MILD", "TIMED", "load", "case_end"));
}

TEST_F(Disturbed, AnyMetricInAUnitOfTimeIsATime) {
  const auto warned = [&](const char* unit) {
    const auto events = run([unit](harness::Context& context) { context.metric("m", 1, unit); });
    const auto words = told(events);
    return std::find(words.begin(), words.end(), "NSA-X012") != words.end();
  };
  for (const char* unit : {"s", "ms", "us", "ns", "tok/s"}) EXPECT_TRUE(warned(unit)) << unit;
  for (const char* unit : {"", "1", "byte", "%", "ops"}) EXPECT_FALSE(warned(unit)) << unit;
}

TEST_F(Disturbed, AnUnknownLoadExcusesNothingAndIsTold) {
  load = {};
  const auto events = run([](harness::Context& context) { context.expect_at_least("speed", 1, 2, "tok/s", "TIMED"); });
  EXPECT_THAT(told(events), ElementsAre("case_begin", "check", "TIMED", "load", "case_end"));
  EXPECT_EQ(events[3].at("value"), Json({{"known", false}, {"why_unknown", "not measured"}}));
}

TEST_F(Disturbed, ASickProcessMakesNoSecondAttempt) {
  program.health = [] { return "CUDA error"; };
  const auto events = run([](harness::Context& context) { context.expect_at_least("speed", 1, 2, "tok/s", "TIMED"); });
  EXPECT_THAT(told(events), ElementsAre("case_begin", "NSA-X008", "case_end"));
}

TEST_F(Disturbed, TheCaseCanAskAndHearsOfTheTimeThatWasDisturbed) {
  std::vector<bool> heard;
  (void)run([&](harness::Context& context) {
    load.others_cores = 0;
    heard.push_back(context.load().busy());
    busy();
    context.metric("speed", 1, "tok/s");
    load.others_cores = 0;
    heard.push_back(context.load().busy());
  });
  EXPECT_THAT(heard, ElementsAre(false, true));
}

// A burst at the end of a long case does not show in its average.
TEST(LoadWatch, ThePhaseThatWasDisturbedCounts) {
  int started = 0;
  harness::LoadWatch watch([&started]() -> harness::LoadReader {
    const bool disturbed = ++started == 2;
    return [disturbed] {
      base::Load load;
      load.known = true;
      load.cores = 2;
      load.others_cores = disturbed ? 2 : 0.1;
      return load;
    };
  });
  const auto pause = [] {
    std::this_thread::sleep_for(std::chrono::duration<double>(1.1 * base::LoadMeter::kShortest_s));
  };
  watch.phase();
  EXPECT_EQ(started, 1) << "too short to be measured by itself";
  pause();
  EXPECT_FALSE(watch.look().busy());
  watch.phase();
  EXPECT_EQ(started, 2);
  EXPECT_FALSE(watch.look().busy()) << "too short as yet";
  pause();
  EXPECT_TRUE(watch.look().busy());
}

}  // namespace
