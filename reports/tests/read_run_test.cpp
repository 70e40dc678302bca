#include "reports/read_run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "reports/journal_rules.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

struct ReportRefusal {
  std::string what = "was accepted";
  bool incompatible = false;
};

template <typename Read>
ReportRefusal refusal_of(Read read) {
  try {
    (void)read();
  } catch (const JournalError& error) {
    return {error.what(), error.incompatible};
  }
  return {};
}

ReportRefusal refusal_of_report(const std::string& text) {
  std::istringstream in(text);
  return refusal_of([&] { return read_report(in, "some/report.json"); });
}

Json good() { return Json::parse(dump(to_json(sample::mixed()))); }

// The sample's report with one value replaced; null: removed.
std::string with(const std::string& where, const Json& value) {
  Json report = good();
  const Json::json_pointer pointer(where);
  if (value.is_null())
    report[pointer.parent_pointer()].erase(pointer.back());
  else
    report[pointer] = value;
  return report.dump();
}

// Causes are derived anew from what was read.
std::string again(const Run& run) {
  std::istringstream in(dump(to_json(run)));
  return dump(to_json(read_report(in, "report.json")));
}

std::string without_causes(Run run) {
  run.causes.clear();
  for (Suite& suite : run.suites)
    for (Case& c : suite.cases)
      for (Finding& f : c.findings) f.follows_from.clear();
  for (Finding& f : run.findings) f.follows_from.clear();
  return dump(to_json(run));
}

TEST(ReadReport, WhatIsReadIsWhatWasWritten) {
  EXPECT_EQ(again(sample::mixed()), without_causes(sample::mixed()));
  reports::Run run = sample::run_of({Status::pass, Status::not_run, Status::inconclusive, Status::crash});
  for (Case& c : run.suites[0].cases) {
    c.reason_code = c.status == Status::pass ? "" : "because";
    c.reason = c.status == Status::pass ? "" : "it is so";
  }
  run.complete = false;
  run.torn_tail = true;
  run.interruption = ExitCode::interrupted;
  EXPECT_EQ(again(run), dump(to_json(run)));
}

// What a journal may hold, its report may hold.
TEST(ReadReport, ReadsValuesAsDeepAsAJournalHasThem) {
  reports::Run run = sample::run_of({Status::pass});
  Json deep = 1;
  for (std::size_t i = 1; i < kMostDepth; ++i) deep = Json::array({deep});
  run.suites[0].cases[0].facts["deep"] = deep;
  EXPECT_EQ(again(run), dump(to_json(run)));
}

TEST(ReadReport, ADamagedOneIsNamedWithItsPlace) {
  const std::string whole = dump(good(), 2);
  EXPECT_THAT(refusal_of_report("").what, HasSubstr("some/report.json: it is empty"));
  EXPECT_THAT(refusal_of_report(" \n").what, HasSubstr("it is empty"));
  for (const std::size_t size : {std::size_t{1}, whole.size() / 3, whole.size() - 1})
    EXPECT_THAT(refusal_of_report(whole.substr(0, size)).what,
                HasSubstr("cut off after " + std::to_string(size) + " bytes"));
  EXPECT_THAT(refusal_of_report(whole.substr(1)).what, HasSubstr("not a report: invalid JSON at byte"));
  EXPECT_THAT(refusal_of_report("[1, 2]").what, HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal_of_report("{\"a\": 1e999}").what, HasSubstr("not a report"));
  EXPECT_THAT(refusal_of_report("{\"a\": \"\xff\"}").what, HasSubstr("invalid JSON"));
  EXPECT_THAT(refusal_of_report(std::string(400000, '[')).what, HasSubstr("brackets nest too deep"));
  EXPECT_THAT(refusal_of_report("[\"" + std::string(4000, '[') + "\\\"]\"]").what, HasSubstr("not a JSON object"))
      << "in a text";
}

TEST(ReadReport, AFieldThatIsWrongIsNamedWithItsPlace) {
  EXPECT_THAT(refusal_of_report(with("/suites/1/cases/0/status", "passed")).what,
              AllOf(HasSubstr("suites[1]: cases[0]: field 'status'"), HasSubstr("passed")));
  EXPECT_THAT(refusal_of_report(with("/suites/1/cases/0/metrics/0/value", "fast")).what,
              HasSubstr("metrics[0]: field 'value'"));
  EXPECT_THAT(refusal_of_report(with("/suites/1/cases/0/findings/0/severity", "fatal")).what,
              HasSubstr("field 'severity'"));
  EXPECT_THAT(refusal_of_report(with("/suites/0/cases/0", 3)).what, HasSubstr("suites[0]: cases[0]: is no object"));
  EXPECT_THAT(refusal_of_report(with("/suites/0/name", "../x")).what, HasSubstr("field 'name'"));
  EXPECT_THAT(refusal_of_report(with("/suites/0/name", "s_sweep")).what, HasSubstr("suite 's_sweep' stands twice"));
  EXPECT_THAT(refusal_of_report(with("/suites/0/cases/0/id", "preflight/cuda")).what,
              HasSubstr("'preflight/cuda' stands twice"));
  EXPECT_THAT(refusal_of_report(with("/run/interruption", 77)).what, HasSubstr("run: field 'interruption'"));
  for (const char* key : {"/run", "/run/id", "/run/complete", "/run/exit_code", "/run/duration_s", "/provenance",
                          "/suites", "/verdict", "/totals", "/findings", "/suites/0/cases", "/suites/0/cases/0/status",
                          "/suites/0/cases/0/seed", "/suites/0/cases/0/facts", "/suites/1/cases/0/checks"})
    EXPECT_THAT(refusal_of_report(with(key, nullptr)).what,
                AllOf(HasSubstr("some/report.json: "), HasSubstr("is missing")))
        << key;
}

