#include "reports/view.hpp"
#include "reports/causes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports::view {
namespace {

using sample::finding;
using sample::run_of;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(Words, Durations) {
  EXPECT_EQ(duration(0), "0.00 s");
  EXPECT_EQ(duration(59.994), "59.99 s");
  EXPECT_EQ(duration(187.4), "3 min 07 s");
  EXPECT_EQ(duration(7265), "2 h 01 min");
}

TEST(Words, Values) {
  EXPECT_EQ(value(0.1 + 0.2), "0.3");
  EXPECT_EQ(value("NaN"), "NaN");
  EXPECT_EQ(value(nullptr), "none");
  EXPECT_EQ(value(Json::array({1, "b", 2.5})), "1, b, 2.5");
  EXPECT_EQ(value(Json{{"a", 1}}), R"({"a":1})");
  EXPECT_EQ(measure(300, "tok/s"), "300 tok/s");
  EXPECT_EQ(measure(300, ""), "300");
}

TEST(Words, CutsAtACharactersEnd) {
  EXPECT_EQ(cut("abc", 3), "abc");
  EXPECT_EQ(cut("abcd", 3), "abc...");
  EXPECT_EQ(cut("a\xC3\xA9z", 2), "a...");
  EXPECT_EQ(one_line("a\nb\tc\r"), "a b c ");
  EXPECT_EQ(one_line("\x1b[2Jx\x7f"), "[2Jx");
  EXPECT_EQ(utf8("a\xff"), "a\xEF\xBF\xBD");
}

TEST(Words, WhyNamesThePhaseOfADeath) {
  reports::Run run = run_of({Status::crash});
  Case& c = run.suites[0].cases[0];
  c.last_phase = "forward";
  c.findings.push_back(finding(Severity::isolate, "crash"));
  EXPECT_EQ(why(c), "NSA-T001 a message (in phase forward)");
}

TEST(Findings, GroupedByCodeWorstFirst) {
  reports::Run run = run_of({Status::pass, Status::fail});
  run.suites[0].cases[0].findings = {finding(Severity::warn)};
  run.suites[0].cases[1].findings = {finding(Severity::block), finding(Severity::degrade)};
  run.suites[0].cases[1].findings[1].code = "NSA-T002";
  run.findings = {finding(Severity::info)};
  run.findings[0].code = "NSA-T003";
  const auto groups = findings(run);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].first().code, "NSA-T001");
  EXPECT_EQ(groups[0].severity, Severity::block);
  EXPECT_EQ(groups[0].occurrences.size(), 2u);
  EXPECT_EQ(groups[0].first().severity, Severity::block);
  EXPECT_EQ(groups[1].first().code, "NSA-T002");
  EXPECT_EQ(groups[2].occurrences[0].where, nullptr);
}

TEST(Findings, OfEqualsTheOneThatSaysWhereLeads) {
  reports::Run run = run_of({Status::fail, Status::fail, Status::fail});
  for (Case& c : run.suites[0].cases) c.findings = {finding(Severity::block)};
  run.suites[0].cases[1].findings[0].evidence = {{"layer", 0}, {"op", "attend_window"}, {"row", 7}};
  run.suites[0].cases[2].findings[0].evidence = {{"step", 1}};
  const auto groups = findings(run);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].occurrences[0].where, &run.suites[0].cases[1]);
  EXPECT_EQ(groups[0].occurrences[1].where, &run.suites[0].cases[2]);
  EXPECT_EQ(groups[0].occurrences[2].where, &run.suites[0].cases[0]);
}

TEST(Evidence, FlattensSmallObjectsAndCutsTheRest) {
  const auto e = evidence(Json{{"a", 1}, {"b", {{"c", 2}, {"d", "x"}}}, {"long", std::string(500, 'y')}, {"z", 1}}, 4);
  ASSERT_EQ(e.rows.size(), 4u);
  EXPECT_THAT(e.rows[1], Pair("b.c", "2"));
  EXPECT_EQ(e.rows[3].second.size(), 123u);
  EXPECT_EQ(e.left_out, 1u);
  EXPECT_TRUE(evidence(Json(3), 4).rows.empty());
}

