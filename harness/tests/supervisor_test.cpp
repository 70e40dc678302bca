// The engine as a user sees it: the fake program is run, and what it left is read.
#include "harness/supervisor.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <tuple>

#include "base/stacks.hpp"
#include "harness/repro.hpp"
#include "harness/tests/support/fake_run.hpp"
#include "reports/journal.hpp"

namespace {

namespace fs = std::filesystem;
using harness::tests::code_of;
using harness::tests::FakeRun;
using harness::tests::read_text;
using reports::Status;
using testing::HasSubstr;

TEST(Supervisor, AGoodRunIsReady) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--out", "run"}), 0) << fake.err();
  const reports::Run run = fake.journal();
  EXPECT_TRUE(run.complete);
  EXPECT_EQ(run.device, "cpu");
  EXPECT_EQ(fake.find("good/first").metrics.at(1).value, "NaN");
  EXPECT_EQ(fake.find("good/gpu").status, Status::skip);
  EXPECT_EQ(fake.find("good/gpu").reason_code, "no_cuda");
  EXPECT_FALSE(fake.find("good/gpu").required);
  EXPECT_THAT(fake.out(), testing::EndsWith("summary: 3 passed, 0 failed, 1 skipped\n"));
  for (const char* file :
       {"report.json", "report.md", "report.html", "junit.xml", "suites/good.json", "logs/worker-1.log"})
    EXPECT_TRUE(fs::exists(fake.run_folder() / file)) << file;
  EXPECT_FALSE(fs::exists(fake.run_folder() / ".reserve"));
}

TEST(Supervisor, EveryMisdeedIsContainedAndChargedToItsCase) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "bad", "--out", "run"}), 5);
  const std::vector<std::tuple<const char*, Status, const char*>> expected{
      {"segv", Status::crash, "NSA-X001"},
      {"abort", Status::crash, "NSA-X001"},
      {"overflows_its_stack", Status::crash, "NSA-X001"},
      {"throws_in_a_thread", Status::crash, "NSA-X001"},
      {"allocates_too_much", Status::error, "NSA-X010"},
      {"allocates_too_much_in_a_thread", Status::crash, "NSA-X010"},
      {"cannot_map", Status::error, "NSA-X010"},
      {"cannot_allocate", Status::error, "NSA-X010"},
      {"is_killed_while_it_waits", Status::crash, "NSA-X011"},
      {"is_killed_after_it_waited", Status::crash, "NSA-X011"},
      {"exit_zero", Status::crash, "NSA-X003"},
      {"throws", Status::error, "NSA-X004"},
      {"throws_int", Status::error, "NSA-X004"},
      {"half_line", Status::crash, "NSA-X005"},
      {"not_json", Status::error, "NSA-X005"},
      {"long_line", Status::error, "NSA-X005"},
      {"liar", Status::error, "NSA-X005"},
      {"claims_pass_of_other", Status::error, "NSA-X005"},
      {"says_bye", Status::error, "NSA-X005"},
      {"flood", Status::pass, "none"},
      {"unknown_code", Status::error, "NSA-X004"},
      {"too_much", Status::error, "NSA-X004"},
      {"fails", Status::fail, "FAKE-001"},
      {"skips_over_finding", Status::fail, "FAKE-001"},
      {"after_all", Status::pass, "none"}};
  for (const auto& [name, status, code] : expected) {
    const reports::Case c = fake.find(std::string("bad/") + name);
    EXPECT_EQ(c.status, status) << name;
    EXPECT_EQ(code_of(c), code) << name;
    if (c.findings.empty()) continue;
    EXPECT_EQ(c.findings[0].severity, reports::Severity::block) << name;
    EXPECT_EQ(c.findings[0].repro,
              "FAKE_FLAG='a b' " HARNESS_FAKE_PROGRAM " --case " + c.id + " --seed 42 --device cpu");
  }
  const reports::Case segv = fake.find("bad/segv");
  EXPECT_EQ(segv.last_phase, "before the fall");
  EXPECT_THAT(segv.findings[0].message, HasSubstr("SIGSEGV"));
  EXPECT_EQ(segv.findings[0].evidence.at("last_lines"), reports::Json::array({"last words"}));
  for (const char* name : {"segv", "abort", "overflows_its_stack", "throws_in_a_thread"}) {
    const reports::Json evidence = fake.find(std::string("bad/") + name).findings[0].evidence;
    const std::string file = evidence.at("stacks_file").get<std::string>();
    EXPECT_THAT(read_text(fake.run_folder() / file), testing::EndsWith(base::kEndOfStacks)) << name;
    EXPECT_THAT(evidence.at("stacks").dump(), HasSubstr("(harness_fake_program)")) << name;
  }
  EXPECT_THAT(fake.find("bad/overflows_its_stack").findings[0].message,
              HasSubstr(", in (anonymous namespace)::without_end(int)"));
  const reports::Finding waited = fake.find("bad/is_killed_while_it_waits").findings[0];
  EXPECT_THAT(waited.message, HasSubstr("; it waited for the oven, and may have been ended by it; nothing speaks for"));
  EXPECT_EQ(waited.evidence.at("waited_for"), "the oven");
  EXPECT_THAT(fake.find("bad/is_killed_after_it_waited").findings[0].message, testing::Not(HasSubstr("waited for")));
  for (const auto& log : fs::directory_iterator(fake.run_folder() / "logs"))
    EXPECT_THAT(log.path().filename(), testing::Not(testing::StartsWith("waiting-")));
  for (const auto& log : fs::directory_iterator(fake.run_folder() / "logs")) EXPECT_LT(log.file_size(), 9U << 20);
}

