// Bundles and `replay` as a user sees them: what a failing case leaves, what becomes of it when it is run again, and
// what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "harness/bundles.hpp"
#include "harness/suite.hpp"
#include "harness/tests/support/fake_run.hpp"
#include "reports/bundle.hpp"
#include "reports/schema.hpp"
#include "reports/tests/support/schema_validator.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::FakeRun;
using harness::tests::read_text;
using reports::Json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Replay : public testing::Test {
 protected:
  // A run of one case that fails.
  void run(const std::string& id, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--case", id, "--out", "run"});
    id_ = id;
    EXPECT_NE(fake(more), 0);
    ASSERT_TRUE(fs::exists(file())) << fake.err();
  }
  [[nodiscard]] fs::path folder(const std::string& id = "") const {
    return fake.run_folder() / "bundles" / harness::case_slug(id.empty() ? id_ : id);
  }
  [[nodiscard]] fs::path file() const { return folder() / "bundle.json"; }
  [[nodiscard]] Json bundle() const { return Json::parse(read_text(file())); }
  void write(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }
  // As somebody writes it who knows how a bundle is sealed.
  void write_sealed(const Json& json) const { write(harness::sealed(json)); }
  int replay(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"replay", "run"});
    return fake(more);
  }
  // Exit code, and what standard error says; nothing ran.
  void refuses(int code, const std::string& says, std::vector<std::string> more = {}) {
    fs::remove_all(fake.folder.path() / "out");
    EXPECT_EQ(replay(std::move(more)), code) << says;
    EXPECT_THAT(fake.err(), HasSubstr(says));
    EXPECT_THAT(fake.out(), Not(HasSubstr("replay: "))) << says;
    EXPECT_FALSE(fs::exists(fake.folder.path() / "out")) << says;
  }
  // The same with one value of the bundle changed.
  void refuses_with(const std::string& pointer, const Json& value, int code, const std::string& says) {
    const Json before = bundle();
    Json changed = before;
    changed[Json::json_pointer(pointer)] = value;
    write_sealed(changed);
    refuses(code, says);
    write_sealed(before);
  }

  FakeRun fake;
  std::string id_;
};

TEST_F(Replay, EveryFailingCaseLeavesABundleAndNoOtherDoes) {
  EXPECT_NE(fake({"--case", "sized/*", "--case", "bad/fails", "--case", "good/first", "--out", "run"}), 0);
  std::set<std::string> found, wanted;
  for (const auto& entry : fs::directory_iterator(fake.run_folder() / "bundles")) found.insert(entry.path().filename());
  for (const char* id :
       {"sized/wide", "sized/long[S=100]", "sized/several", "sized/fickle", "sized/saves", "bad/fails"})
    wanted.insert(harness::case_slug(id));
  EXPECT_EQ(found, wanted);
  const Json schema = Json::parse(reports::bundle_schema());
  const Json report = Json::parse(read_text(fake.run_folder() / "report.json"));
  int named = 0;
  for (const Json& suite : report["suites"])
    for (const Json& c : suite["cases"]) {
      EXPECT_EQ(c.contains("bundle"), wanted.contains(harness::case_slug(c["id"].get<std::string>()))) << c["id"];
      if (!c.contains("bundle")) continue;
      ++named;
      const fs::path place = fake.run_folder() / c["bundle"].get<std::string>();
      EXPECT_THAT(c["replay"].get<std::string>(), HasSubstr(" replay "));
      EXPECT_THAT(c["replay"].get<std::string>(), HasSubstr(place.string()));
      const Json made = Json::parse(read_text(place / "bundle.json"));
      EXPECT_THAT(reports::schema::violations(schema, made), IsEmpty()) << c["id"];
      EXPECT_EQ(made["case"]["id"], c["id"]);
      EXPECT_EQ(made["seal"], harness::seal_of(made));
    }
  EXPECT_EQ(named, 6);
  for (const char* text : {"report.md", "report.html"})
    EXPECT_THAT(read_text(fake.run_folder() / text), HasSubstr(" replay ")) << text;
  const Json crash = Json::parse(read_text(folder("sized/long[S=100]") / "bundle.json"));
  EXPECT_EQ(crash["signature"]["status"], "crash");
  EXPECT_EQ(crash["signature"]["code"], "NSA-X001");
  EXPECT_EQ(crash["signature"]["place"]["phase"], "S=#");
}

