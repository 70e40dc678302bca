#include "harness/case_feed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/tests/support/fake_run.hpp"

namespace {

using harness::CaseFeed;
using harness::Json;
using harness::ProtocolViolation;
using reports::Status;

class Feed : public testing::Test {
 protected:
  Feed()
      : cases(2),
        journal(folder.path()),
        progress({true, false, false, 0}),
        codes({}),
        recorder(parts()),
        feed(recorder, "s", cases, 42, 1) {
    cases[0].id = "s/a";
    cases[1].id = "s/b";
    Json planned = Json::array();
    for (const auto& c : cases) planned.push_back({{"id", c.id}, {"hash", "h"}, {"name", "n"}, {"level", "smoke"}});
    journal.append({{"event", "run_begin"},
                    {"schema", reports::kEventSchema},
                    {"schema_version", reports::kEventSchemaVersion},
                    {"run", {{"id", "r"}, {"level", "smoke"}, {"device", "cpu"}, {"master_seed", 42}}},
                    {"plan", {{"suites", {{{"name", "s"}, {"cases", planned}}}}}}});
  }
  harness::Recorder::Parts parts() {
    return {journal, progress, codes, [](const std::string& id) { return "repeat " + id; }, false};
  }
  void say(const char* kind, const char* id, Json fields = Json::object()) {
    Json event = {{"event", kind}, {"case", id}};
    event.update(fields);
    feed.accept(event);
  }
  void end(const char* id, const char* status, const char* code = "") {
    say("case_end", id, {{"status", status}, {"reason_code", code}, {"reason", ""}});
  }
  reports::Case read(std::size_t i) { return reports::read_journal(folder.path() / "events.jsonl").suites[0].cases[i]; }