TEST(Supervisor, TheCommandOfAFindingRepeatsItWhenItIsPasted) {
  FakeRun fake;
  const fs::path home = fake.folder.path() / "it's a folder";
  fs::create_directories(home);
  fs::create_symlink(HARNESS_FAKE_PROGRAM, home / "the program");
  const auto paste = [&](const std::string& command) {
    fs::remove_all(fake.run_folder());
    const std::string line = fmt::format("cd {} && {} --out {} >/dev/null 2>&1", harness::shell_quote(home.string()),
                                         command, harness::shell_quote(fake.run_folder().string()));
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(paste("'./the program' --case bad/fails --seed 9 --device cpu"), 1);
  const reports::Finding first = fake.find("bad/fails").findings.at(0);
  EXPECT_THAT(first.repro, HasSubstr("'./the program' --case bad/fails --seed 9 --device cpu"));
  EXPECT_EQ(paste(first.repro), 1);
  const reports::Finding again = fake.find("bad/fails").findings.at(0);
  EXPECT_EQ(again.code, first.code);
  EXPECT_EQ(again.repro, first.repro);
}

TEST(Supervisor, WhatHangsIsKilledAndTheRestRuns) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "stuck", "--hang", "1", "--out", "run"}), 6);
  EXPECT_EQ(fake.find("stuck/sleeps").status, Status::hang);
  EXPECT_EQ(code_of(fake.find("stuck/sleeps")), "NSA-X002");
  EXPECT_THAT(fake.find("stuck/sleeps").findings[0].message, HasSubstr("'going to bed'"));
  EXPECT_THAT(fake.find("stuck/sleeps").findings[0].evidence.at("stacks").dump(),
              AllOf(HasSubstr("nanosleep"), HasSubstr("run_cases"), HasSubstr("end of stacks")));
  EXPECT_EQ(fake.find("stuck/ignores_sigterm").status, Status::hang);
  EXPECT_EQ(fake.find("stuck/is_stopped").status, Status::hang);
  EXPECT_THAT(fake.find("stuck/is_stopped").findings[0].evidence.at("stacks").dump(), HasSubstr(", state T"));
  EXPECT_THAT(fake.find("stuck/is_stopped").findings[0].message, testing::EndsWith("; it waited for the oven"));
  const reports::Finding told = fake.find("stuck/main_thread_does_not_answer").findings.at(0);
  EXPECT_THAT(told.evidence.at("stacks").dump(),
              AllOf(HasSubstr("sleep_in_another_thread"), HasSubstr("(does not answer: it blocks signals)"),
                    HasSubstr("end of stacks")));
  EXPECT_THAT(told.message, testing::Not(HasSubstr("sleep_in_another_thread"))) << "it is not where the case hangs";
  EXPECT_EQ(fake.find("stuck/spins").status, Status::hang);
  EXPECT_THAT(fake.find("stuck/spins").findings[0].message, HasSubstr("busy, no progress"));
  EXPECT_EQ(fake.find("stuck/works_silently").status, Status::pass) << "CPU time is progress";
  EXPECT_EQ(code_of(fake.find("stuck/limited")), "NSA-X006");
  EXPECT_EQ(fake.find("stuck/after_all").status, Status::pass);
}