TEST_F(Replay, ABundleHoldsSettingsEnvironmentFaultsAndTheJournalOfItsCase) {
  setenv("OMP_NUM_THREADS", "3", 1);
  run("sized/saves", {"--inject", "leave-file", "--seed", "7", "--set", "fake.width=12"});
  unsetenv("OMP_NUM_THREADS");
  const Json json = bundle();
  EXPECT_EQ(json["seed"], 7);
  EXPECT_FALSE(json["settings"].contains("run.seed")) << "it stands there once";
  EXPECT_FALSE(json["settings"].contains("run.device"));
  EXPECT_EQ(json["faults"], Json::array({"leave-file"}));
  EXPECT_EQ(json["settings"]["fake.width"], Json({{"value", "12"}, {"origin", "--set"}}));
  EXPECT_FALSE(json["settings"].contains("fake.gate")) << "at its default";
  EXPECT_EQ(json["resolved"]["values"]["fake.width"], "12");
  EXPECT_EQ(json["environment"].value("OMP_NUM_THREADS", ""), "3");
  EXPECT_EQ(json["environment"].value("FAKE_FLAG", ""), "a b");
  EXPECT_TRUE(json["provenance"].contains("build"));
  EXPECT_TRUE(json["provenance"].contains("torch"));
  ASSERT_EQ(json["inputs"].size(), 1U) << "what lies outside of the run's folder is none";
  EXPECT_EQ(json["inputs"][0]["path"], "artifacts/input");
  EXPECT_EQ(json["inputs"][0]["bytes"], 8);
  EXPECT_EQ(json["inputs"][0]["hash"].get<std::string>().size(), 16U);
  const Json& events = json["journal"]["events"];
  EXPECT_EQ(events.size(), 200U);
  EXPECT_EQ(events.front()["event"], "case_begin");
  EXPECT_EQ(events.back()["event"], "case_end");
  EXPECT_EQ(json["journal"]["left_out"], 506 - 200);
  for (const Json& event : events) EXPECT_EQ(event["case"], "sized/saves");
  EXPECT_LT(fs::file_size(file()), 200U << 10) << "the large ones are left out, and said to be";
  EXPECT_THAT(json["findings"][0]["evidence"]["left_out"].get<std::string>(), HasSubstr("bytes"));
}

// One of an earlier version has them twice.
TEST_F(Replay, ASeedThatStandsTwiceIsTheSame) {
  run("bad/fails");
  Json json = bundle();
  json["settings"]["run.seed"] = {{"value", "42"}, {"origin", "--seed"}};
  write_sealed(json);
  EXPECT_EQ(replay(), 1) << fake.err();
  json["settings"]["run.seed"]["value"] = "7";
  write_sealed(json);
  refuses(2, "settings: run.seed is '7', and the bundle's own is '42'");
}

// Where the run's own process is what crashes.
TEST_F(Replay, ACrashIsTheSameFailureWithoutWorkers) {
  run("bad/segv");
  EXPECT_EQ(bundle()["signature"]["place"]["phase"], "before the fall");
  EXPECT_EQ(replay({"--set", "run.isolation=none"}), 1) << fake.out();
  EXPECT_THAT(fake.out(), EndsWith("replay: the same failure\n"));
}

TEST_F(Replay, ManyFailuresHaveABoundedNumberOfBundles) {
  std::string lengths = "20";
  for (int n = 21; n < 60; ++n) lengths += "," + std::to_string(n);
  EXPECT_NE(fake({"--case", "sized/long*", "--set", "sized.lengths=" + lengths, "--out", "run"}), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(fake.run_folder() / "bundles"), {}), 32);
  EXPECT_THAT(fake.err(), HasSubstr("note: 40 cases failed; the first 32 have a bundle in "));
}

TEST_F(Replay, ABundleThatCannotBeWrittenIsALossThatIsTold) {
  fs::create_directories(fake.folder.path() / "elsewhere");
  run("sized/wide");
  fs::remove_all(fake.run_folder() / "bundles");
  fs::create_directory_symlink("../elsewhere", fake.run_folder() / "bundles");
  EXPECT_EQ(fake({"report", "run"}), 4);
  EXPECT_THAT(fake.err(), HasSubstr("bundles: cannot be written: it is a link, which is not followed"));
  EXPECT_TRUE(fs::is_empty(fake.folder.path() / "elsewhere"));
  EXPECT_THAT(read_text(fake.run_folder() / "report.json"), HasSubstr("NSA-X009"));
}

