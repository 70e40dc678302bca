// `compare` as a script sees it: what it says of real runs, its exit codes, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/tests/support/fake_run.hpp"
#include "reports/compare.hpp"
#include "reports/json.hpp"
#include "reports/read_run.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::FakeRun;
using harness::tests::read_text;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

// The run folders that the tests compare, made once.
class CompareVerb : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake({"--suite", "good", "--out", "a"}), 0) << fake.err();
    ASSERT_EQ(fake({"--suite", "good", "--out", "b"}), 0) << fake.err();
  }
  // Its exit code is `code`, and standard error says it.
  void refuses(const std::vector<std::string>& runs, int code, const std::string& says) {
    std::vector<std::string> words{"compare"};
    words.insert(words.end(), runs.begin(), runs.end());
    EXPECT_EQ(fake(words), code) << says;
    EXPECT_THAT(fake.err(), HasSubstr(says));
    EXPECT_EQ(fake.out(), "") << "no comparison that looks like no difference";
  }
  [[nodiscard]] std::string journal(const std::string& run) const {
    return read_text(fake.folder.path() / run / "events.jsonl");
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
  FakeRun fake;
};

TEST_F(CompareVerb, OfEqualRunsItSaysThatNothingIsDifferent) {
  EXPECT_EQ(fake({"compare", "a", "b"}), 0) << fake.err();
  EXPECT_THAT(fake.out(), AllOf(HasSubstr("what went in: no difference is recorded\n"),
                                HasSubstr("2 findings still there, the same in all runs\n"),
                                testing::EndsWith("compare: no difference in what went in, no difference in what came "
                                                  "out; 3 cases ran in both\n")));
  EXPECT_EQ(fake({"compare", "a", "b", "--quiet"}), 0);
  EXPECT_THAT(fake.out(), testing::StartsWith("compare: no difference in what went in"));
}

TEST_F(CompareVerb, OneSettingOneFaultAndTheirResults) {
  ASSERT_EQ(fake({"--suite", "good,gate", "--gate", "block", "--inject", "leave-file", "--out", "c"}), 1);
  EXPECT_EQ(fake({"compare", "a", "c"}), 0) << "the comparison was made, whatever it found";
  EXPECT_THAT(fake.out(), ContainsRegex("fake.gate +open \\(default\\) +block \\(--gate\\)\n"));
  EXPECT_THAT(fake.out(), ContainsRegex("planted faults +none +leave-file\n"));
  EXPECT_THAT(fake.out(), ContainsRegex("suite gate +not planned +1 case\n"));
  EXPECT_THAT(fake.out(), ContainsRegex("verdict +READY +NOT READY\n"));
  EXPECT_THAT(fake.out(), ContainsRegex("FAKE-001 gate/opens +[?] +block"));
  ASSERT_EQ(fake({"--suite", "good,gate", "--out", "d"}), 0);
  EXPECT_EQ(fake({"compare", "d", "c"}), 0);
  EXPECT_THAT(fake.out(), AllOf(ContainsRegex("FAKE-001 gate/opens +- +block +new .A check failed.\n"),
                                ContainsRegex("gate/opens +pass +fail\n"),
                                ContainsRegex("FAKE-001 +- +1. \\(block\\) +A check failed")));
  EXPECT_EQ(fake({"compare", "d", "c", "a"}), 0) << "three";
  EXPECT_THAT(fake.out(), AllOf(HasSubstr("\n3  READY"), HasSubstr("compare: 1 -> 2: "), HasSubstr(" | 2 -> 3: ")));
}

TEST_F(CompareVerb, AVariableThatTheHarnessRecordsIsNamed) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  ASSERT_EQ(fake({"--suite", "good", "--out", "c"}), 0);
  unsetenv("CUDA_LAUNCH_BLOCKING");
  EXPECT_EQ(fake({"compare", "a", "c"}), 0);
  EXPECT_THAT(fake.out(), ContainsRegex("CUDA_LAUNCH_BLOCKING +not set +1\n"));
}

