#include "reports/journal.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "reports/journal_rules.hpp"
#include "reports/tests/support/sample.hpp"
#include "reports/writers.hpp"

namespace reports {
namespace {

using sample::Journal;
using testing::AllOf;
using testing::HasSubstr;

const std::string kCaseBegin = R"({"event": "case_begin", "case": "a/one", "worker": 0, "seed": 1})";
const std::string kCaseEnd = R"({"event": "case_end", "case": "a/one", "status": "pass", "duration_s": 1})";
const std::string kRunEnd = R"({"event": "run_end", "duration_s": 2, "case_s": 1})";

struct JournalRefusal {
  std::string what = "was accepted";
  bool incompatible = false;
};

JournalRefusal refusal_of_journal(const std::string& text) {
  try {
    (void)read_journal(Journal::write(text));
  } catch (const JournalError& error) {
    return {error.what(), error.incompatible};
  }
  return {};
}

TEST(Journal, ReadsACompleteRun) {
  const reports::Run run = read_journal(Journal().add(kCaseBegin).add(kCaseEnd).add(kRunEnd).write());
  EXPECT_TRUE(run.complete);
  EXPECT_FALSE(run.torn_tail);
  EXPECT_EQ(run.suites.at(0).cases.at(0).status, Status::pass);
}

TEST(Journal, ATornLastLineIsExpected) {
  const Journal begun = Journal().add(kCaseBegin);
  for (const std::string tail :
       {"{", "{\"event\": \"phase\", \"ca", "{\"event\": \"phase\", \"case\": \"a/o\xc3", "{\"t\": 1e"}) {
    for (const std::string newline : {"", "\n"}) {
      const reports::Run run = read_journal(Journal(begun).raw(tail + newline).write());
      EXPECT_TRUE(run.torn_tail) << tail;
      EXPECT_FALSE(run.complete);
      EXPECT_EQ(run.suites.at(0).cases.at(0).reason_code, "interrupted");
    }
  }
}

TEST(Journal, AWholeLastEventWithoutItsNewlineCounts) {
  std::string text = Journal().add(kCaseBegin).add(kCaseEnd).text();
  text.pop_back();
  const reports::Run run = read_journal(Journal::write(text));
  EXPECT_TRUE(run.torn_tail);
  EXPECT_EQ(run.suites.at(0).cases.at(0).status, Status::pass);
}

// What a kill can do: the file ends anywhere. Every such file after the first line must give a report.
TEST(Journal, CutAtAnyByteItGivesAReport) {
  const std::string text = sample::read_file(std::filesystem::path(REPORTS_TEST_DATA) / "mixed.events.jsonl");
  const std::size_t first = text.find('\n') + 1;
  for (std::size_t size = first; size <= text.size(); size += 13) {
    const reports::Run run = read_journal(Journal::write(text.substr(0, size)));
    EXPECT_EQ(run.torn_tail, text[size - 1] != '\n') << size;
    EXPECT_NE(assess(run).verdict, Verdict::ready);
    EXPECT_EQ(count(run.suites).planned, 7);
  }
  EXPECT_THAT(refusal_of_journal(text.substr(0, first / 2)).what, HasSubstr("no run_begin"));
}

TEST(Journal, OtherGarbageIsAnErrorWithItsPlace) {
  EXPECT_THAT(refusal_of_journal(Journal().raw("garbage\n").add(kRunEnd).text()).what,
              AllOf(HasSubstr("events.jsonl:2"), HasSubstr("not an event")));
  EXPECT_THAT(refusal_of_journal(Journal().raw("garbage\n").text()).what, HasSubstr("events.jsonl:2"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("garbage").text()).what, HasSubstr("events.jsonl:2"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("{\"event\": \"pha\n").add(kRunEnd).text()).what,
              HasSubstr("events.jsonl:2: not an event: cut off"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("\n").add(kRunEnd).text()).what, HasSubstr("events.jsonl:2"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("[1, 2]\n").text()).what, HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("{\"event\": x}\n").text()).what, HasSubstr("invalid JSON"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("{\"event\": 1e999, \"seq\": 1}\n").text()).what,
              HasSubstr("not an event"));
  EXPECT_THAT(refusal_of_journal(Journal().raw("{} {}\n").text()).what, HasSubstr("invalid JSON"));
}

TEST(Journal, IllFormedUtf8IsAnError) {
  EXPECT_THAT(refusal_of_journal(Journal().raw("{\"event\": \"x\xff\", \"t\": \"2026\", \"seq\": 1}\n").text()).what,
              HasSubstr("events.jsonl:2"));
  EXPECT_THAT(refusal_of_journal(std::string("\xff\xfe") + Journal().text()).what, HasSubstr("events.jsonl:1"));
}

TEST(Journal, TheSequenceMustNotJumpOrRepeat) {
  const std::string begin = Journal().text();
  for (const int seq : {0, 2, 7}) {
    const auto bad = refusal_of_journal(begin + R"({"event": "x", "t": "2026", "seq": )" + std::to_string(seq) + "}\n");
    EXPECT_THAT(bad.what, AllOf(HasSubstr("events.jsonl:2"), HasSubstr("expected 1")));
  }
  EXPECT_THAT(refusal_of_journal(begin + "{\"event\": \"x\", \"t\": \"2026\"}\n").what, HasSubstr("seq"));
  EXPECT_THAT(refusal_of_journal(begin + begin).what, HasSubstr("expected 1"));
}

TEST(Journal, AnEventOfAnUnplannedCaseIsAnError) {
  const auto bad = refusal_of_journal(Journal().add(R"({"event": "phase", "case": "a/nine", "name": "x"})").text());
  EXPECT_THAT(bad.what, AllOf(HasSubstr("events.jsonl:2"), HasSubstr("a/nine")));
}

TEST(Journal, RunBeginMustComeFirst) {
  EXPECT_THAT(refusal_of_journal("").what, HasSubstr("no run_begin"));
  EXPECT_THAT(refusal_of_journal(R"({"event": "run_end", "t": "2026", "seq": 0, "duration_s": 1, "case_s": 1})"
                                 "\n")
                  .what,
              HasSubstr("before run_begin"));
}

TEST(Journal, AnotherMajorIsIncompatibleAndOnlyThat) {
  const auto with_version = [](const std::string& version) {
    Json event = Json::parse(Journal().text());
    event["schema_version"] = version;
    return event.dump() + "\n";
  };
  EXPECT_EQ(refusal_of_journal(with_version("1.7.3")).what, "was accepted");
  EXPECT_TRUE(refusal_of_journal(with_version("2.0.0")).incompatible);
  EXPECT_THAT(refusal_of_journal(with_version("2.0.0")).what, AllOf(HasSubstr("2.0.0"), HasSubstr("1.x")));
  EXPECT_TRUE(refusal_of_journal(with_version("10.0.0")).incompatible);
  for (const std::string version : {"", "1", "1.", "1.1", "1.1.", "1.1.0.", "1.1.0x", "1.99999999999999999999.0",
                                    "1.x.0", "1..0", " 1.1.0", "one", "-1.0.0"}) {
    EXPECT_THAT(refusal_of_journal(with_version(version)).what, HasSubstr("schema_version")) << version;
    EXPECT_FALSE(refusal_of_journal(with_version(version)).incompatible);
  }
  Json other = Json::parse(Journal().text());
  other["schema"] = "somebody/else";
  EXPECT_THAT(refusal_of_journal(other.dump() + "\n").what, HasSubstr("somebody/else"));
}

TEST(Journal, FilesThatAreNone) {
  const auto folder = sample::fresh_folder();
  EXPECT_THROW((void)read_journal(folder), JournalError);
  try {
    (void)read_journal(folder / "absent.jsonl");
    ADD_FAILURE();
  } catch (const JournalError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("absent.jsonl"), HasSubstr("No such file")));
  }
}

