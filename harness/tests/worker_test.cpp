#include "harness/worker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace {

using harness::Case;
using harness::Context;
using harness::Json;
using harness::Program;
using harness::WorkOrder;
using testing::ElementsAre;
using testing::HasSubstr;

Case make(const char* name, std::function<void(Context&)> run) {
  Case c;
  c.name = name;
  c.run = std::move(run);
  return c;
}

class Worker : public testing::Test {
 protected:
  std::vector<Json> run(std::vector<Case> cases, std::vector<std::string> faults = {}) {
    std::vector<std::string> ids;
    for (const Case& c : cases) ids.push_back(case_id("s", c));
    program.suites = {{"s", "p", {}, [cases](const harness::Settings&) { return cases; }}};
    WorkOrder order;
    order.suite = "s";
    order.cases = ids;
    order.seed = 42;
    order.faults = std::move(faults);
    order.folder = "/run/folder";
    std::vector<Json> events;
    harness::run_cases(program, harness::Settings(harness::all_setting_specs(program)), order,
                       [&](const Json& event) { events.push_back(event); });
    return events;
  }
  static std::vector<std::string> kinds(const std::vector<Json>& events) {
    std::vector<std::string> result;
    for (const Json& event : events) result.push_back(event["event"]);
    return result;
  }
  Program program;
};

TEST_F(Worker, TellsWhatACaseSays) {
  program.codes = {{"C", "t", "numerics", reports::Severity::block, "c", "n"}};
  const auto events = run({make("a", [](Context& context) {
    context.phase("p");
    context.metric("m", 1, "byte");
    context.fact("f", 2);
    context.artifact("x.svg");
    context.expect_at_most("c", 2, 1, "", "C");
    context.finding("C", reports::Severity::info, "mild");
  })});
  EXPECT_THAT(kinds(events), ElementsAre("case_begin", "phase", "metric", "fact", "artifact", "check", "finding",
                                         "finding", "case_end"));
  for (const Json& event : events) EXPECT_EQ(event["case"], "s/a");
  EXPECT_FALSE(events[6].contains("severity"));
  EXPECT_EQ(events[7]["severity"], "info");
  EXPECT_EQ(events.back()["status"], "pass") << "the supervisor decides, not the worker";
}

TEST_F(Worker, SeedsDependOnTheCaseAlone) {
  std::vector<std::uint64_t> seeds;
  const auto note = [&](Context& context) { seeds.push_back(context.seed("data")); };
  run({make("a", note), make("b", note)});
  run({make("b", note)});
  ASSERT_EQ(seeds.size(), 3U);
  EXPECT_NE(seeds[0], seeds[1]);
  EXPECT_EQ(seeds[1], seeds[2]);
  EXPECT_EQ(seeds[0], harness::derive_seed(42, "s/a", "data", 0));
}

TEST_F(Worker, ExceptionsAreContainedWithTheirTypeAndText) {
  const auto events = run({make("a", [](Context&) { throw std::out_of_range("row 7"); }), make("b", [](Context&) {})});
  ASSERT_THAT(kinds(events), ElementsAre("case_begin", "finding", "case_end", "case_begin", "case_end"));
  EXPECT_EQ(events[1]["code"], "NSA-X004");
  EXPECT_EQ(events[1]["message"], "std::out_of_range: row 7");
  EXPECT_EQ(events[2]["status"], "error");
  EXPECT_EQ(events[4]["status"], "pass");
}

TEST_F(Worker, AnUnknownCodeIsABugOfTheCase) {
  const auto events = run({make("a", [](Context& context) { context.finding("NOPE", "x"); })});
  EXPECT_EQ(events[1]["code"], "NSA-X004");
  EXPECT_THAT(events[1]["message"].get<std::string>(), HasSubstr("'NOPE', which is in no table"));
}

TEST_F(Worker, SkipsHaveAReason) {
  const auto events = run({make("a", [](Context& context) { context.skip("unsupported", "why"); })});
  EXPECT_EQ(events[1]["status"], "skip");
  EXPECT_EQ(events[1]["reason_code"], "unsupported");
  EXPECT_EQ(events[1]["reason"], "why");
}

TEST_F(Worker, AnUnhealthyProcessRunsNoFurtherCase) {
  int asked = 0;
  program.health = [&] { return ++asked == 2 ? "CUDA error: illegal address" : ""; };
  const auto events = run({make("a", [](Context&) {}), make("b", [](Context&) {}), make("c", [](Context&) {})});
  EXPECT_EQ(events.back()["case"], "s/b");
  EXPECT_EQ(events.back()["status"], "crash");
  EXPECT_EQ(events[events.size() - 2]["code"], "NSA-X008");
}

// A sticky error shows in whatever call comes next, which says something else.
TEST_F(Worker, AnExceptionOfAnUnhealthyProcessNamesTheIllness) {
  program.health = [] { return "CUDA error: an illegal memory access was encountered"; };
  const auto events =
      run({make("a", [](Context&) { throw std::runtime_error("CUBLAS_STATUS_EXECUTION_FAILED\nframe"); })});
  EXPECT_EQ(events[1]["code"], "NSA-X004");
  EXPECT_EQ(events[1]["message"],
            "std::runtime_error: CUDA error: an illegal memory access was encountered; it showed as: "
            "CUBLAS_STATUS_EXECUTION_FAILED\nframe");
  EXPECT_EQ(events[1]["evidence"]["health"], "CUDA error: an illegal memory access was encountered");
  EXPECT_EQ(events[1]["evidence"]["what"], "CUBLAS_STATUS_EXECUTION_FAILED\nframe");
  EXPECT_EQ(events[2]["code"], "NSA-X008");
}

TEST_F(Worker, FaultsArePlantedBeforeTheFirstCaseAndTheirNamesGoNoFurther) {
  std::vector<std::string> order;
  program.faults = {{"f", "w", {"NSA-X001"}, [&](const harness::FaultSite& site) { order.push_back(site.run_folder); }},
                    {"g", "w", {"NSA-X001"}, [&](const harness::FaultSite&) { order.push_back("g"); }}};
  const auto events = run({make("a", [&](Context&) { order.push_back("case"); })}, {"f"});
  EXPECT_THAT(order, ElementsAre("/run/folder", "case"));
  for (const Json& event : events) EXPECT_EQ(event.dump().find("\"f\""), std::string::npos);
}

TEST_F(Worker, ProgressIsThrottled) {
  const auto events = run({make("a", [](Context& context) {
    for (int i = 0; i < 100000; ++i) context.progress();
  })});
  EXPECT_LT(events.size(), 1000U);
  EXPECT_EQ(events[1]["event"], "progress");
}

TEST_F(Worker, CasesThatTheSuiteDoesNotHaveAreAMistake) {
  program.suites = {{"s", "p", {}, [](const harness::Settings&) { return std::vector<Case>{}; }}};
  WorkOrder order;
  order.suite = "s";
  order.cases = {"s/gone"};
  EXPECT_THROW(harness::run_cases(program, harness::Settings({}), order, [](const Json&) {}), std::logic_error);
}

}  // namespace
