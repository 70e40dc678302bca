// `merge`, and --out under a launcher, as a script sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "harness/fleet_folders.hpp"
#include "harness/tests/support/fake_run.hpp"
#include "reports/fleet.hpp"
#include "reports/json.hpp"
#include "reports/schema.hpp"
#include "reports/tests/support/schema_validator.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::FakeRun;
using harness::tests::read_text;
using reports::Json;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

// Variables of a launcher, for as long as it lives.
class Launched {
 public:
  explicit Launched(const std::map<std::string, std::string>& variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launched() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

// One real run; the hosts of a fleet are copies of its journal under other names.
class MergeVerb : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(fake({"--suite", "good", "--out", "one"}), 0) << fake.err();
    journal = read_text(fake.folder.path() / "one/events.jsonl");
    const Json begin = Json::parse(journal.substr(0, journal.find('\n')));
    id_ = begin["run"]["id"];
    host_ = begin["provenance"]["host"]["hostname"];
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
  [[nodiscard]] std::string journal_of(const std::string& host) const {
    return replaced(replaced(journal, "\"id\":\"" + id_, "\"id\":\"" + host + "-" + id_),
                    "\"hostname\":\"" + host_ + "\"", "\"hostname\":\"" + host + "\"");
  }
  void add(const std::string& folder, const std::string& host) {
    fake.folder.write(folder + "/events.jsonl", journal_of(host));
  }
  void add_hosts(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) add("run/h" + std::to_string(i), "h" + std::to_string(i));
  }
  Json merged(const std::vector<std::string>& words, int code) {
    std::vector<std::string> all{"merge", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(fake(all), code) << fake.err() << fake.out();
    const Json fleet = Json::parse(fake.out(), nullptr, false);
    EXPECT_THAT(reports::schema::violations(Json::parse(reports::fleet_schema()), fleet), IsEmpty());
    EXPECT_EQ(fleet["exit_code"], code);
    EXPECT_EQ(fleet["verdict"] == "READY", code == 0);
    return fleet;
  }
  // The host h1 of three is not as it should be: its trouble.
  std::string trouble_of_h1(int code) {
    const Json fleet = merged({"run"}, code);
    EXPECT_EQ(fleet["hosts"].size(), 3U);
    for (const Json& host : fleet["hosts"])
      if (host["state"] == "unreadable")
        return host["name"].get<std::string>() + ": " + host["trouble"].get<std::string>();
    return "all can be read";
  }
  void refuses(const std::vector<std::string>& words, const std::string& says) {
    std::vector<std::string> all{"merge"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(fake(all), 2) << says;
    EXPECT_THAT(fake.err(), HasSubstr(says));
    EXPECT_EQ(fake.out(), "") << "no report that looks like one";
  }
  [[nodiscard]] fs::path path(const std::string& name) const { return fake.folder.path() / name; }
  FakeRun fake;
  std::string journal, id_, host_;
};

TEST_F(MergeVerb, AllReadyIsReadyAndNothingElse) {
  add_hosts(3);
  EXPECT_EQ(fake({"merge", "run"}), 0) << fake.err();
  EXPECT_THAT(fake.out(),
              AllOf(HasSubstr("good: pass on 3"), EndsWith("merge: 3 hosts: 3 READY; READY, exit code 0\n")));
  EXPECT_EQ(fake({"merge", "run", "--quiet"}), 0);
  EXPECT_EQ(fake.out(), "merge: 3 hosts: 3 READY; READY, exit code 0\n");
  EXPECT_EQ(merged({"run/h0", "run/h1", "run/h2"}, 0)["hosts"].size(), 3U) << "folders of runs";
  EXPECT_EQ(merged({"run", "--expect", "3"}, 0)["expected"], 3);
  EXPECT_EQ(merged({"run", "--expect", "h0,h1,h2"}, 0)["expected"], 3);
}

TEST_F(MergeVerb, MissingHostsAreNamed) {
  add_hosts(2);
  EXPECT_EQ(merged({"run", "--expect", "3"}, 8)["hosts"].size(), 3U);
  const Json fleet = merged({"run", "--expect", "h0,h1,h7"}, 8);
  EXPECT_EQ(fleet["hosts"][2]["name"], "h7");
  EXPECT_EQ(fleet["hosts"][2]["state"], "missing");
  (void)merged({"run", "--expect", "1"}, 8);
}

TEST_F(MergeVerb, AHostThatFailedDecides) {
  add_hosts(2);
  EXPECT_EQ(fake({"--suite", "good,gate", "--gate", "block", "--out", "run/h2"}), 1);
  const Json fleet = merged({"run"}, 1);
  EXPECT_EQ(fleet["verdict"], "NOT READY");
  const Json& codes = fleet["findings"];
  EXPECT_TRUE(std::any_of(codes.begin(), codes.end(), [](const Json& f) { return f["code"] == "FAKE-001"; }));
  EXPECT_TRUE(std::any_of(codes.begin(), codes.end(), [](const Json& f) { return f["code"] == "NSA-X017"; }))
      << "its suites are others";
}

TEST_F(MergeVerb, TheReportIsWritten) {
  add_hosts(2);
  EXPECT_EQ(fake({"merge", "run", "--out", "report"}), 0);
  EXPECT_THAT(read_text(path("report/fleet.md")), HasSubstr("Fleet report: READY"));
  EXPECT_THAT(read_text(path("report/fleet.html")), HasSubstr("Fleet report"));
  EXPECT_EQ(Json::parse(read_text(path("report/fleet.json")))["verdict"], "READY");
  EXPECT_EQ(fake({"merge", "run", "--out", "run"}), 0) << "beside the hosts";
  EXPECT_EQ(fake({"merge", "run", "--out", "run/all"}), 0);
  EXPECT_EQ(fake({"merge", "run"}), 0) << "a report is no host";
  refuses({"run", "--out", "run/h0"}, "--out: run/h0 is the folder of a run");
  refuses({"run", "--out", "run/h0/new/../deep"}, "run/h0, the folder of a run");
  fake.folder.write("file", "");
  refuses({"run", "--out", "file"}, "--out: file is not a folder");
  fs::remove(path("report/fleet.md"));
  fs::create_directory(path("report/fleet.md"));
  EXPECT_EQ(fake({"merge", "run", "--out", "report"}), 4);
  EXPECT_THAT(fake.err(), HasSubstr("fleet.md: cannot be written"));
  EXPECT_THAT(fake.out(), EndsWith("--out report: not all of the report could be written; exit code 4\n"));
  fake.folder.write("file", "");
  EXPECT_EQ(fake({"merge", "run", "--out", "file/deep"}), 4) << "no folder can be made there";
  EXPECT_THAT(fake.err(), HasSubstr("error: --out: ")) << "none of its files, then";
  EXPECT_THAT(fake.out(), EndsWith("\n--out file/deep: not all of the report could be written; exit code 4\n"));
  EXPECT_EQ(fake({"merge", "--help"}), 0);
  EXPECT_THAT(fake.out(), HasSubstr("--out DIR"));
}

TEST_F(MergeVerb, ADamagedHostIsNamedWithItsFile) {
  add_hosts(3);
  const std::string whole = journal_of("h1");
  fake.folder.write("run/h1/events.jsonl", replaced(whole, "{\"event\":\"case_begin\"", "garbage"));
  EXPECT_THAT(trouble_of_h1(2),
              AllOf(testing::StartsWith("h1: "), HasSubstr("run/h1/events.jsonl:"), HasSubstr("not an event")));
  fake.folder.write("run/h1/events.jsonl", "{}\n");
  EXPECT_THAT(trouble_of_h1(2), HasSubstr("events.jsonl:"));
  fake.folder.write("run/h1/events.jsonl", replaced(whole, "nsa-validate/event", "other/event"));
  EXPECT_THAT(trouble_of_h1(2), HasSubstr("schema is 'other/event'"));
  fake.folder.write("run/h1/events.jsonl", replaced(whole, "\"schema_version\":\"1.", "\"schema_version\":\"2."));
  EXPECT_THAT(trouble_of_h1(11), HasSubstr("schema version 2."));
  fake.folder.write("run/h1/events.jsonl", replaced(whole, "\"name\":\"fake-program\"", "\"name\":\"another\""));
  EXPECT_THAT(trouble_of_h1(2), HasSubstr("is a run of \"another\", not of fake-program"));
  fs::remove(path("run/h1/events.jsonl"));
  fake.folder.write("run/h1/notes.txt", "");
  EXPECT_THAT(trouble_of_h1(2), HasSubstr("run/h1 holds neither events.jsonl nor report.json"));
  fake.folder.write("run/h1/report.json", "{\"schema\": ");
  EXPECT_THAT(trouble_of_h1(2), HasSubstr("run/h1/report.json: cut off after"));
}

TEST_F(MergeVerb, AHalfWrittenRunIsTakenAsFarAsItGoesAndNeverReady) {
  add_hosts(3);
  const std::string whole = journal_of("h1");
  for (const std::size_t cut : {whole.find("{\"event\":\"run_end\""), whole.size() - 5, whole.find('\n') + 1}) {
    fake.folder.write("run/h1/events.jsonl", whole.substr(0, cut));
    const Json fleet = merged({"run"}, cut == whole.find('\n') + 1 ? 3 : 8);
    EXPECT_EQ(fleet["hosts"][1]["state"], "unfinished");
    EXPECT_THAT(fleet["reasons"][0].get<std::string>(), HasSubstr("without its end: h1"));
  }
}

// The job ended before its run began, or in its first moment.
TEST_F(MergeVerb, AHostWithoutARunIsMissingAndTheOthersAreMerged) {
  add_hosts(3);
  const std::string whole = journal_of("h1");
  const auto is_missing = [&](const std::vector<std::string>& given, const std::string& trouble) {
    const Json fleet = merged(given, 8);
    ASSERT_EQ(fleet["hosts"].size(), 3U);
    EXPECT_EQ(fleet["hosts"][1]["name"], "h1");
    EXPECT_EQ(fleet["hosts"][1]["state"], "missing");
    EXPECT_THAT(fleet["hosts"][1]["trouble"].get<std::string>(), HasSubstr(trouble));
    EXPECT_EQ(fleet["verdict"], "CONDITIONAL");
  };
  for (const std::string& begun : {std::string(), whole.substr(0, whole.find('\n'))}) {
    fs::remove_all(path("run/h1"));
    fake.folder.write("run/h1/events.jsonl", begun);
    is_missing({"run"}, "run/h1/events.jsonl has no whole record");
  }
  fs::remove(path("run/h1/events.jsonl"));
  is_missing({"run"}, "run/h1 is empty: the run did not begin");
  is_missing({"run/h0", "run/h1", "run/h2"}, "run/h1 is empty: the run did not begin");
  is_missing({"run", "--expect", "h0,h1,h2"}, "is empty");
  fake.folder.write("run/h1/notes.txt", "");
  const Json fleet = merged({"run/h0", "run/h1", "run/h2"}, 2);
  EXPECT_EQ(fleet["hosts"][1]["state"], "unreadable") << "this may be anything";
}

TEST_F(MergeVerb, ARunThatIsGoingOnIsTold) {
  add_hosts(2);
  const pid_t pid =
      fake.start({"--case", "good/first", "--case", "good/until_told", "--level", "standard", "--out", "run/h2"});
  for (int i = 0;
       i < 300 && read_text(path("run/h2/events.jsonl")).find("good/until_told\",\"worker") == std::string::npos; ++i)
    usleep(20000);
  FakeRun other;
  EXPECT_EQ(other({"merge", path("run").string(), "--json"}), 8);
  const Json fleet = Json::parse(other.out());
  EXPECT_EQ(fleet["hosts"][2]["state"], "running") << "by name it is behind h0 and h1";
  fake.folder.write("go", "");
  (void)fake.wait(pid);
}

TEST_F(MergeVerb, OtherBuildsAndLevelsAreNoOneFleet) {
  add_hosts(3);
  const std::string whole = journal_of("h1");
  for (const auto& [from, to] : {std::pair{"\"build_id\":\"0123456789abcdef\"", "\"build_id\":\"other\""},
                                 {"\"version\":\"1.2.3\"", "\"version\":\"1.2.4\""},
                                 {"\"level\":\"smoke\"", "\"level\":\"standard\""}}) {
    fake.folder.write("run/h1/events.jsonl", replaced(whole, from, to));
    const Json fleet = merged({"run"}, 8);
    const Json& first = fleet["findings"][0];
    EXPECT_EQ(first["code"], "NSA-X017") << from;
    EXPECT_THAT(first["message"].get<std::string>(), HasSubstr("on h1")) << from;
    EXPECT_EQ(first["hosts"], Json::array({1}));
  }
}

TEST_F(MergeVerb, TheSameHostTwiceIsNamed) {
  add_hosts(2);
  fs::copy(path("run/h1"), path("run/copy"), fs::copy_options::recursive);
  Json fleet = merged({"run"}, 2);
  EXPECT_EQ(fleet["findings"][0]["code"], "NSA-X016");
  EXPECT_THAT(fleet["findings"][0]["message"].get<std::string>(),
              AllOf(HasSubstr("run/copy and "), HasSubstr("run/h1 are the same run")));
  add("run/copy", "h1");
  fake.folder.write("run/copy/events.jsonl", replaced(journal_of("h1"), "\"id\":\"h1", "\"id\":\"again"));
  fleet = merged({"run"}, 2);
  EXPECT_THAT(fleet["findings"][0]["message"].get<std::string>(), HasSubstr("are the same host h1"));
  refuses({"run", "run/h1"}, "run/h1 is given twice");
  refuses({"run", "./run/../run"}, "is given twice");
}

TEST_F(MergeVerb, AFolderAGpuOfOneHost) {
  for (const std::string gpu : {"0", "1"}) {
    std::string text = replaced(replaced(journal, "\"id\":\"" + id_, "\"id\":\"" + gpu + "-" + id_),
                                "\"device\":\"cpu\"", "\"device\":\"cuda\"");
    text = replaced(text, "\"provenance\":{",
                    "\"provenance\":{\"gpus\":[{\"name\":\"NVIDIA H100\",\"uuid\":\"GPU-" + gpu + "\"}],");
    fake.folder.write("run/gpu" + gpu + "/events.jsonl", text);
  }
  const Json fleet = merged({"run/gpu0", "run/gpu1", "--expect", host_ + ":gpu0," + host_ + ":gpu1"}, 0);
  EXPECT_EQ(fleet["hosts"][0]["name"], host_ + ":gpu0");
  EXPECT_EQ(fleet["hosts"][1]["name"], host_ + ":gpu1");
  for (const Json& finding : fleet["findings"]) EXPECT_FALSE(finding["of_fleet"].get<bool>()) << finding;
}

TEST_F(MergeVerb, LinksAreNotFollowed) {
  add_hosts(2);
  fs::create_directory_symlink("h0", path("run/latest"));
  EXPECT_EQ(merged({"run"}, 0)["hosts"].size(), 2U) << "a link to a neighbour is that one";
  fs::create_directory_symlink("loop", path("run/loop"));
  Json fleet = merged({"run"}, 2);
  EXPECT_THAT(fleet["hosts"][2]["trouble"].get<std::string>(), HasSubstr("run/loop is a link that leads nowhere"));
  fs::remove(path("run/loop"));
  fs::create_directory_symlink("../one", path("run/elsewhere"));
  fleet = merged({"run"}, 2);
  EXPECT_THAT(fleet["hosts"][0]["trouble"].get<std::string>(),
              HasSubstr("run/elsewhere is a link, which is not followed"));
  fs::remove(path("run/elsewhere"));
  fs::create_directory(path("run/h2"));
  fs::create_symlink(path("one/events.jsonl"), path("run/h2/events.jsonl"));
  fleet = merged({"run"}, 2);
  EXPECT_THAT(fleet["hosts"][2]["trouble"].get<std::string>(), HasSubstr("h2/events.jsonl is a link"));
  fs::remove(path("run/h2/events.jsonl"));
  ASSERT_EQ(mkfifo(path("run/h2/events.jsonl").c_str(), 0600), 0);
  fleet = merged({"run"}, 2);
  EXPECT_THAT(fleet["hosts"][2]["trouble"].get<std::string>(), HasSubstr("h2/events.jsonl is no regular file"));
}

TEST_F(MergeVerb, AHugeFileIsNotRead) {
  add_hosts(3);
  fs::resize_file(path("run/h1/events.jsonl"), harness::kMostBytesOfHost + (1 << 20));  // a hole: no byte on the disk
  EXPECT_THAT(trouble_of_h1(2), HasSubstr("h1/events.jsonl has 65 MiB, at most 64 MiB are read of a host"));
}

TEST_F(MergeVerb, HostileNamesReachNoTerminal) {
  add_hosts(1);
  fake.folder.write("run/x/events.jsonl",
                    replaced(journal_of("h1"), "\"hostname\":\"h1\"", "\"hostname\":\"\\u001b[31m<b>|evil\\n\""));
  fs::create_directories(path("run/\x1b[2J\n"));
  EXPECT_EQ(fake({"merge", "run", "--out", "report"}), 8) << "missing, by that name";
  for (const std::string& text :
       {fake.out(), read_text(path("report/fleet.md")), read_text(path("report/fleet.html"))}) {
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_THAT(text, HasSubstr("evil"));
  }
}

TEST_F(MergeVerb, WhatCannotBeMergedIsRefused) {
  add_hosts(1);
  refuses({}, "DIR");
  refuses({"nowhere"}, "merge: nowhere: cannot be read: No such file");
  refuses({"run/h0/events.jsonl"}, "events.jsonl is no folder");
  fs::create_directory(path("empty"));
  refuses({"empty"}, "merge: empty holds no run");
  refuses({"empty", "empty"}, "merge: empty holds no run");
  fs::create_directory_symlink("loop", path("loop"));
  refuses({"loop"}, "merge: loop: cannot be read: Too many levels of symbolic links");
  for (const char* bad : {"0", "100001", "9999999999999999999999", "", "a,", ",a", "a,a"})
    refuses({"run", "--expect", bad}, std::string("--expect: '") + bad + "'");
  refuses({"run", "--summary-file", "s.md"}, "'--summary-file' has no meaning for the verb 'merge'");
  refuses({"run", "--suite", "good"}, "'--suite' has no meaning for the verb 'merge'");
  EXPECT_EQ(fake({"compare", "one", "one", "--expect", "3"}), 2) << "of merge alone";
}

TEST_F(MergeVerb, NothingIsWrittenIntoTheFoldersOfTheHosts) {
  add_hosts(2);
  const auto count = [&] {
    return std::distance(fs::recursive_directory_iterator(path("run")), fs::recursive_directory_iterator());
  };
  const auto before = count();
  EXPECT_EQ(fake({"merge", "run", "--out", "report"}), 0);
  EXPECT_EQ(count(), before);
}

TEST_F(MergeVerb, OutputThatIsLostIsNoSuccess) {
  add_hosts(2);
  fake.out_to = "closed";
  EXPECT_EQ(fake({"merge", "run"}), 4);
  fake.out_to = "beyond the limit";
  EXPECT_EQ(fake({"merge", "run"}), 4);
}

// -- runs of a launcher

TEST(LaunchedRun, EachProcessHasAFolderOfItsOwn) {
  FakeRun fake;
  for (const char* rank : {"0", "1", "2"}) {
    const Launched torchrun({{"RANK", rank},
                             {"WORLD_SIZE", "3"},
                             {"LOCAL_RANK", rank},
                             {"LOCAL_WORLD_SIZE", "3"},
                             {"CUDA_VISIBLE_DEVICES", "0,1,2"}});  // a machine of one GPU refuses the others
    EXPECT_EQ(fake({"--suite", "good", "--out", "shared/run", "--quiet"}), 0) << fake.err();
  }
  const auto folders =
      std::distance(fs::directory_iterator(fake.folder.path() / "shared/run"), fs::directory_iterator());
  EXPECT_EQ(folders, 3);
  EXPECT_EQ(fake({"merge", "shared/run", "--json"}), 0) << fake.out();
  const Json fleet = Json::parse(fake.out());
  EXPECT_EQ(fleet["hosts"][2]["rank"], 2);
  EXPECT_THAT(fleet["hosts"][2]["name"].get<std::string>(), EndsWith(".2"));
  fs::remove_all(fleet["hosts"][1]["folder"].get<std::string>());
  EXPECT_EQ(fake({"merge", "shared/run"}), 8) << "a launch knows how many it is of";
  EXPECT_THAT(fake.out(), HasSubstr("rank 1 of 3"));
}

TEST(LaunchedRun, OneProcessAHostHasTheHostsName) {
  FakeRun fake;
  for (const char* node : {"0", "1"}) {
    const Launched slurm({{"SLURM_PROCID", node},
                          {"SLURM_NTASKS", "2"},
                          {"SLURM_NODEID", node},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                          {"SLURM_JOB_ID", "7"},
                          {"SLURMD_NODENAME", std::string("node") + node}});
    EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--quiet"}), 0) << fake.err();
  }
  EXPECT_TRUE(fs::exists(fake.folder.path() / "run/node0/report.json"));
  EXPECT_TRUE(fs::exists(fake.folder.path() / "run/node1/report.json"));
  EXPECT_EQ(fake({"merge", "run", "--expect", "node0,node1"}), 0) << fake.out();
}

TEST(LaunchedRun, AScriptOfSbatchWithoutSrunIsOneProcessAndIsToldSo) {
  FakeRun fake;
  const Launched script({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "7"}});
  EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--quiet"}), 0) << fake.err();
  EXPECT_TRUE(fs::exists(fake.folder.path() / "run/report.json")) << "no folder of a host";
  EXPECT_THAT(fake.err(), HasSubstr("note: SLURM_NTASKS is '4', and SLURM_STEP_ID is not set: srun did not start"));
}

TEST(LaunchedRun, AWrongLaunchIsRefusedBeforeAnythingIsWritten) {
  FakeRun fake;
  const std::vector<std::pair<std::map<std::string, std::string>, const char*>> rows{
      {{{"RANK", "1"}}, "RANK is '1', and WORLD_SIZE is not set"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is '2', allowed is an integer from 0 to 1"},
      {{{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}},
       "SLURM_PROCID is '1', and SLURM_JOB_ID is not set"},  // as nsa-train (ranks_test)
      {{{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}, "SLURM_STEP_ID is '0', and SLURM_PROCID is not set"},
      {{{"SLURM_PROCID", "x"}, {"SLURM_NTASKS", "2"}}, "SLURM_PROCID is 'x'"}};
  for (const auto& [variables, says] : rows) {
    const Launched launched(variables);
    EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 2);
    EXPECT_THAT(fake.err(), HasSubstr(says));
    EXPECT_FALSE(fs::exists(fake.folder.path() / "run"));
    EXPECT_FALSE(fs::exists(fake.folder.path() / "out"));
  }
}

TEST(LaunchedRun, TheFolderOfOneRunTakesNoOthers) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--quiet"}), 0);
  const Launched torchrun({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("--out: run is the folder of one run; 2 processes (torchrun) need one"));
}

}  // namespace
