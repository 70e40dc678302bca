// A run whose output cannot be written: it is refused when that is known before, it is never lost, every channel that
// is left tells it, and it does not end with 0.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "harness/tests/support/fake_run.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::FakeRun;
using harness::tests::read_text;
using testing::AllOf;
using testing::HasSubstr;

struct Broken {
  const char* how;
  const char* reason;
};
constexpr Broken kBroken[] = {
    {"closed", "Bad file descriptor"}, {"/dev/full", "No space left on device"}, {"broken", "Broken pipe"}};

TEST(LostOutput, WhatIsKnownBeforeARunIsRefusedBeforeIt) {
  for (const Broken& broken : kBroken) {
    FakeRun out, err;
    out.out_to = err.err_to = broken.how;
    EXPECT_EQ(out({"--suite", "good", "--out", "run"}), 4) << broken.how;
    EXPECT_EQ(out.err(),
              "error: standard output cannot be written: " + std::string(broken.reason) + "; nothing was done\n");
    EXPECT_EQ(err({"--suite", "good", "--out", "run"}), 4) << broken.how;
    EXPECT_EQ(err.out(),
              "error: standard error cannot be written: " + std::string(broken.reason) + "; nothing was done\n");
    EXPECT_FALSE(fs::exists(out.run_folder()));
    EXPECT_FALSE(fs::exists(err.run_folder()));
  }
  FakeRun both;
  both.out_to = both.err_to = "closed";
  EXPECT_EQ(both({"--suite", "good", "--out", "run"}), 4);
}

TEST(LostOutput, VerbsThatLookSayItToo) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"list", "--json"}, {"--help"}, {"schema"}, {"explain", "FAKE-001"}, {"--show-config"}, {"dry-run"}}) {
    FakeRun fake;
    fake.out_to = "/dev/full";
    EXPECT_EQ(fake(words), 4) << words[0];
    EXPECT_THAT(fake.err(), HasSubstr("error: standard output cannot be written: No space left on device"));
  }
  FakeRun silent;
  silent.err_to = "closed";
  EXPECT_EQ(silent({"list"}), 0) << "nothing was to be said there";
  EXPECT_EQ(silent({"lst"}), 2);
  EXPECT_THAT(silent.out(), HasSubstr("error: unknown verb 'lst'"));
}

TEST(LostOutput, ASummaryFileIsLookedAtBeforeTheRun) {
  const std::vector<std::tuple<std::string, int, const char*>> refused{
      {"nowhere/summary.md", 2, "No such file or directory"},
      {".", 2, "Is a directory"},
      {"", 2, "names no file"},
      {"to_nowhere", 2, "No such file or directory"},
      {"loop", 2, "Too many levels of symbolic links"},
      {"pipe", 2, "it is a pipe that nobody reads"},
      {"/dev/full", 4, "No space left on device"}};
  for (const auto& [file, code, reason] : refused) {
    FakeRun fake;
    fs::create_symlink("loop", fake.folder.path() / "loop");
    fs::create_symlink("/no/such/folder/y", fake.folder.path() / "to_nowhere");
    ASSERT_EQ(mkfifo((fake.folder.path() / "pipe").c_str(), 0600), 0);
    EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--summary-file", file}), code) << file;
    EXPECT_THAT(fake.err(), AllOf(HasSubstr("--summary-file: "), HasSubstr(reason)));
    EXPECT_FALSE(fs::exists(fake.run_folder()));
  }
}

TEST(LostOutput, ASummaryFileIsNoneOfTheRunsOwn) {
  FakeRun fake;
  fs::create_directories(fake.run_folder());
  fs::create_symlink("run/events.jsonl", fake.folder.path() / "by_link");
  fs::create_directory_symlink("run", fake.folder.path() / "same");
  const auto refused = [&](const std::string& file) {
    EXPECT_THAT(fake.err(), HasSubstr("is a file of the run itself")) << file;
    EXPECT_FALSE(fs::exists(fake.run_folder() / "events.jsonl")) << file;
  };
  for (const char* file : {"run/events.jsonl", "run/report.json", "run/report.md", "run/report.html", "run/junit.xml",
                           "run/.run.lock", "run/../run/report.json.tmp", "by_link", "same/events.jsonl"}) {
    EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--summary-file", file}), 2) << file;
    refused(file);
    EXPECT_EQ(fake({"--suite", "good", "--out", "same", "--summary-file", file}), 2) << file;
    refused(file);
  }
  EXPECT_EQ(fake({"--suite", "good", "--out", "same", "--summary-file", "run/mine.md"}), 0) << fake.err();
  EXPECT_THAT(read_text(fake.run_folder() / "mine.md"), HasSubstr("READY"));
  fs::create_hard_link(fake.run_folder() / "events.jsonl", fake.folder.path() / "hard");
  const std::string journal = read_text(fake.run_folder() / "events.jsonl");
  for (const char* file : {"run/events.jsonl", "run/logs/worker-1.log", "run/suites/good.json", "hard"}) {
    EXPECT_EQ(fake({"report", "run", "--summary-file", file}), 2) << file;
    EXPECT_THAT(fake.err(), HasSubstr("is a file of the run itself")) << file;
  }
  EXPECT_EQ(read_text(fake.run_folder() / "events.jsonl"), journal);
}