TEST(Evidence, LinesOfTextAreNoRow) {
  const auto e =
      evidence(Json{{"stacks", {"thread 1", std::string(500, 'y')}}, {"last_lines", Json::array()}, {"z", 1}}, 4);
  ASSERT_EQ(e.texts.size(), 1u);
  EXPECT_THAT(e.texts[0], Pair("stacks", "thread 1\n" + std::string(160, 'y') + "...\n"));
  EXPECT_EQ(e.rows.size(), 2u);
  const auto many = evidence(Json{{"last_lines", std::vector<std::string>(50, "x")}}, 4);
  EXPECT_THAT(many.texts.at(0).second, testing::EndsWith("x\n... 10 more lines, in report.json\n"));
  EXPECT_TRUE(evidence(Json{{"stacks", {1, 2}}}, 4).texts.empty());
}

TEST(Evidence, ACommandInPythonIsNoRow) {
  const Json python = {{"script", "a/repro.py"}, {"command", "python3 /run/a/repro.py"}, {"call", "select(...)"}};
  EXPECT_EQ(evidence(Json{{"python", python}, {"z", 1}}, 4).rows.size(), 1u);
  EXPECT_EQ(evidence(Json{{"python", {{"not_written", "too large"}}}, {"z", 1}}, 4).rows.size(), 2u);
  FindingGroup group{Severity::block, {}};
  const Finding without = sample::finding(Severity::block);
  Finding with = without;
  with.evidence = {{"python", python}};
  EXPECT_EQ(python_command(without), "");
  EXPECT_EQ(python_command(group), "");
  group.occurrences = {{&without, nullptr}, {&with, nullptr}};
  EXPECT_EQ(python_command(group), "python3 /run/a/repro.py");
  for (const Json& other : {Json(3), Json("python"), Json{{"command", 3}}, Json::array({1})}) {
    with.evidence = {{"python", other}};
    EXPECT_EQ(python_command(with), "");
  }
}

TEST(Evidence, EveryWriterShowsACommandInPython) {
  reports::Run run = run_of({Status::fail});
  run.suites[0].cases[0].findings = {finding(Severity::block)};
  run.suites[0].cases[0].findings[0].evidence = {{"python", {{"command", "python3 '/run & /repro.py'"}}}};
  EXPECT_THAT(to_console(run, false), HasSubstr("\n    python  python3 '/run & /repro.py'\n"));
  EXPECT_THAT(to_markdown(run), HasSubstr("**Repeat it in Python alone:**\n\n```\npython3 '/run & /repro.py'\n```\n"));
  EXPECT_THAT(to_html(run), HasSubstr("in Python alone</p><pre>python3 &#39;/run &amp; /repro.py&#39;</pre>"));
  EXPECT_THAT(to_junit(run), HasSubstr("python: python3 &apos;/run &amp; /repro.py&apos;"));
}

TEST(Environment, TakesAnyShape) {
  reports::Run run = run_of({});
  run.provenance = Json{{"source", {{"git_commit", "abc"}, {"dirty", true}}},
                        {"gpus", Json::array({Json{{"name", "H200"}}})},
                        {"none", nullptr},
                        {"words", Json::array({"a", "b"})},
                        {"flags", {{"NSA_A", {{"value", 1}, {"origin", "default"}}}, {"NSA_B", "x"}}}};
  EXPECT_THAT(environment(run), ElementsAre(Pair("source.git_commit", "abc"), Pair("source.dirty", "true"),
                                            Pair("gpus[0].name", "H200"), Pair("words", "a, b")));
  ASSERT_EQ(flags(run).size(), 2u);
  EXPECT_EQ(flags(run)[0].origin, "default");
  EXPECT_EQ(flags(run)[1].value, "x");
  run.provenance["flags"] = Json::array({Json{{"name", "NSA_C"}, {"value", 2}, {"origin", "environment"}}});
  EXPECT_EQ(flags(run).at(0).name, "NSA_C");
  run.provenance["flags"] = Json{{"effective", {{"NSA_D", true}}}};
  EXPECT_EQ(flags(run).at(0).name, "effective.NSA_D");
  run.provenance = Json{
      {"settings", {{"a.b", {{"value", "1"}, {"origin", "--set"}}}, {"a.c", {{"value", "2"}, {"origin", "default"}}}}}};
  EXPECT_THAT(environment(run), ElementsAre(Pair("settings.a.b", "1 (--set)"),
                                            Pair("settings", "1 more at their defaults, in report.json")));
  run.provenance = nullptr;
  EXPECT_TRUE(environment(run).empty());
  EXPECT_TRUE(flags(run).empty());
}

