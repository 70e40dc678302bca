// Verbs, exit codes and bad input, as a script sees them.
#include "harness/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <sstream>

#include "harness/tests/support/fake_run.hpp"
#include "reports/json.hpp"
#include "reports/status.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::FakeRun;
using harness::tests::read_text;
using testing::HasSubstr;

struct Refusal {
  std::vector<std::string> words;
  int code;
  const char* says;
};

TEST(ProgramTest, BadInputIsOneClearErrorWithItsExitCode) {
  const std::vector<Refusal> refusals{
      {{"--suite", "god"}, 2, "unknown suite or level 'god'; did you mean 'good'?"},
      {{"--suite", "smoke,good"}, 2, "'smoke' is a level and stands alone"},
      {{"--suite", "full"}, 2, "unknown suite or level 'full'"},
      {{"--suite", "good", "--level", "soak"}, 2, "unknown level 'soak' (levels: smoke, standard)"},
      {{"--case", "good/frst"}, 2, "did you mean 'good/first'?"},
      {{"--set", "fake.lenghts=[1]"}, 2, "did you mean 'fake.lengths'?"},
      {{"--set", "fake.lengths=x"}, 2, "--set: fake.lengths is 'x', allowed is a list of integers"},
      {{"--config", "none.yaml"}, 2, "none.yaml: no such configuration file"},
      {{"--inject", "leave-fil"}, 2, "did you mean 'leave-file'?"},
      {{"--gate", "invalid"}, 2, "fake.gate cannot be 'invalid'"},
      {{"--isolation", "some"}, 2, "--isolation: run.isolation is 'some', allowed is one of suite, case, none"},
      {{"--device", "tpu"}, 2, "--device: run.device is 'tpu', allowed is one of auto, cpu, cuda"},
      {{"--seed", "-1"}, 2, "--seed: run.seed is '-1'"},
      {{"--suit", "x"}, 2, "did you mean '--suite'?"},
      {{"explain", "NSA-X0001"}, 2, "did you mean 'NSA-X001'?"},
      {{"describe", "goood"}, 2, "did you mean 'good'?"},
      {{"report", "nowhere"}, 2, "nowhere/events.jsonl"},
      {{"--suite", "good", "--require-cuda"}, 4, "--require-cuda: no usable GPU: there is no GPU in a test"},
      {{"--suite", "good", "--device", "cuda"}, 4, "--device: run.device is cuda: no usable GPU"},
      {{"--suite", ""}, 3, "the selection is empty"},
      {{"--suite", "good", "--exclude", "*"}, 3, "the selection is empty"},
      {{"--suite", "good", "--out", ""}, 2, "--out: '' names no folder"},
      {{"dry-run", "--out", ""}, 2, "--out: '' names no folder"},
      {{"run", "run"}, 2, "the verb is 'run' already"},
      {{"--suite", "good", "--fail-fast=3"}, 2, "--fail-fast takes no value"},
      {{"__worker"}, 2, "started by the program itself"},
  };
  for (const Refusal& refusal : refusals) {
    FakeRun fake;
    EXPECT_EQ(fake(refusal.words), refusal.code) << refusal.says;
    EXPECT_THAT(fake.err(), HasSubstr(refusal.says));
    EXPECT_FALSE(fs::exists(fake.folder.path() / "out")) << "a refused run leaves no folder";
  }
}