// Of what a run really records, each value is changed in turn: settings, selection, host, build and all.
TEST_F(CompareVerb, EveryFieldThatARunRecordsIsCompared) {
  const reports::Run before = reports::read_run(fake.folder.path() / "a"),
                     after = reports::read_run(fake.folder.path() / "b");
  int settings = 0;
  const reports::Json flat = after.provenance.flatten();
  for (const auto& [where, value] : flat.items()) {
    reports::Run changed = after;
    changed.provenance[reports::Json::json_pointer(where)] = value == "changed" ? "otherwise" : "changed";
    const reports::Comparison found = reports::compare({{"a", before}, {"b", changed}});
    EXPECT_EQ(found.environment.size() + found.configuration.size() + found.plan.size(), 1U) << where;
    EXPECT_EQ(found.steps.at(0).went_in + found.steps.at(0).origins, 1) << where;
    settings += where.starts_with("/settings/values/") && where.ends_with("/value") ? 1 : 0;
    if (settings > 0 && where.starts_with("/settings/values/")) {
      ASSERT_EQ(found.configuration.size(), 1U) << where;
      const std::string name = where.substr(17, where.rfind('/') - 17);
      EXPECT_EQ(found.configuration[0].name, "settings.values." + name);
    }
  }
  EXPECT_EQ(settings, static_cast<int>(after.provenance["settings"]["values"].size()));
  EXPECT_GT(settings, 8);
  EXPECT_GT(flat.size(), 40U);
}

TEST_F(CompareVerb, TheOptionThatNoSettingTellsIsRecordedToo) {
  ASSERT_EQ(fake({"--suite", "good", "--fail-fast", "--out", "c"}), 0);
  EXPECT_EQ(fake({"compare", "a", "c"}), 0);
  EXPECT_THAT(fake.out(), ContainsRegex("selection.fail_fast +no +yes\n"));
}

TEST_F(CompareVerb, TraceNamesTheFirstStageWhoseBitsDiffer) {
  ASSERT_EQ(fake({"--case", "sized/traces", "--out", "c"}), 0);
  ASSERT_EQ(fake({"--case", "sized/traces", "--out", "d"}), 0);
  ASSERT_EQ(fake({"--case", "sized/traces", "--set", "fake.width=8", "--out", "e"}), 0);
  EXPECT_EQ(fake({"compare", "c", "d", "--trace"}), 0) << fake.err();
  EXPECT_EQ(fake.out(), "trace sized/traces: the same bits in 2 steps, 4 hashes\n");
  EXPECT_EQ(fake({"compare", "c", "d", "e", "--trace"}), 0) << "it judges nothing";
  EXPECT_EQ(
      fake.out(),
      "1 -> 2\ntrace sized/traces: the same bits in 2 steps, 4 hashes\n2 -> 3\ntrace sized/traces: they part at step "
      "1, second: 64 and 8 (1 steps and 3 hashes before are the same; the last is first)\n");
  EXPECT_EQ(fake({"compare", "a", "c", "--trace"}), 2) << "nothing to compare is no sameness";
  EXPECT_THAT(fake.err(), HasSubstr("no case has a trace in both a and c"));
  EXPECT_EQ(fake({"compare", "c", "d", "--trace", "--json"}), 2);
  fs::copy(fake.folder.path() / "c", fake.folder.path() / "copy", fs::copy_options::recursive);
  EXPECT_EQ(fake({"compare", "c", "copy", "--trace"}), 2) << "a copy has the same bits, and proves nothing";
  EXPECT_THAT(fake.err(), HasSubstr("are the same run"));
}