TEST(Supervisor, OnlyIsolateBlocksWhatRequiresASuite) {
  FakeRun isolated;
  EXPECT_EQ(isolated({"--suite", "gate,middle,after_gate,good", "--gate", "isolate", "--out", "run"}), 1);
  EXPECT_EQ(isolated.find("gate/opens").status, Status::fail);
  EXPECT_EQ(isolated.find("middle/passes").status, Status::blocked);
  EXPECT_EQ(isolated.find("after_gate/passes").status, Status::blocked);
  EXPECT_EQ(isolated.find("after_gate/passes").reason_code, "blocked_by:gate");
  EXPECT_EQ(isolated.find("good/first").status, Status::pass);
  EXPECT_THAT(isolated.out(), testing::EndsWith("summary: 3 passed, 1 failed, 1 skipped, 2 blocked\n"));
  FakeRun blocked;
  EXPECT_EQ(blocked({"--suite", "gate,after_gate", "--gate", "block", "--out", "run"}), 1);
  EXPECT_EQ(blocked.find("after_gate/passes").status, Status::pass);
  FakeRun warned;
  EXPECT_EQ(warned({"--suite", "gate,after_gate", "--gate", "warn", "--out", "run"}), 0);
  EXPECT_EQ(warned.find("gate/opens").status, Status::pass);
}

TEST(Supervisor, GatesOnSpeedCanBeReportedOnly) {
  FakeRun decides;
  EXPECT_EQ(decides({"--suite", "speed", "--out", "run"}), 7);
  EXPECT_EQ(decides.find("speed/below_gate").status, Status::fail);
  FakeRun reported;
  EXPECT_EQ(reported({"--suite", "speed", "--gates", "report", "--out", "run"}), 0);
  const reports::Case c = reported.find("speed/below_gate");
  EXPECT_EQ(c.status, Status::pass);
  EXPECT_EQ(c.findings.at(0).severity, reports::Severity::warn);
  EXPECT_THAT(c.findings[0].message, testing::EndsWith(" (reported, not decided)"));
}

TEST(Supervisor, ASkipWithoutNeedIsNotSuccess) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "skipping", "--out", "run"}), 3);
  FakeRun mixed;
  EXPECT_EQ(mixed({"--suite", "skipping,good", "--out", "run"}), 1);
}

TEST(Supervisor, ACaseThatCannotDecideAccusesNobody) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good,undecided", "--exclude", "undecided/knows_better", "--out", "run"}), 8);
  EXPECT_EQ(fake.find("undecided/cannot_tell").status, Status::inconclusive);
  EXPECT_EQ(fake.find("undecided/cannot_tell").reason_code, "load");
  EXPECT_THAT(fake.out(), HasSubstr("verdict: CONDITIONAL"));
  EXPECT_THAT(fake.out(), HasSubstr("inconclusive undecided/cannot_tell load: the machine is busy"));
  EXPECT_THAT(fake.out(), testing::EndsWith("summary: 3 passed, 0 failed, 1 skipped, 1 inconclusive\n"));
  FakeRun contradicted;
  EXPECT_EQ(contradicted({"--suite", "undecided", "--out", "run"}), 1);
  EXPECT_EQ(contradicted.find("undecided/knows_better").status, Status::fail) << "a finding outweighs it";
  EXPECT_THAT(contradicted.out(), testing::EndsWith("summary: 0 passed, 1 failed, 0 skipped, 1 inconclusive\n"));
}

TEST(Supervisor, IsolationOfCasesAndNone) {
  FakeRun each;
  EXPECT_EQ(each({"--suite", "good", "--isolation", "case", "--out", "run"}), 0);
  EXPECT_EQ(each.events("worker_begin").size(), 3U);
  EXPECT_TRUE(each.events("worker_begin")[0].contains("start_s"));
  FakeRun none;
  EXPECT_EQ(none({"--suite", "good,speed", "--isolation", "none", "--inject", "leave-file", "--out", "run"}), 7);
  EXPECT_EQ(none.find("good/first").status, Status::pass);
  EXPECT_TRUE(fs::exists(none.run_folder() / "planted"));
}