TEST(Journal, WhatHasNoEndIsNotReadToIt) {
  EXPECT_THAT(refusal_of_journal(Journal().text() + std::string(kMostLineBytes + 1, '\0')).what,
              AllOf(HasSubstr("events.jsonl:2"), HasSubstr("longer than 16 MiB")));
  const auto folder = sample::fresh_folder();
  std::filesystem::create_symlink("/dev/zero", folder / "zero");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"zero", "pipe"}) {
    try {
      (void)read_journal(folder / name);
      ADD_FAILURE() << name;
    } catch (const JournalError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string(name) + ": is no regular file"));
    }
  }
}

// A line of brackets alone would end the program that walks it.
TEST(Journal, BracketsNestOnlySoDeep) {
  const auto with_fact = [](std::size_t depth) {
    const std::string value = std::string(depth, '[') + std::string(depth, ']');
    return Journal()
        .add(kCaseBegin)
        .raw(R"({"event": "fact", "t": "2026", "seq": 2, "case": "a/one", "key": "k", "value": )" + value + "}\n")
        .text();
  };
  EXPECT_EQ(refusal_of_journal(with_fact(kMostDepth - 1)).what, "was accepted");
  for (const std::size_t depth : {kMostDepth, std::size_t{400000}})
    EXPECT_THAT(refusal_of_journal(with_fact(depth)).what,
                HasSubstr("events.jsonl:3: not an event: brackets nest deeper than 1000"));
  const std::string begin = Journal().text(), deep = std::string(400000, '[') + std::string(400000, ']');
  EXPECT_THAT(refusal_of_journal("{\"provenance\": " + deep + ", " + begin.substr(1)).what,
              HasSubstr("events.jsonl:1: not an event: br"));
}