TEST(ProgramTest, VerbsThatLook) {
  FakeRun fake;
  EXPECT_EQ(fake({"--version"}), 0);
  EXPECT_EQ(fake.out(), "fake-program 1.2.3 (build 0123456789abcdef)\n");
  EXPECT_EQ(fake({"list"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("good/length[S=1]"));
  EXPECT_THAT(fake.out(), HasSubstr("good/slow")) << "a list shows every level";
  EXPECT_EQ(fake({"list", "--json", "--suite", "good"}), 0);
  EXPECT_EQ(reports::Json::parse(fake.out())["suites"][0]["cases"].size(), 6U);
  EXPECT_EQ(fake({"list", "--faults", "--json"}), 0);
  EXPECT_EQ(reports::Json::parse(fake.out())["faults"][0]["name"], "leave-file");
  EXPECT_EQ(fake({"list", "--settings"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("run.hang_s"));
  EXPECT_EQ(fake({"list", "--codes"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("FAKE-001"));
  EXPECT_EQ(fake({"explain", "NSA-X002", "FAKE-001"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("next step"));
  EXPECT_EQ(fake({"describe", "good/first"}), 0);
  EXPECT_EQ(fake({"describe", "good"}), 0);
  EXPECT_EQ(fake({"schema"}), 0);
  EXPECT_TRUE(reports::Json::parse(fake.out()).is_object());
  EXPECT_EQ(fake({"doctor"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("there is no GPU in a test"));
  EXPECT_EQ(fake({"doctor", "--require-cuda"}), 4);
}

TEST(ProgramTest, DoctorSaysWhatIsWrongAndWhatToDo) {
  FakeRun fake;
  EXPECT_EQ(fake({"doctor"}), 0);
  EXPECT_THAT(fake.out(), testing::ContainsRegex("ok +the fake is well\n"));
  EXPECT_THAT(fake.out(), testing::ContainsRegex("note +FAKE-002: a small thing\n +-> a next step\n"));
  EXPECT_THAT(fake.out(), testing::ContainsRegex("Table\n +build +0123456789abcdef\n"));
  EXPECT_THAT(fake.out(), testing::EndsWith("\ndoctor: nothing is wrong\n"));

  EXPECT_EQ(fake({"doctor", "--gate", "sick"}), 4);
  EXPECT_THAT(fake.out(), HasSubstr("PROBLEM  FAKE-001: it hurts\n         -> a next step\n"));
  EXPECT_THAT(fake.out(), testing::EndsWith("\ndoctor: 1 problem(s): FAKE-001\n"));

  EXPECT_EQ(fake({"doctor", "--gate", "invalid"}), 2) << "a configuration that every run would refuse";
  EXPECT_THAT(fake.out(), HasSubstr("fake.gate cannot be 'invalid'"));
}

TEST(ProgramTest, DoctorWorksWhereWorkersDoNotStart) {
  FakeRun fake;
  setenv("FAKE_WORKER_DOES_NOT_START", "1", 1);
  EXPECT_EQ(fake({"doctor"}), 4);
  unsetenv("FAKE_WORKER_DOES_NOT_START");
  EXPECT_THAT(fake.out(), HasSubstr("workers do not start"));
  EXPECT_THAT(fake.out(), HasSubstr("cannot open shared object file")) << "the reason that the worker gave";
}

TEST(ProgramTest, DryRunAndShowConfigDoNothing) {
  FakeRun fake;
  const auto config = fake.folder.write("c.yaml", "fake:\n  lengths: [7]\n");
  EXPECT_EQ(fake({"dry-run", "--suite", "good", "--config", "c.yaml"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("good/length[S=7]"));
  EXPECT_EQ(fake({"--dry-run", "--suite", ""}), 3);
  EXPECT_EQ(fake({"--show-config", "--config", "c.yaml", "--hang", "3"}), 0);
  EXPECT_THAT(fake.out(), testing::ContainsRegex("fake.lengths +\\[7\\] +c.yaml:2"));
  EXPECT_THAT(fake.out(), testing::ContainsRegex("run.hang_s +3 +--hang"));
  EXPECT_FALSE(fs::exists(fake.folder.path() / "out"));
}

TEST(ProgramTest, AGuardThatIsLeftOutByNameIsToldAsNotTested) {
  const std::string told = "guarding/looks: left out by name, although fake.guarded is set (--set)";
  for (const auto& [option, word] : {std::pair("--exclude", "guarding/looks"), std::pair("--case", "good/first")}) {
    FakeRun fake;
    EXPECT_EQ(fake({"--suite", "good", option, word, "--set", "fake.guarded=x", "--out", "run"}), 0) << fake.err();
    EXPECT_THAT(read_text(fake.run_folder() / "report.json"), HasSubstr('"' + told + '"'));
    EXPECT_EQ(fake({"dry-run", "--suite", "good", option, word, "--set", "fake.guarded=x"}), 0);
    EXPECT_THAT(fake.out(), HasSubstr("not planned: " + told + "\n"));
  }
  FakeRun fake;
  EXPECT_EQ(fake({"dry-run", "--suite", "good", "--set", "fake.guarded=x"}), 0);
  EXPECT_THAT(fake.out(), testing::AllOf(HasSubstr("guarding/looks"), testing::Not(HasSubstr("not planned"))));
  EXPECT_EQ(fake({"dry-run", "--suite", "good"}), 0);
  EXPECT_THAT(fake.out(), testing::Not(HasSubstr("guarding")));
}

TEST(ProgramTest, OutputFolderRules) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 0);
  EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("--force"));
  EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--force"}), 0);
  EXPECT_EQ(fake({"--suite", "good"}), 0);
  EXPECT_TRUE(fs::exists(fake.folder.path() / "out/latest/report.json"));
}

TEST(ProgramTest, QuietPrintsTheSummaryAlone) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--quiet"}), 0);
  EXPECT_EQ(fake.out(), "summary: 3 passed, 0 failed, 1 skipped\n");
  EXPECT_EQ(fake.err(), "");
}

TEST(ProgramTest, SummaryFileGetsTheMarkdownReport) {
  FakeRun fake;
  fake.folder.write("summary.md", "before\n");
  EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--summary-file", "summary.md"}), 0);
  EXPECT_EQ(read_text(fake.folder.path() / "summary.md"), "before\n" + read_text(fake.run_folder() / "report.md"));
}

TEST(ProgramTest, ReportTakesTheSamePathAsTheRun) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "bad", "--out", "run"}), 5);
  const std::string json = read_text(fake.run_folder() / "report.json");
  fs::remove(fake.run_folder() / "report.json");
  fs::remove_all(fake.run_folder() / "suites");
  EXPECT_EQ(fake({"report", "run"}), 5);
  EXPECT_EQ(read_text(fake.run_folder() / "report.json"), json);
  EXPECT_TRUE(fs::exists(fake.run_folder() / "suites/bad.json"));
}

TEST(ProgramTest, ReportOfAGoodRunIsReadyAndOfATruncatedOneIsNot) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 0);
  EXPECT_EQ(fake({"report", "run"}), 0);
  const std::string whole = read_text(fake.run_folder() / "events.jsonl");
  for (const std::size_t cut : {whole.size() - 20, whole.size() / 2, whole.find('\n') + 1}) {
    fake.folder.write("run/events.jsonl", whole.substr(0, cut));
    EXPECT_NE(fake({"report", "run"}), 0) << cut;
    EXPECT_THAT(fake.out(), HasSubstr("summary: ")) << cut;
  }
  fake.folder.write("run/events.jsonl", whole.substr(0, whole.find('\n') + 1) + "garbage\n");
  EXPECT_EQ(fake({"report", "run"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("run/events.jsonl:2: "));
  fake.folder.write("run/events.jsonl", "");
  EXPECT_EQ(fake({"report", "run"}), 2);
}

TEST(ProgramTest, ProvenanceIsInTheReport) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--seed", "7", "--out", "run"}), 0);
  const reports::Run run = fake.journal();
  EXPECT_EQ(run.master_seed, 7U);
  EXPECT_EQ(run.provenance["settings"]["values"]["run.seed"]["origin"], "--seed");
  EXPECT_EQ(run.provenance["build"]["build_id"], "0123456789abcdef");
  EXPECT_EQ(run.provenance["torch"]["version"], "none");
  EXPECT_EQ(run.provenance["selection"]["partial"], true);
  EXPECT_EQ(run.provenance["device"]["why_not"], "there is no GPU in a test");
}

// It is written by hand: the same codes, in the order in which one goes before another.
TEST(ProgramTest, TheReadmesExitCodesAreThose) {
  std::vector<int> expected, found;
  for (const auto& row : reports::exit_code_table()) expected.push_back(static_cast<int>(row.code));
  const std::regex row(R"re(^\| (\d+)(?:, (\d+))? \|.*)re");
  std::istringstream readme(read_text(fs::path(HARNESS_SOURCE_DIR) / "README.md"));
  for (std::string line; std::getline(readme, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    found.push_back(std::stoi(match[1]));
    if (match[2].matched) found.push_back(std::stoi(match[2]));
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