// 0 means READY: no end of the process is taken for it.
TEST(Supervisor, WithoutWorkersACaseThatEndsTheProcessIsNoVerdict) {
  for (const char* name :
       {"calls_exit", "calls_underscore_exit", "calls_quick_exit", "calls_the_kernel", "is_killed"}) {
    FakeRun fake;
    EXPECT_EQ(fake({"--case", "leaving/stays", "--case", std::string("leaving/") + name, "--suite", "leaving",
                    "--isolation", "none", "--out", "run"}),
              5)
        << name << fake.err();
    EXPECT_EQ(fake.find("leaving/stays").status, Status::pass) << name;
    const reports::Case gone = fake.find(std::string("leaving/") + name);
    EXPECT_EQ(gone.status, Status::crash) << name;
    EXPECT_EQ(code_of(gone), name == std::string("is_killed") ? "NSA-X001" : "NSA-X003") << name;
    EXPECT_THAT(fake.out(), testing::EndsWith("summary: 1 passed, 1 failed, 0 skipped\n")) << name;
    EXPECT_THAT(read_text(fake.run_folder() / "report.md"), HasSubstr("NOT READY")) << name;
    FakeRun again;
    EXPECT_EQ(again({"report", fake.run_folder().string()}), 5) << "the journal says the same";
    EXPECT_FALSE(fs::exists(fake.run_folder() / ".reserve"));
  }
}