  harness::tests::TempFolder folder;
  std::vector<harness::PlannedCase> cases;
  harness::JournalWriter journal;
  harness::Progress progress;
  harness::CodeTable codes;
  harness::Recorder recorder;
  CaseFeed feed;
};

TEST_F(Feed, AGoodCaseIsRecorded) {
  say("case_begin", "s/a");
  say("phase", "s/a", {{"name", "one"}});
  EXPECT_EQ(recorder.phase(), "one");
  end("s/a", "pass");
  EXPECT_EQ(feed.ended(), 1U);
  EXPECT_EQ(read(0).status, Status::pass);
  EXPECT_EQ(read(0).seed, harness::derive_seed(42, "s/a", "case", 0));
}

TEST_F(Feed, AFindingOverrulesAPassAndASkip) {
  const Json bad = {{"code", "NSA-X004"}, {"message", "m"}};
  say("case_begin", "s/a");
  say("finding", "s/a", bad);
  end("s/a", "pass");
  say("case_begin", "s/b");
  say("finding", "s/b", bad);
  end("s/b", "skip", "unsupported");
  EXPECT_EQ(read(0).status, Status::fail);
  EXPECT_EQ(read(1).status, Status::fail);
  EXPECT_EQ(read(1).findings[0].repro, "repeat s/b");
  EXPECT_FALSE(read(1).findings[0].cause.empty());
}

TEST_F(Feed, ACaseMayBeginAnewOnceAndWhatWasMeasuredIsForgotten) {
  const Json retry = {{"reason", "the machine was busy"}};
  EXPECT_THROW(say("retry", "s/a", retry), ProtocolViolation) << "nothing has begun";
  say("case_begin", "s/a");
  say("phase", "s/a", {{"name", "one"}});
  say("metric", "s/a", {{"name", "speed"}, {"value", 1}});
  say("fact", "s/a", {{"key", "table"}, {"value", 1}});
  say("artifact", "s/a", {{"path", "a.yaml"}});
  say("check", "s/a",
      {{"name", "fast"}, {"pass", false}, {"measured", 1}, {"comparator", ">="}, {"bound", 2}, {"unit", ""}});
  say("finding", "s/a", {{"code", "NSA-X009"}, {"message", "a warning"}});
  EXPECT_THROW(say("retry", "s/a"), ProtocolViolation) << "without a reason";
  say("retry", "s/a", retry);
  EXPECT_EQ(recorder.phase(), "");
  say("metric", "s/a", {{"name", "speed"}, {"value", 3}});
  EXPECT_THROW(say("retry", "s/a", retry), ProtocolViolation) << "it would never end";
  end("s/a", "pass");
  const reports::Case c = read(0);
  ASSERT_EQ(c.metrics.size(), 1U);
  EXPECT_EQ(c.metrics[0].value, 3);
  EXPECT_TRUE(c.checks.empty() && c.facts.empty() && c.artifacts.empty());
  EXPECT_EQ(c.findings.size(), 1U) << "what was found stays found";
  say("case_begin", "s/b");
  say("retry", "s/b", retry);
  end("s/b", "pass");
}

TEST_F(Feed, OnlyWhatIsItsTurnIsAccepted) {
  EXPECT_THROW(say("phase", "s/a", {{"name", "x"}}), ProtocolViolation) << "nothing has begun";
  EXPECT_THROW(say("case_begin", "s/b"), ProtocolViolation) << "not the first";
  say("case_begin", "s/a");
  EXPECT_THROW(say("case_begin", "s/b"), ProtocolViolation) << "the first has not ended";
  EXPECT_THROW(say("phase", "s/b", {{"name", "x"}}), ProtocolViolation) << "another case";
  EXPECT_THROW(end("s/b", "pass"), ProtocolViolation);
  EXPECT_THROW(say("run_end", "s/a"), ProtocolViolation) << "not a worker's word";
  EXPECT_THROW(feed.accept(Json{{"event", "phase"}, {"name", "x"}}), ProtocolViolation) << "no case";
  EXPECT_THROW(feed.accept(Json{{"case", "s/a"}}), ProtocolViolation) << "no kind";
  EXPECT_THROW(feed.accept(Json::array({1})), ProtocolViolation);
}

TEST_F(Feed, MalformedEventsAreViolations) {
  say("case_begin", "s/a");
  EXPECT_THROW(say("phase", "s/a"), ProtocolViolation);
  EXPECT_THROW(say("metric", "s/a", {{"name", 1}, {"value", 2}}), ProtocolViolation);
  EXPECT_THROW(say("finding", "s/a", {{"code", "NOPE"}, {"message", "m"}}), ProtocolViolation);
  EXPECT_THROW(say("finding", "s/a", {{"code", "NSA-X001"}, {"message", "m"}, {"severity", "awful"}}),
               ProtocolViolation);
  EXPECT_THROW(end("s/a", "blocked"), ProtocolViolation) << "not for a worker to say";
  EXPECT_THROW(end("s/a", "fine"), ProtocolViolation);
  EXPECT_THROW(end("s/a", "skip"), ProtocolViolation) << "a skip needs a reason code";
  end("s/a", "pass");
  EXPECT_EQ(read(0).status, Status::pass) << "what was refused left no trace";
}

TEST_F(Feed, BlameFallsOnTheCaseInFlightOrTheNext) {
  const harness::FindingNote note{"NSA-X001", std::nullopt, "died", Json::object()};
  say("case_begin", "s/a");
  feed.blame(note, {Status::crash, "signal", "died"});
  feed.blame(note, {Status::crash, "signal", "died"});
  EXPECT_TRUE(feed.finished());
  EXPECT_EQ(read(0).status, Status::crash);
  EXPECT_EQ(read(1).status, Status::crash);
  feed.blame(note, {Status::crash, "signal", "died"});  // nobody is left: a finding of the run
  EXPECT_EQ(reports::read_journal(folder.path() / "events.jsonl").findings.size(), 1U);
}

TEST_F(Feed, SkipsForWantOfHardwareAreNotMissingEvidence) {
  say("case_begin", "s/a");
  end("s/a", "skip", "unsupported");
  say("case_begin", "s/b");
  end("s/b", "skip", "felt_like_it");
  EXPECT_FALSE(read(0).required);
  EXPECT_TRUE(read(1).required);
}

}  // namespace