TEST(LostOutput, LinksThatLeadInCirclesAreUsageErrors) {
  FakeRun fake;
  fs::create_symlink("loop", fake.folder.path() / "loop");
  EXPECT_EQ(fake({"--suite", "good", "--config", "loop"}), 2);
  EXPECT_THAT(fake.err(), HasSubstr("error: loop: cannot be read: Too many levels of symbolic links"));
  EXPECT_EQ(fake({"--suite", "good", "--out", "loop"}), 2);
  EXPECT_EQ(fake({"report", "loop"}), 2);
}

// A run that is inside its case, and stays there until it is told to go on.
pid_t start_waiting(FakeRun& fake, const fs::path& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"--case", "good/until_told", "--out", out.string()};
  words.insert(words.end(), more.begin(), more.end());
  const pid_t pid = fake.start(words);
  while (read_text(out / "events.jsonl").find("case_begin") == std::string::npos) {
    if (waitpid(pid, nullptr, WNOHANG) == pid) throw std::runtime_error("the run ended: " + fake.err());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return pid;
}
void go_on(const FakeRun& fake) { std::ofstream(fake.folder.path() / "go"); }

// A named pipe in the run's folder above, with a reader that goes away when it is told.
class Pipe {
 public:
  Pipe(const FakeRun& fake, const char* name) {
    const fs::path file = fake.folder.path() / name;
    if (mkfifo(file.c_str(), 0600) != 0 || (fd_ = open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
      throw std::runtime_error("no pipe");
  }
  ~Pipe() { go_away(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void go_away() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  [[nodiscard]] std::string text() const {
    std::string all(1 << 20, '\0');
    std::size_t size = 0;
    for (ssize_t n; (n = read(fd_, all.data() + size, all.size() - size)) > 0;) size += static_cast<std::size_t>(n);
    return all.substr(0, size);
  }

 private:
  int fd_ = -1;
};

// What every file says of the run's end.
void expect_files_say(const FakeRun& fake, int code, const std::string& verdict) {
  const reports::Json report = reports::Json::parse(read_text(fake.run_folder() / "report.json"));
  EXPECT_EQ(report["run"]["exit_code"], code);
  EXPECT_EQ(report["verdict"], verdict);
  EXPECT_THAT(read_text(fake.run_folder() / "report.md"), HasSubstr(verdict));
  EXPECT_THAT(read_text(fake.run_folder() / "report.html"), HasSubstr(verdict));
}

TEST(LostOutput, AStreamThatBreaksDuringTheRunIsInItsReport) {
  for (const bool out : {true, false}) {
    FakeRun fake;
    Pipe pipe(fake, "pipe");
    (out ? fake.out_to : fake.err_to) = "pipe";
    const pid_t pid = start_waiting(fake, fake.run_folder());
    pipe.go_away();
    go_on(fake);
    const std::string lost =
        std::string(out ? "standard output" : "standard error") + " cannot be written: Broken pipe";
    EXPECT_EQ(fake.wait(pid), 4);
    EXPECT_THAT(out ? fake.err() : fake.out(), HasSubstr("error: " + lost));
    expect_files_say(fake, 4, "CONDITIONAL");
    const reports::Run run = fake.journal();
    ASSERT_EQ(run.findings.size(), 1U);
    EXPECT_EQ(run.findings[0].code, "NSA-X009");
    EXPECT_EQ(run.findings[0].message, lost);
    if (!out) {
      EXPECT_THAT(fake.out(), AllOf(HasSubstr("verdict: CONDITIONAL"), testing::Not(HasSubstr("READY, ready"))));
    }
  }
}

// A stream that takes nothing and does not show it before.
TEST(LostOutput, TheLastLinesThatDoNotArriveAreInTheReportFiles) {
  FakeRun fake;
  fake.out_to = "beyond the limit";
  EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 4);
  EXPECT_THAT(fake.err(), HasSubstr("error: standard output cannot be written: "));
  expect_files_say(fake, 4, "CONDITIONAL");
  EXPECT_THAT(read_text(fake.run_folder() / "report.md"), HasSubstr("NSA-X009"));
  fake.out_to = "stdout";
  EXPECT_EQ(fake({"report", "run"}), 0) << "the run itself was over by then";
}

TEST(LostOutput, AReportThatCannotBeWrittenIsToldWithTheVerdict) {
  for (const bool quiet : {false, true}) {
    FakeRun fake;
    const pid_t pid = start_waiting(fake, fake.run_folder(),
                                    quiet ? std::vector<std::string>{"--quiet"} : std::vector<std::string>());
    fs::create_directory(fake.run_folder() / "report.md");
    go_on(fake);
    EXPECT_EQ(fake.wait(pid), 4);
    const auto told = [&] {
      EXPECT_THAT(fake.err(), HasSubstr("report.md: cannot be written: Is a directory"));
      EXPECT_THAT(fake.out(), AllOf(HasSubstr("report.md: cannot be written: Is a directory"),
                                    testing::Not(HasSubstr("READY, ready")),
                                    testing::EndsWith("summary: 1 passed, 0 failed, 0 skipped\n")));
    };
    told();
    EXPECT_EQ(fake({"report", "run"}), 4);
    told();
    EXPECT_THAT(fake.out(), AllOf(HasSubstr("verdict: CONDITIONAL"), HasSubstr("run/report.html\n")));
    for (const char* other : {"report.html", "report.json", "junit.xml"})
      EXPECT_THAT(read_text(fake.run_folder() / other), AllOf(HasSubstr("NSA-X009"), HasSubstr("cannot be written")))
          << other;
    fs::remove(fake.run_folder() / "report.md");
    EXPECT_EQ(fake({"report", "run"}), 0);
    expect_files_say(fake, 0, "READY");
  }
}

TEST(LostOutput, ASummaryFileThatIsTakenAwayIsInTheReport) {
  FakeRun fake;
  const pid_t pid = start_waiting(fake, fake.run_folder(), {"--summary-file", "summary.md"});
  fs::create_directory(fake.folder.path() / "summary.md");
  go_on(fake);
  EXPECT_EQ(fake.wait(pid), 4);
  EXPECT_THAT(fake.out(), HasSubstr("--summary-file: summary.md cannot be written: Is a directory"));
  expect_files_say(fake, 4, "CONDITIONAL");
}

TEST(LostOutput, ASummaryGoesToAPipeThatIsReadAndWaitsForNoReader) {
  FakeRun fake;
  Pipe pipe(fake, "pipe");
  EXPECT_EQ(fake({"--suite", "good", "--out", "run", "--summary-file", "pipe"}), 0) << fake.err();
  EXPECT_EQ(pipe.text(), read_text(fake.run_folder() / "report.md"));
  fake.out_to = "pipe";
  EXPECT_EQ(fake({"report", "run", "--summary-file", "/dev/stdout"}), 0) << fake.err();
  EXPECT_THAT(pipe.text(), testing::StartsWith(read_text(fake.run_folder() / "report.md")));
  EXPECT_EQ(fake({"report", "run", "--summary-file", "/dev/fd/1"}), 0) << fake.err();
  EXPECT_THAT(pipe.text(), testing::StartsWith(read_text(fake.run_folder() / "report.md")));

  FakeRun left;
  Pipe gone(left, "pipe");
  const pid_t pid = start_waiting(left, left.run_folder(), {"--summary-file", "pipe"});
  gone.go_away();
  go_on(left);
  EXPECT_EQ(left.wait(pid), 4);
  EXPECT_THAT(left.err(), HasSubstr("--summary-file: pipe cannot be written: it is a pipe that nobody reads"));
}

TEST(LostOutput, NothingIsWrittenThroughALinkThatAppearsDuringTheRun) {
  for (const std::string name : {"suites", "logs"}) {
    FakeRun fake;
    for (const char* file : {"good.json", "worker-2.log"}) fake.folder.write(std::string("elsewhere/") + file, "keep");
    const pid_t pid = start_waiting(fake, fake.run_folder(), {"--case", "skipping/skips"});  // of a second worker
    fs::remove_all(fake.run_folder() / name);
    fs::create_directory_symlink("../elsewhere", fake.run_folder() / name);
    go_on(fake);
    EXPECT_EQ(fake.wait(pid), 4) << name;
    EXPECT_THAT(fake.err(), testing::ContainsRegex("error: .*run/" + name + ".*: cannot be written: it .*is a link"));
    EXPECT_THAT(fake.out(), HasSubstr("verdict: CONDITIONAL"));
    for (const auto& entry : fs::directory_iterator(fake.folder.path() / "elsewhere"))
      EXPECT_EQ(read_text(entry.path()), "keep") << entry.path();
    if (name == "logs") expect_files_say(fake, 4, "CONDITIONAL");
  }
}

TEST(LostOutput, ALockThatIsALinkIsLeftAlone) {
  FakeRun fake;
  ASSERT_EQ(fake({"--suite", "good", "--out", "run"}), 0);
  fs::remove(fake.run_folder() / ".run.lock");
  fake.folder.write("precious", "keep");
  fs::create_symlink("../precious", fake.run_folder() / ".run.lock");
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"--suite", "good", "--out", "run", "--force"}, {"report", "run"}}) {
    EXPECT_EQ(fake(words), 2) << words[0];
    EXPECT_THAT(fake.err(), HasSubstr("run/.run.lock is a link"));
  }
  EXPECT_EQ(read_text(fake.folder.path() / "precious"), "keep");
}