TEST(Ways, CountTheCasesThatTookEach) {
  reports::Run run = run_of({Status::pass, Status::fail, Status::pass, Status::skip});
  auto& cases = run.suites[0].cases;
  const auto route = [](const char* op, const char* backend, const char* variant, const char* why) {
    return Json{{"op", op}, {"backend", backend}, {"variant", variant}, {"why", why}, {"calls", 3}};
  };
  cases[0].facts["routes"] = {route("attend", "sdpa", "in_parts", "one reason"), route("select", "sdpa", "", "why")};
  cases[1].facts["routes"] = {route("attend", "cuda", "in_one", "default"),
                              route("attend", "sdpa", "in_parts", "one reason"),
                              route("attend", "sdpa", "in_parts", "another: x (y)"), 5};
  const auto launched = [](const char* branch, const char* pass, const char* kernel) {
    return Json{{"branch", branch}, {"pass", pass}, {"kernel", kernel}};
  };
  cases[1].facts["routes"][0]["kernels"] =
      Json::array({launched("sel", "forward", "joint"), launched("sel", "backward", "parts"),
                   launched("win", "forward", "mma.sync"), 5});
  cases[2].facts = Json{{"routes", "none"}, {"other", 1}};
  EXPECT_THAT(ways(run), ElementsAre(Pair("attend",
                                          "sdpa/in_parts in 2 cases, cuda/in_one in 1 case (sel backward parts, sel "
                                          "joint, win mma.sync)"),
                                     Pair("select", "sdpa in 1 case")));
  EXPECT_TRUE(ways(run_of({Status::pass})).empty());
}

TEST(Ways, KernelsAreReadFromEveryVersionsRows) {
  EXPECT_THAT(kernels_of(Json{{"kernels", Json::array({{{"branch", ""}, {"pass", "backward"}, {"kernel", "joint"}}})}}),
              ElementsAre("backward joint"));
  EXPECT_THAT(kernels_of(Json{{"kernel", "sel joint; sel backward parts"}}),
              ElementsAre("sel joint; sel backward parts"));
  for (const Json& odd :
       {Json(3), Json{{"kernels", 3}}, Json{{"kernels", Json::array({{{"kernel", 3}}})}}, Json{{"kernel", ""}}})
    EXPECT_TRUE(kernels_of(odd).empty()) << odd;
}

TEST(Metrics, RangesNeverHideANan) {
  reports::Run run = run_of({Status::pass, Status::pass, Status::pass});
  auto& cases = run.suites[0].cases;
  cases[0].metrics = {{"err", 1.0, ""}};
  cases[1].metrics = {{"err", "NaN", ""}};
  cases[2].metrics = {{"err", 3.0, ""}};
  EXPECT_THAT(key_metrics(run.suites[0]), testing::HasSubstr("NaN"));
  cases[1].metrics = {{"err", 2.0, ""}};
  EXPECT_EQ(key_metrics(run.suites[0]), "err 1 ... 3");
}

TEST(Gates, ByUnitOrByCategory) {
  reports::Run run = run_of({Status::pass, Status::fail});
  auto& cases = run.suites[0].cases;
  cases[0].checks = {{"speed", true, 310, ">=", 300, "tok/s"}, {"error", true, 1e-6, "<=", 1e-3, ""}};
  cases[0].metrics = {{"speed", 310, "tok/s"}, {"error", 1e-6, ""}};
  cases[1].checks = {{"ratio", false, 3, "<=", 2, ""}};
  cases[1].findings = {finding(Severity::degrade, "performance")};
  ASSERT_EQ(gates(run).size(), 2u);
  EXPECT_EQ(gates(run)[1].check->name, "ratio");
  EXPECT_EQ(rates(run).size(), 1u);
}

TEST(NextSteps, FindingsFirstWithoutRepetition) {
  reports::Run run = run_of({Status::fail, Status::fail});
  for (auto& c : run.suites[0].cases) c.findings = {finding(Severity::block)};
  find_causes(run, {});
  const auto steps = next_steps(run, assess(run));
  EXPECT_EQ(steps.front(), "NSA-T001: a next step");
  EXPECT_EQ(std::count(steps.begin(), steps.end(), steps.front()), 1);
  EXPECT_THAT(next_steps(run_of({Status::pass}), assess(run_of({Status::pass}))),
              ElementsAre("Go on: this run is ready for the standard level."));
}

}  // namespace
}  // namespace reports::view