TEST(Journal, MetricWordsStayWords) {
  const reports::Run run =
      read_journal(Journal()
                       .add(kCaseBegin)
                       .add(R"({"event": "metric", "case": "a/one", "name": "loss", "value": "NaN", "unit": ""})")
                       .add(kCaseEnd)
                       .add(kRunEnd)
                       .write());
  EXPECT_EQ(to_json(run)["suites"][0]["cases"][0]["metrics"][0]["value"], "NaN");
}

// -- summaries

bool wants_load(std::string_view key) { return key == "load"; }

Json stamped(const std::string& kind, int seq, const Json& rest) {
  Json event{{"event", kind}, {"t", "2026-11-21T01:31:00.000Z"}, {"seq", seq}};
  event.update(rest);
  return event;
}

// A run whose case has one of each, as our writer puts them: `change` alters the text.
template <typename Change>
std::string journal_of_a_case(Change change) {
  Json begin = Json::parse(Journal().text());
  const Json c{{"case", "a/one"}};
  const auto with = [&](Json rest) {
    Json all = c;
    all.update(rest);
    return all;
  };
  std::vector<std::string> lines{
      begin.dump(),
      stamped("case_begin", 1, with({{"worker", 0}, {"seed", 1}})).dump(),
      stamped("phase", 2, with({{"name", "p"}})).dump(),
      stamped("fact", 3, with({{"key", "load"}, {"value", {{"busy", true}}}})).dump(),
      stamped("fact", 4, with({{"key", "table"}, {"value", {{"key", "load"}, {"text", ",\"key\":\"load\"}"}}}})).dump(),
      stamped(
          "check", 5,
          with({{"name", "good"}, {"pass", true}, {"measured", 1}, {"comparator", "<="}, {"bound", 2}, {"unit", ""}}))
          .dump(),
      stamped(
          "check", 6,
          with({{"name", "bad"}, {"pass", false}, {"measured", 3}, {"comparator", "<="}, {"bound", 2}, {"unit", ""}}))
          .dump(),
      stamped("metric", 7, with({{"name", "m"}, {"value", 1.5}, {"unit", "s"}})).dump(),
      stamped("case_end", 8, with({{"status", "pass"}, {"duration_s", 1}})).dump(),
      stamped("run_end", 9, {{"duration_s", 2}, {"case_s", 1}}).dump()};
  change(lines);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}