// A small disk of its own, filled to the last byte by whoever wants to.
class SmallDisk : public testing::Test {
 protected:
  void SetUp() override {
    disk_ = fake_.folder.path() / "disk";
    fs::create_directory(disk_);
    if (geteuid() != 0 || mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=2m") != 0)
      GTEST_SKIP() << "needs root and permission to mount a small tmpfs";
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(disk_.c_str(), MNT_DETACH);
  }
  void fill() {
    const int fd = open((disk_ / "ballast").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    const std::string block(4096, 'x');
    while (write(fd, block.data(), block.size()) > 0) {
    }
    close(fd);
  }
  FakeRun fake_;
  fs::path disk_;
  bool mounted_ = false;
};

TEST_F(SmallDisk, AFullDiskIsRefusedBeforeTheRun) {
  fill();
  EXPECT_EQ(fake_({"--suite", "good", "--out", "disk/run"}), 4);
  EXPECT_THAT(fake_.err(), HasSubstr("error: --out: no space left in "));
  EXPECT_FALSE(fs::exists(disk_ / "run"));
  fake_.err_to = "disk/stderr";
  EXPECT_EQ(fake_({"--suite", "good", "--out", "run"}), 4);
  EXPECT_THAT(fake_.out(), HasSubstr("standard error cannot be written: No space left on device"));
}

TEST_F(SmallDisk, ADiskThatFillsUpMeanwhileDoesNotLoseTheRun) {
  FakeRun out, err;  // three runs at once, each with something else on the disk
  out.out_to = (disk_ / "stdout").string();
  err.err_to = (disk_ / "stderr").string();
  const pid_t out_pid = start_waiting(out, out.run_folder()), err_pid = start_waiting(err, err.run_folder()),
              all_pid = start_waiting(fake_, disk_ / "run");
  fill();
  const std::string summary = "summary: 1 passed, 0 failed, 0 skipped\n";

  go_on(err);
  EXPECT_EQ(err.wait(err_pid), 4);
  EXPECT_THAT(err.out(), HasSubstr("error: standard error cannot be written: No space left on device"));
  EXPECT_THAT(err.out(), testing::EndsWith(summary));
  const reports::Run run = err.journal();
  ASSERT_EQ(run.findings.size(), 1U);
  EXPECT_EQ(run.findings[0].code, "NSA-X009");
  EXPECT_THAT(read_text(err.run_folder() / "report.md"), HasSubstr("NSA-X009"));

  go_on(out);
  EXPECT_EQ(out.wait(out_pid), 4);
  EXPECT_THAT(out.err(), HasSubstr("error: standard output cannot be written: No space left on device"));
  EXPECT_THAT(read_text(out.run_folder() / "report.md"), HasSubstr("NSA-X009"));

  go_on(fake_);  // last: it gives the disk room back
  EXPECT_EQ(fake_.wait(all_pid), 0) << "what was set aside holds the end of the journal and the reports";
  EXPECT_THAT(fake_.out(), testing::EndsWith(summary));
  EXPECT_TRUE(fs::exists(disk_ / "run" / "report.md"));
}

TEST_F(SmallDisk, AReportThatIsNotThereIsNotAnnounced) {
  EXPECT_EQ(fake_({"--suite", "good", "--out", "disk/run"}), 0) << fake_.err();
  for (const char* file : {"report.json", "report.md", "report.html", "junit.xml"}) fs::remove(disk_ / "run" / file);
  fill();
  EXPECT_EQ(fake_({"report", "disk/run"}), 4);
  EXPECT_THAT(fake_.err(), HasSubstr("No space left on device"));
  EXPECT_THAT(fake_.out(), testing::Not(HasSubstr("report: ")));
  EXPECT_THAT(fake_.out(), testing::EndsWith("summary: 3 passed, 0 failed, 1 skipped\n"));
}

}  // namespace