TEST_F(CompareVerb, ARunIsAFolderAReportOrAJournal) {
  const std::vector<std::string> forms{"b", "b/report.json", "b/events.jsonl"};
  for (const std::string& form : forms) {
    EXPECT_EQ(fake({"compare", "a/report.json", form, "--json"}), 0) << fake.err();
    const auto json = reports::Json::parse(fake.out());
    EXPECT_EQ(json["schema"], reports::kComparisonSchema);
    EXPECT_EQ(json["runs"][1]["name"], form);
    EXPECT_EQ(json["steps"][0]["came_out"], 0);
    EXPECT_EQ(json["steps"][0]["cases_in_both"], 3);
  }
  EXPECT_EQ(fake({"schema", "comparison"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr(reports::kComparisonSchema));
  EXPECT_EQ(fake({"schema", "event"}), 0);
  EXPECT_EQ(fake({"schema", "other"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("unknown schema 'other'; there are report, event, comparison, fleet and bundle"));
}

TEST_F(CompareVerb, AnUnfinishedRunIsComparedAsFarAsItGoes) {
  const std::string whole = journal("b");
  for (const std::size_t cut : {whole.find("\"run_end\"") - 10, whole.find('\n') + 1}) {
    fake.folder.write("c/events.jsonl", whole.substr(0, cut));
    EXPECT_EQ(fake({"compare", "a", "c"}), 0) << fake.err();
    EXPECT_THAT(fake.out(), AllOf(HasSubstr("   unfinished: its journal has no end; it is compared as far as it goes"),
                                  HasSubstr("run 2 is unfinished")));
  }
  EXPECT_THAT(fake.out(), HasSubstr("No case ran in both: nothing of what came out can be compared"));
}

TEST_F(CompareVerb, WhatIsNoPairOfRunsIsRefused) {
  refuses({}, 2, "RUN");
  refuses({"a"}, 2, "compare: a: one run only; give two or more");
  refuses({"a", "a"}, 2, "compare: a is given twice");
  refuses({"a", "./b/../a"}, 2, "./b/../a is given twice");
  refuses({"a", "b", "a/report.json"}, 2, "compare: a and a/report.json are the same run, ");
  fs::copy(fake.folder.path() / "a", fake.folder.path() / "copy");
  refuses({"a", "copy"}, 2, "a and copy are the same run");
  refuses({"a", "nowhere"}, 2, "nowhere: cannot be opened: No such file");
  fs::create_directory(fake.folder.path() / "empty");
  refuses({"a", "empty"}, 2, "empty: holds neither events.jsonl nor report.json: no run's folder");
  refuses({"a", "b", "--suite", "good"}, 2, "'--suite' has no meaning for the verb 'compare'");
  refuses({"a", "b", "--summary-file", "s.md"}, 2, "'--summary-file' has no meaning for the verb 'compare'");
}

TEST_F(CompareVerb, DamagedFilesAreNamedWithTheirPlace) {
  const std::string whole = journal("b"), report = read_text(fake.folder.path() / "b/report.json");
  const std::size_t first = whole.find('\n') + 1;
  fake.folder.write("c/events.jsonl", whole.substr(0, first) + "garbage\n");
  refuses({"a", "c"}, 2, "c/events.jsonl:2: not an event");
  fake.folder.write("c/events.jsonl", whole.substr(0, first / 2));
  refuses({"a", "c"}, 2, "c/events.jsonl: no run_begin: nothing of the run was recorded");
  fake.folder.write("c/events.jsonl", "");
  refuses({"a", "c"}, 2, "c/events.jsonl: no run_begin");
  fake.folder.write("r.json", report.substr(0, report.size() / 2));
  refuses({"a", "r.json"}, 2, "r.json: cut off after");
  refuses({"r.json", "a"}, 2, "r.json: cut off after");
  fake.folder.write("r.json", "");
  refuses({"a", "r.json"}, 2, "r.json: it is empty");
  fake.folder.write("r.json", replaced(report, "\"READY\"", "\"NOT READY\""));
  refuses({"a", "r.json"}, 2, "r.json: it contradicts itself");
  fake.folder.write("r.json", "{}");
  refuses({"a", "r.json"}, 2, "r.json: schema is '', allowed: nsa-validate/report");
  refuses({"a", "b/suites/good.json"}, 2, "good.json: is the report of one suite");
}

TEST_F(CompareVerb, OtherVersionsAndOtherProgramsAreRefused) {
  const std::string whole = journal("b"), report = read_text(fake.folder.path() / "b/report.json");
  const auto version = [](const std::string& text) {
    const std::size_t at = text.find("\"schema_version\"");
    const std::size_t from = text.find("\"1.", at);
    return text.substr(0, from) + "\"2." + text.substr(from + 3);
  };
  fake.folder.write("c/events.jsonl", version(whole));
  refuses({"a", "c"}, 11, "c/events.jsonl:1: run_begin: the journal has schema version 2.");
  fake.folder.write("r.json", version(report));
  refuses({"a", "r.json"}, 11, "r.json: the report has schema version 2.");
  fake.folder.write("r.json", replaced(report, "\"name\": \"fake-program\"", "\"name\": \"another\""));
  refuses({"a", "r.json"}, 2, "r.json: is a run of \"another\", not of fake-program");
  fake.folder.write("c/events.jsonl", replaced(whole, "nsa-validate/event", "another/event"));
  refuses({"a", "c"}, 2, "schema is 'another/event'");
}

TEST_F(CompareVerb, NothingIsWrittenIntoTheFoldersOfTheRuns) {
  const auto files = [&] {
    std::vector<std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(fake.folder.path()))
      if (entry.path().filename() != "stdout" && entry.path().filename() != "stderr") all.push_back(entry.path());
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto before = files();
  EXPECT_EQ(fake({"compare", "a", "b"}), 0);
  EXPECT_EQ(files(), before);
}

TEST_F(CompareVerb, OutputThatIsLostIsNoSuccess) {
  fake.out_to = "closed";
  EXPECT_EQ(fake({"compare", "a", "b"}), 4);
  fake.out_to = "beyond the limit";
  EXPECT_EQ(fake({"compare", "a", "b"}), 4);
}

}  // namespace