TEST(Supervisor, WithoutWorkersSignalsStillEndTheRun) {
  for (const auto& [signal, code] : {std::pair{SIGTERM, 143}, std::pair{SIGHUP, 143}, std::pair{SIGINT, 130}}) {
    FakeRun fake;
    const pid_t pid = fake.start({"--case", "good/slow", "--isolation", "none", "--out", "run"});
    for (int i = 0; i < 1000 && fake.events("case_begin").empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(pid, signal);
    EXPECT_EQ(fake.wait(pid), code);
    EXPECT_EQ(fake.find("good/slow").status, Status::cancelled);
    EXPECT_TRUE(fs::exists(fake.run_folder() / "report.md"));
  }
}

// The connection that started it ends; the limit on CPU time is near.
TEST(Supervisor, AHangupCancelsTheRunUnlessNohupSaysOtherwise) {
  for (const int signal : {SIGHUP, SIGUSR1, SIGXCPU}) {
    FakeRun fake;
    const pid_t pid = fake.start({"--case", "good/slow", "--out", "run"});
    for (int i = 0; i < 1000 && fake.events("case_begin").empty(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(pid, signal);
    EXPECT_EQ(fake.wait(pid), 143);
    EXPECT_EQ(fake.find("good/slow").status, Status::cancelled);
    EXPECT_TRUE(fs::exists(fake.run_folder() / "report.md"));
  }
  FakeRun nohup;
  const auto before = ::signal(SIGHUP, SIG_IGN);
  const pid_t pid = nohup.start({"--case", "good/slow", "--out", "run"});
  ::signal(SIGHUP, before);
  for (int i = 0; i < 1000 && nohup.events("case_begin").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(pid, SIGHUP);
  EXPECT_EQ(nohup.wait(pid), 0);
}

// Parent and worker stopped together for longer than the limit.
TEST(Supervisor, AMachineThatStoodStillIsNoHang) {
  FakeRun fake;
  const pid_t pid = fake.start({"--case", "good/slow", "--hang", "1", "--out", "run"});
  for (int i = 0; i < 1000 && fake.events("case_begin").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const pid_t worker = fake.events("worker_begin").at(0).at("pid").get<pid_t>();
  for (const pid_t one : {pid, worker}) kill(one, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(6));
  for (const pid_t one : {worker, pid}) kill(one, SIGCONT);
  EXPECT_EQ(fake.wait(pid), 0) << fake.err();
  EXPECT_TRUE(fake.find("good/slow").facts.contains("stood_still"));
}

TEST(Supervisor, AFailedCheckWithoutAFindingIsAFailure) {
  FakeRun fake;
  EXPECT_EQ(fake({"--case", "leaving/checks_without_a_finding", "--out", "run"}), 1);
  EXPECT_EQ(fake.find("leaving/checks_without_a_finding").reason_code, "unexplained_check");
}

TEST(Supervisor, TooFewFilesAreRefusedWithTheLimit) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few{8, before.rlim_max};
  FakeRun fake;
  setrlimit(RLIMIT_NOFILE, &few);
  const pid_t pid = fake.start({"--suite", "good", "--out", "run"});
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(fake.wait(pid), 4);
  EXPECT_THAT(fake.err(), HasSubstr("a process may have 8 files open (ulimit -n), 64 are needed; nothing was done"));
}

TEST(Supervisor, FailFastLeavesTheRestNotRun) {
  FakeRun fake;
  EXPECT_EQ(fake({"--case", "bad/throws", "--case", "bad/after_all", "--suite", "bad", "--fail-fast", "--out", "run"}),
            1);
  EXPECT_EQ(fake.find("bad/after_all").status, Status::not_run);
  EXPECT_EQ(fake.find("bad/after_all").reason_code, "fail_fast");
  EXPECT_THAT(fake.out(), testing::EndsWith("summary: 0 passed, 1 failed, 0 skipped, 1 not run\n"));
  FakeRun none;
  EXPECT_EQ(none({"--case", "bad/throws", "--case", "bad/after_all", "--suite", "bad", "--fail-fast", "--isolation",
                  "none", "--out", "run"}),
            1);
  EXPECT_EQ(none.find("bad/after_all").status, Status::not_run) << "also without workers";
}

TEST(Supervisor, AWorkerThatDiesBeforeItsFirstCaseIsChargedToThatCase) {
  FakeRun fake;
  EXPECT_EQ(fake({"--suite", "good", "--inject", "die-early", "--out", "run"}), 5);
  for (const char* id : {"good/first", "good/length[S=1]", "good/length[S=2]"}) {
    EXPECT_EQ(fake.find(id).status, Status::crash) << id;
    EXPECT_EQ(code_of(fake.find(id)), "NSA-X011") << id;
  }
  EXPECT_EQ(fake.journal().faults, reports::Json::array({"die-early"}));
  EXPECT_THAT(fake.find("good/first").findings[0].repro, HasSubstr("--inject die-early"));
}

TEST(Supervisor, WorkersThatDoNotStartAreTheMachinesFault) {
  setenv("FAKE_WORKER_DOES_NOT_START", "1", 1);
  FakeRun fake;
  const int code = fake({"--suite", "good,speed", "--out", "run"});
  unsetenv("FAKE_WORKER_DOES_NOT_START");
  EXPECT_EQ(code, 4);
  EXPECT_EQ(fake.find("good/first").status, Status::infra_error);
  EXPECT_EQ(fake.find("speed/below_gate").status, Status::infra_error);
  const reports::Run run = fake.journal();
  ASSERT_EQ(run.findings.size(), 2U);
  EXPECT_EQ(run.findings[0].code, "NSA-X007");
  EXPECT_EQ(run.findings[0].severity, reports::Severity::warn);  // another one is tried
  EXPECT_EQ(run.findings[1].severity, reports::Severity::block);
  EXPECT_EQ(run.findings[0].evidence.at("last_lines"), reports::Json::array({"cannot open shared object file"}));
  EXPECT_THAT(run.provenance["device"]["why_not"].get<std::string>(), HasSubstr("exited with status 127"));
}

TEST(Supervisor, AnotherWorkerTakesThePlaceOfOneThatDiedBeforeItHadWork) {
  FakeRun fake;
  setenv("FAKE_SECOND_WORKER_DIES", "workers", 1);
  const int code = fake({"--suite", "good", "--out", "run"});
  unsetenv("FAKE_SECOND_WORKER_DIES");
  EXPECT_EQ(code, 0);
  EXPECT_EQ(fake.find("good/first").status, Status::pass);
  const reports::Run run = fake.journal();
  ASSERT_EQ(run.findings.size(), 1U);
  EXPECT_EQ(run.findings[0].code, "NSA-X007");
  EXPECT_EQ(run.findings[0].severity, reports::Severity::warn);
}

TEST(Supervisor, SeedsDoNotDependOnSelection) {
  FakeRun all, one;
  all({"--suite", "good", "--out", "run"});
  one({"--case", "good/length[S=2]", "--out", "run"});
  EXPECT_EQ(all.find("good/length[S=2]").facts["seed"], one.find("good/length[S=2]").facts["seed"]);
}

}  // namespace