TEST(ReadReport, OneThatContradictsItselfIsDamaged) {
  Json report = good();
  report["suites"][0]["cases"].erase(0);
  EXPECT_THAT(refusal_of_report(report.dump()).what, HasSubstr("contradicts itself: its totals say"));
  EXPECT_THAT(refusal_of_report(with("/verdict", "CONDITIONAL")).what,
              AllOf(HasSubstr("contradicts itself"), HasSubstr("says CONDITIONAL"), HasSubstr("events.jsonl")));
  EXPECT_THAT(refusal_of_report(with("/run/exit_code", 0)).what, HasSubstr("contradicts itself"));
}

TEST(ReadReport, AnotherMajorIsIncompatibleAndOnlyThat) {
  EXPECT_EQ(refusal_of_report(with("/schema_version", "1.9.0")).what, "was accepted");
  EXPECT_TRUE(refusal_of_report(with("/schema_version", "2.0.0")).incompatible);
  EXPECT_THAT(refusal_of_report(with("/schema_version", "2.0.0")).what,
              AllOf(HasSubstr("some/report.json: the report has schema version 2.0.0"), HasSubstr("1.x")));
  for (const char* version : {"", "1", "new"}) {
    EXPECT_THAT(refusal_of_report(with("/schema_version", version)).what, HasSubstr("schema_version"));
    EXPECT_FALSE(refusal_of_report(with("/schema_version", version)).incompatible);
  }
  EXPECT_THAT(refusal_of_report(with("/schema", "somebody/else")).what, HasSubstr("schema is 'somebody/else'"));
  EXPECT_THAT(refusal_of_report(with("/schema", nullptr)).what, HasSubstr("schema is ''"));
  const reports::Run run = sample::mixed();
  EXPECT_THAT(refusal_of_report(dump(suite_to_json(run, run.suites[0]))).what, HasSubstr("is the report of one suite"));
}

TEST(ReadRun, OfAFolderItsJournalElseItsReport) {
  const fs::path folder = sample::fresh_folder();
  const auto refused = [&] { return refusal_of([&] { return read_run(folder); }).what; };
  EXPECT_THAT(refused(), AllOf(HasSubstr(folder.string()), HasSubstr("neither events.jsonl nor report.json")));
  std::ofstream(folder / "report.json") << dump(good());
  EXPECT_EQ(read_run(folder).id, sample::mixed().id);
  // The journal is what everything else is derived from: a damaged one is not passed over for its report.
  std::ofstream(folder / "events.jsonl") << "garbage\n";
  EXPECT_THAT(refused(), HasSubstr("events.jsonl:1"));
  fs::remove(folder / "events.jsonl");
  fs::create_symlink("nowhere", folder / "events.jsonl");
  EXPECT_THAT(refused(), AllOf(HasSubstr("events.jsonl: "), HasSubstr("No such file")));
}

TEST(ReadRun, OfAFileWhatItIs) {
  const fs::path folder = sample::fresh_folder();
  const std::string journal = sample::read_file(fs::path(REPORTS_TEST_DATA) / "mixed.events.jsonl");
  std::ofstream(folder / "copy.txt") << journal;
  EXPECT_EQ(read_run(folder / "copy.txt").suites.size(), 3U);
  std::ofstream(folder / "cut.jsonl") << journal.substr(0, 100);
  EXPECT_THAT(refusal_of([&] { return read_run(folder / "cut.jsonl"); }).what,
              HasSubstr("cut.jsonl: no run_begin: nothing of the run was recorded"));
  std::ofstream(folder / "one_line.json") << dump(good());
  EXPECT_EQ(read_run(folder / "one_line.json").suites.size(), 3U);
  std::ofstream(folder / "lines.json") << dump(good(), 2);
  EXPECT_EQ(read_run(folder / "lines.json").suites.size(), 3U);
  EXPECT_THAT(refusal_of([&] { return read_run(folder / "absent"); }).what,
              AllOf(HasSubstr("absent: cannot be opened"), HasSubstr("No such file")));
  EXPECT_THAT(refusal_of([&] { return read_run("/dev/null"); }).what, HasSubstr("/dev/null: is no regular file"));
}

}  // namespace
}  // namespace reports