TEST_F(Replay, ReportWritesTheBundlesOfAnOldRun) {
  run("sized/wide");
  const std::string before = read_text(file());
  fs::remove_all(fake.run_folder() / "bundles");
  refuses(2, "holds no bundle: no case of it failed, or an earlier version wrote it (`report run` writes its bundles)");
  EXPECT_EQ(fake({"report", "run"}), 1);
  EXPECT_EQ(read_text(file()), before);
}

TEST_F(Replay, TheSameFailureIs1AndSaysWhatDiffers) {
  run("sized/wide");
  Json json = bundle();
  json["provenance"]["build"]["build_id"] = "another";
  write_sealed(json);
  EXPECT_EQ(replay({"--out", "again"}), 1) << fake.err();
  EXPECT_THAT(fake.out(),
              AllOf(HasSubstr("differs: build.build_id: another there, 0123456789abcdef here\n"),
                    HasSubstr("differs: environment FAKE_FLAG: a b there, not set here: set for the replay\n"),
                    HasSubstr("here:    fail, FAKE-001 (block), stage layers.#.out, row 63\n"),
                    EndsWith("replay: the same failure\n")));
  EXPECT_TRUE(fs::exists(fake.folder.path() / "again/run/report.md"));
  EXPECT_EQ(replay({"--quiet", "--out", "quiet"}), 1);
  EXPECT_EQ(fake.out(), "replay: the same failure\n");
}