std::string unchanged() {
  return journal_of_a_case([](const std::vector<std::string>&) {});
}

TEST(JournalSummary, HasAllThatDecidesAndTheFactsThatAreWanted) {
  const auto file = Journal::write(unchanged());
  const reports::Run all = read_journal(file), summary = read_journal(file, wants_load);
  const reports::Case& c = summary.suites[0].cases[0];
  EXPECT_EQ(c.facts, Json({{"load", {{"busy", true}}}}));
  EXPECT_EQ(all.suites[0].cases[0].facts.size(), 2U);
  EXPECT_EQ(c.metrics.size(), 1U);
  ASSERT_EQ(c.checks.size(), 1U);
  EXPECT_EQ(c.checks[0].name, "bad");
  EXPECT_EQ(outcome(c), Status::fail) << "a failed check without a finding";
  EXPECT_EQ(assess(summary).exit_code, assess(all).exit_code);
  EXPECT_TRUE(summary.complete);
}

TEST(JournalSummary, LinesThatAreLeftOutMustBeOneObjectInTheSequence) {
  const auto refusal_of = [](std::size_t line, const std::string& from, const std::string& to) -> std::string {
    const std::string text = journal_of_a_case([&](std::vector<std::string>& lines) {
      const std::size_t at = lines[line].find(from);
      ASSERT_NE(at, std::string::npos);
      lines[line].replace(at, from.size(), to);
    });
    try {
      (void)read_journal(Journal::write(text), wants_load);
    } catch (const JournalError& error) {
      return error.what();
    }
    return "was accepted";
  };
  EXPECT_EQ(refusal_of(4, "load", "xxxx"), "was accepted") << "another text";
  EXPECT_THAT(refusal_of(4, "}}", "}"), HasSubstr("events.jsonl:5: not an event: cut off"));
  EXPECT_THAT(refusal_of(4, "}}", "}}}"), HasSubstr("events.jsonl:5: not an event: invalid JSON"));
  EXPECT_THAT(refusal_of(5, "\"good\"", "\"good"), HasSubstr("not an event"));
  EXPECT_THAT(refusal_of(5, "good", std::string("g\0d", 3)), HasSubstr("events.jsonl:6: not an event"));
  EXPECT_THAT(refusal_of(2, "\"seq\":2", "\"seq\":3"), HasSubstr("events.jsonl:3: seq is 3, expected 2"));
  EXPECT_THAT(refusal_of(2, "\"seq\":2", "\"seq\":20"), HasSubstr("seq is 20, expected 2"));
  EXPECT_THAT(refusal_of(2, "{", "["), HasSubstr("not an event"));
}

TEST(JournalSummary, AnotherWritersOrderOfFieldsIsReadAsAWhole) {
  const std::string text = journal_of_a_case([](std::vector<std::string>& lines) {
    lines[2] = R"({"seq":2,"t":"2026-11-21T01:31:00.000Z","event":"phase","case":"a/one","name":"p"})";
  });
  EXPECT_EQ(read_journal(Journal::write(text), wants_load).suites[0].cases[0].last_phase, "p");
  EXPECT_EQ(read_journal(Journal::write(unchanged()), wants_load).suites[0].cases[0].last_phase, "") << "left out";
}

TEST(JournalSummary, ATornTailIsOne) {
  const std::string whole = unchanged();
  const std::string cut = whole.substr(0, whole.find("\"name\":\"good\""));
  EXPECT_TRUE(read_journal(Journal::write(cut), wants_load).torn_tail);
}

}  // namespace
}  // namespace reports