TEST_F(Replay, ARunAFolderAndAFileAreTheSameBundle) {
  run("sized/wide");
  EXPECT_EQ(fake({"replay", folder().string()}), 1);
  EXPECT_EQ(fake({"replay", file().string(), "--case", "sized/wide"}), 1);
  EXPECT_EQ(fake({"replay", file().string(), "--case", "sized/fickle"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("is the bundle of sized/wide"));
}

TEST_F(Replay, OfARunWithSeveralTheCaseIsNamed) {
  EXPECT_NE(fake({"--case", "sized/*", "--out", "run"}), 0);
  refuses(2, "run has several bundles; name one, or its case: --case 'sized/");
  refuses(2, "--case: run has no bundle of 'sized/none'; it has those of sized/fickle, sized/long[S=100], sized/saves",
          {"--case", "sized/none"});
  EXPECT_EQ(replay({"--case", "sized/long[S=100]"}), 1) << fake.err();
  EXPECT_THAT(fake.out(), HasSubstr("here:    crash, NSA-X001 (block)"));
}

TEST_F(Replay, AnotherFailureIs8AndNoFailureIs0) {
  fake.folder.write("fickle", "first");
  run("sized/fickle");
  fake.folder.write("fickle", "second");
  EXPECT_EQ(replay(), 8);
  EXPECT_THAT(fake.out(), AllOf(HasSubstr("there:   fail, FAKE-001 (block), stage first\n"),
                                HasSubstr("here:    fail, FAKE-001 (block), stage second\n"),
                                EndsWith("replay: another failure\n")));
  fake.folder.write("fickle", "cannot");
  EXPECT_EQ(replay(), 8);
  EXPECT_THAT(fake.out(),
              AllOf(HasSubstr("here:    inconclusive: the machine is busy\n"), EndsWith("replay: cannot tell here\n")));
  EXPECT_EQ(replay({"--minimize"}), 8) << "there is nothing to minimise";
  EXPECT_THAT(fake.out(), HasSubstr("nothing is minimised but the same failure\n"));
  fake.folder.write("fickle", "good");
  EXPECT_EQ(replay(), 0);
  EXPECT_THAT(fake.out(), AllOf(HasSubstr("here:    pass\n"), EndsWith("replay: does not fail here\n")));
}

TEST_F(Replay, TheEnvironmentIsTheBundlesAndNotThisOne) {
  setenv("FAKE_BREAKS", "1", 1);
  run("sized/obeys_a_variable");
  unsetenv("FAKE_BREAKS");
  EXPECT_EQ(replay(), 1) << fake.err();
  Json json = bundle();
  json["environment"].erase("FAKE_BREAKS");
  write_sealed(json);
  setenv("FAKE_BREAKS", "1", 1);
  EXPECT_EQ(replay(), 0);
  EXPECT_THAT(fake.out(), HasSubstr("differs: environment FAKE_BREAKS: not set there, 1 here: unset for the replay\n"));
  unsetenv("FAKE_BREAKS");
}

TEST_F(Replay, WhatAFileSaidTravelsAsValues) {
  fake.folder.write("width", "30");
  run("sized/wide", {"--set", "fake.file=width"});
  EXPECT_EQ(replay(), 1);
  EXPECT_THAT(fake.out(), HasSubstr("row 29\n"));
  fake.folder.write("width", "3");  // another content now
  EXPECT_EQ(replay(), 1);
  EXPECT_THAT(fake.out(), HasSubstr("row 29\n"));
  fs::remove(fake.folder.path() / "width");  // and none
  EXPECT_EQ(replay(), 1) << fake.err();
  EXPECT_THAT(fake.out(), AllOf(HasSubstr("row 29\n"), HasSubstr("width: cannot be used here (")));
}

TEST_F(Replay, ABundleOfAGpuCannotRunWithoutOne) {
  run("sized/wide");
  Json json = bundle();
  json["device"] = "cuda";
  write_sealed(json);
  EXPECT_EQ(replay(), 4);
  EXPECT_THAT(fake.out(),
              HasSubstr("replay: cannot run here: it failed on a GPU, and none is usable here: there is no GPU "
                        "in a test\n"));
  EXPECT_FALSE(fs::exists(fake.folder.path() / "out"));
}

TEST_F(Replay, NothingThatABundleNamesIsExecuted) {
  run("sized/wide", {"--set", "fake.tool=./mine"});
  refuses(2,
          "settings: fake.tool is './mine', and nothing that a bundle names is executed; where that is what you want, "
          "say so: --set fake.tool=./mine");
  EXPECT_EQ(replay({"--set", "fake.tool=./mine"}), 1) << fake.err();
  refuses(2, "--set: fake.width: a replay takes its settings from the bundle",
          {"--set", "fake.width=5", "--out", "nowhere"});
  for (const char* name : {"PATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "FAKE_X;Y", "FAKE_\n", ""})
    refuses_with("/environment", {{name, "x"}}, 2, "environment: ");
}

TEST_F(Replay, WhatIsDamagedOrForeignIsRefused) {
  run("sized/wide");
  const std::string whole = read_text(file());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole.size() / 3, whole.size() - 3}) {
    write(whole.substr(0, size));
    refuses(2, "bundle.json: ");
  }
  write("[1, 2]");
  refuses(2, "bundle.json: no bundle: not a JSON object");
  write(std::string(2000, '['));
  refuses(2, "no bundle: brackets nest too deep");
  write(std::string(5 << 20, ' ') + whole);
  refuses(2, "longer than 4 MiB: no bundle");
  write(read_text(fake.run_folder() / "report.json"));
  refuses(2, "schema is 'nsa-validate/report', allowed: nsa-validate/bundle");
  std::string edited = whole;
  edited.replace(edited.find("\"seed\": 42"), 10, "\"seed\": 43");
  write(edited);
  refuses(2, "it was damaged or edited");
  edited = whole;
  edited.replace(edited.find("\"seal\": \"") + 9, 4, "0000");
  write(edited);
  refuses(2, "it was damaged or edited");
  write(whole);
  EXPECT_EQ(replay(), 1) << "as it was";
}

TEST_F(Replay, EachValueIsLookedAt) {
  run("sized/wide");
  refuses_with("/schema_version", "2.0.0", 11, "the bundle has schema version 2.0.0, this program reads 1.x");
  refuses_with("/schema_version", 1, 2, "schema_version is ''");
  refuses_with("/signature/place", {{"op", "\x1b[2J\nreplay: does not fail here"}}, 2,
               "signature: a control character");
  refuses_with("/environment", {{"FAKE_FLAG", std::string("1\0", 2)}}, 2, "environment: a control character");
  refuses_with("/program/name", "other-program", 2, "is a bundle of other-program, not of fake-program");
  refuses_with("/case/id", "sized/wider", 2, "cannot be repeated here: --case: no case 'sized/wider'; did you mean");
  refuses_with("/case/id", "good/first", 2, "case.id: 'good/first' is none of the suite sized");
  refuses_with("/case/id", "sized/*", 2, "cannot be repeated here: 'sized/*' is the id of no case");
  refuses_with("/case/id", "sized/wid?", 2, "cannot be repeated here: 'sized/wid?' is the id of no case");
  refuses_with("/case/suite", "none", 2, "case.suite: this program knows no 'none'");
  refuses_with("/device", "tpu", 2, "field 'device' is \"tpu\", allowed: cpu or cuda");
  refuses_with("/seed", -1, 2, "field 'seed' is -1, allowed: an integer >= 0");
  refuses_with("/seed", "42", 2, "field 'seed'");
  refuses_with("/faults", {"no-such-fault"}, 2, "faults: this program knows no 'no-such-fault'");
  refuses_with("/faults", {"--set"}, 2, "faults: this program knows no '--set'");
  refuses_with("/settings", {{"fake.widht", {{"value", "3"}, {"origin", "x"}}}}, 2,
               "settings: this program knows no 'fake.widht'; did you mean 'fake.width'?");
  refuses_with("/settings", {{"fake.width", {{"value", "wide"}, {"origin", "x"}}}}, 2,
               "settings: the bundle: fake.width is");
  refuses_with("/settings", {{"fake.width", 3}}, 2, "settings: 'fake.width' is no object");
  refuses_with("/settings", {{"fake.gate", {{"value", "invalid"}, {"origin", "x"}}}}, 2,
               "fake.gate cannot be 'invalid'");
  refuses_with("/resolved/values", {{"fake.unknown", "1"}}, 2, "resolved.values: this program knows no 'fake.unknown'");
  refuses_with("/signature/status", "pass", 2, "signature: field 'status' is \"pass\"");
  refuses_with("/signature/place", {{"op", 3}}, 2, "signature: place: field 'op' is 3");
  refuses_with("/run_this", "rm", 2, "key 'run_this' is unknown");
  refuses_with("/case/command", "rm", 2, "case: key 'command' is unknown");
  for (const char* path : {"../../etc/passwd", "/etc/passwd", "artifacts/../../x", "", "a//b"})
    refuses_with("/inputs", {{{"path", path}, {"hash", ""}, {"bytes", 1}}}, 2, "inputs: field 'path'");
  EXPECT_EQ(replay(), 1) << "as it was";
}

TEST_F(Replay, ALinkAFolderAndAPipeAreNoBundles) {
  run("sized/wide");
  fs::rename(file(), fake.folder.path() / "moved.json");
  fs::create_symlink(fake.folder.path() / "moved.json", file());
  refuses(2, "bundle.json: is a link, which is not followed");
  fs::remove(file());
  fs::create_directory(file());
  refuses(2, "bundle.json: is no regular file, and no bundle");
  EXPECT_EQ(fake({"replay", "nowhere"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("nowhere: cannot be read: No such file or directory"));
  EXPECT_EQ(fake({"replay", "run", "run"}), 2);
  EXPECT_EQ(fake({"replay"}), 2);
  EXPECT_EQ(fake({"replay", "moved.json", "--inject", "leave-file"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("option '--inject' has no meaning for the verb 'replay'"));
  EXPECT_EQ(fake({"replay", "moved.json", "--out", "run"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("is not an empty folder"));
  EXPECT_EQ(fake({"replay", "moved.json"}), 1);
}

TEST_F(Replay, MinimizeShrinksWhatTheCaseObeysAndLeavesASmallerBundle) {
  run("sized/wide");
  EXPECT_EQ(replay({"--minimize"}), 1) << fake.err();
  EXPECT_THAT(fake.out(), testing::ContainsRegex("fake.width +64 +18\n"));
  EXPECT_THAT(fake.out(), HasSubstr("smaller: FAKE_FLAG='a b' "));
  EXPECT_THAT(fake.out(), HasSubstr("--set fake.width=18"));
  EXPECT_THAT(fake.err(), HasSubstr("try 1: "));
  EXPECT_THAT(fake.err(), Not(HasSubstr("-> 16"))) << "what the program refuses is not run";
  const fs::path smaller = folder() / "minimised.json";
  const Json json = Json::parse(read_text(smaller));
  EXPECT_THAT(reports::schema::violations(Json::parse(reports::bundle_schema()), json), IsEmpty());
  EXPECT_EQ(json["minimised"]["from"], bundle()["seal"]);
  EXPECT_EQ(json["minimised"]["sizes"][0], Json({{"setting", "fake.width"}, {"before", "64"}, {"after", "18"}}));
  EXPECT_EQ(fake({"replay", smaller.string()}), 1) << fake.err();
  EXPECT_THAT(fake.out(), HasSubstr("row 17\n"));
  EXPECT_EQ(fake({"--case", "sized/wide", "--out", "run", "--force"}), 1) << fake.err();
  EXPECT_FALSE(fs::exists(smaller)) << "of the run that --force replaces";
  EXPECT_THAT(fake.err(), Not(HasSubstr("is not of the run")));
}

TEST_F(Replay, MinimizeTakesALengthThatIsTheCasesParameter) {
  run("sized/long[S=100]");
  EXPECT_EQ(replay({"--minimize"}), 1) << fake.err();
  EXPECT_THAT(fake.out(), testing::ContainsRegex("sized.lengths +.100. +.20.\n"));
  EXPECT_THAT(fake.out(), HasSubstr("--case 'sized/long[S=20]'"));
  EXPECT_THAT(fake.out(), HasSubstr("--set 'sized.lengths=[20]'"));
}

TEST_F(Replay, MinimizeKeepsTheTwoElementsThatAreNeeded) {
  run("sized/several");
  EXPECT_EQ(replay({"--minimize"}), 1) << fake.err();
  EXPECT_THAT(fake.out(), testing::ContainsRegex("sized.lengths +.5, 7, 100. +.7, 8.\n"));
}

TEST_F(Replay, MinimizeIsBoundedAndAnInterruptLeavesTheBest) {
  run("sized/wide");
  EXPECT_EQ(replay({"--minimize", "--limit", "0"}), 2);
  EXPECT_EQ(replay({"--minimize", "--limit", "nan"}), 2);
  EXPECT_EQ(replay({"--limit", "5"}), 2) << "of --minimize";
  EXPECT_THAT(fake.err(), HasSubstr("--limit requires --minimize"));
  const pid_t pid = fake.start({"replay", "run", "--minimize"});
  for (int i = 0; i < 2000 && fake.err().find("kept") == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kill(pid, SIGINT);
  EXPECT_EQ(fake.wait(pid), 130) << fake.err();
  EXPECT_THAT(fake.out(), HasSubstr("smaller: "));
  EXPECT_THAT(fake.out(), HasSubstr("the search was cut short by a signal"));
  EXPECT_THAT(fake.out(), EndsWith("replay: interrupted\n"));
  EXPECT_TRUE(fs::exists(folder() / "minimised.json"));
}

// Processes whose command line has this word.
int processes_with(const std::string& word) {
  int found = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string words = read_text(entry->path() / "cmdline");
    found += words.find(word) != std::string::npos ? 1 : 0;
  }
  return found;
}

TEST_F(Replay, WhatARunOfAKilledReplayWasDoingEndsWithIt) {
  run("stuck/sleeps", {"--hang", "1"});
  const std::string out = (fake.folder.path() / "again").string();
  const pid_t pid = fake.start({"replay", "run", "--out", out, "--hang", "60"});
  const auto until = [&](int count) {  // between fork and exec there is one more
    int seen = processes_with(out);
    for (int i = 0; i < 2000 && seen != count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      seen = processes_with(out);
    }
    return seen;
  };
  ASSERT_EQ(until(2), 2) << "the replay, and the run that it started: " << fake.err();
  kill(pid, SIGKILL);
  fake.wait(pid);
  EXPECT_EQ(until(0), 0);
}

TEST_F(Replay, AMinimisedBundleThatCannotBeWrittenIsNoSuccess) {
  run("sized/wide");
  fs::create_directory(folder() / "minimised.json.tmp");
  EXPECT_EQ(replay({"--minimize"}), 4);
  EXPECT_THAT(fake.err(), HasSubstr("minimised.json: cannot be written"));
  EXPECT_THAT(fake.out(), HasSubstr("smaller: ")) << "the command was told before";
}

}  // namespace
