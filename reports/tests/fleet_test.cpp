// merge(): who is there, what differs, what speaks against READY.
#include "reports/fleet.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reports/tests/support/fleet_sample.hpp"
#include "reports/tests/support/sample.hpp"

namespace reports {
namespace {

using sample::find;
using sample::fleet_of;
using sample::options;
using sample::run_of_host;
using sample::runs_of_hosts;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const FleetDifference* difference(const Fleet& fleet, const std::string& name) {
  for (const FleetDifference& row : fleet.differences)
    if (row.name == name) return &row;
  return nullptr;
}

// A fleet of ten whose last host is changed.
template <typename Change>
Fleet with_odd_host(Change change) {
  auto runs = runs_of_hosts(10);
  change(runs[9]);
  return fleet_of(runs);
}

TEST(Fleet, EqualHostsThatAreReadyAreAReadyFleet) {
  const Fleet fleet = fleet_of(runs_of_hosts(10));
  EXPECT_EQ(fleet.verdict, Verdict::ready);
  EXPECT_EQ(fleet.exit_code, ExitCode::ready);
  EXPECT_THAT(fleet.reasons, ElementsAre("all 10 hosts are READY"));
  EXPECT_THAT(fleet.findings, IsEmpty());
  EXPECT_THAT(fleet.differences, IsEmpty()) << "names and bus ids are each host's own";
  EXPECT_EQ(fleet.slow.comparisons, 20U) << "of a rate and a time; nobody knows which use of a GPU is slow";
}

TEST(Fleet, OfOneHostIsSpokenAsOfOne) {
  EXPECT_THAT(fleet_of(runs_of_hosts(1)).reasons, ElementsAre("the host is READY"));
}

TEST(Fleet, NoHostIsNoReadyFleet) {
  const Fleet fleet = merge({}, options());
  EXPECT_NE(fleet.verdict, Verdict::ready);
  EXPECT_EQ(fleet.exit_code, ExitCode::nothing_executed);
}

TEST(Fleet, OneHostThatIsNotReadyDecides) {
  Fleet fleet = with_odd_host([](reports::Run& run) {
    run.suites[0].cases[0].status = Status::fail;
    run.suites[0].cases[0].findings = {sample::finding(Severity::block)};
  });
  EXPECT_EQ(fleet.verdict, Verdict::not_ready);
  EXPECT_EQ(fleet.exit_code, ExitCode::failed);
  EXPECT_THAT(fleet.reasons, ElementsAre("NOT READY: node09"));
  fleet = with_odd_host([](reports::Run& run) { run.complete = false; });
  EXPECT_EQ(fleet.verdict, Verdict::conditional);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
  EXPECT_EQ(fleet.hosts[9].state, FleetHost::State::unfinished);
}

TEST(Fleet, ARunThatIsGoingOnIsNeverReady) {
  FleetHost host = host_of(run_of_host("a"), "run/a");
  host.state = FleetHost::State::running;  // it holds its folder, and all cases have passed
  const Fleet fleet = merge({host}, options());
  EXPECT_EQ(fleet.verdict, Verdict::conditional);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
}

TEST(Fleet, AFindingOfManyHostsStandsOnce) {
  auto runs = runs_of_hosts(4);
  for (const std::size_t i : {1U, 3U}) {
    runs[i].suites[0].cases[1].findings = {sample::finding(Severity::warn), sample::finding(Severity::warn)};
    runs[i].suites[0].cases[1].findings[0].message = "of " + std::to_string(i);
  }
  runs[3].findings = {sample::finding(Severity::degrade)};
  const Fleet fleet = fleet_of(runs);
  ASSERT_EQ(fleet.findings.size(), 1U);
  const FleetFinding& finding = fleet.findings[0];
  EXPECT_THAT(finding.hosts, ElementsAre(1U, 3U));
  EXPECT_EQ(finding.times, 5);
  EXPECT_EQ(finding.first.severity, Severity::degrade) << "the worst one speaks";
  EXPECT_EQ(finding.where, "");
  EXPECT_FALSE(finding.of_fleet);
}

// -- who is there

TEST(Fleet, MissingHostsAreNamedAndNeverReady) {
  FleetOptions with = options();
  with.expected_names = {"node00", "node01", "node07"};
  Fleet fleet = fleet_of(runs_of_hosts(2), with);
  EXPECT_EQ(fleet.verdict, Verdict::conditional);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
  EXPECT_EQ(fleet.hosts.back().name, "node07");
  EXPECT_EQ(fleet.hosts.back().state, FleetHost::State::missing);
  EXPECT_THAT(fleet.reasons[0], HasSubstr("missing: node07"));
  with = options();
  with.expected_number = 4;
  fleet = fleet_of(runs_of_hosts(3), with);
  EXPECT_EQ(fleet.hosts.size(), 4U);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
  with.expected_number = 3;
  EXPECT_EQ(fleet_of(runs_of_hosts(3), with).exit_code, ExitCode::ready);
}

TEST(Fleet, MoreHostsThanExpectedAreToldAndNeverReady) {
  FleetOptions with = options();
  with.expected_number = 2;
  EXPECT_EQ(fleet_of(runs_of_hosts(3), with).exit_code, ExitCode::inconclusive);
  with = options();
  with.expected_names = {"node00"};
  const Fleet fleet = fleet_of(runs_of_hosts(2), with);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
  EXPECT_THAT(find(fleet, "unexpected")->hosts, ElementsAre(1U));
}

TEST(Fleet, AnExpectedNameStandsForItsRanksAndItsFullName) {
  FleetOptions with = options();
  with.expected_names = {"a", "b"};
  const Fleet fleet = fleet_of({run_of_host("a.0"), run_of_host("a.1"), run_of_host("b.cluster")}, with);
  EXPECT_EQ(fleet.exit_code, ExitCode::ready) << fleet.reasons[0];
  EXPECT_EQ(fleet_of({run_of_host("ab"), run_of_host("b")}, with).exit_code, ExitCode::inconclusive) << "a is not ab";
}

Run ranked(const std::string& name, int rank, int size) {
  reports::Run run = run_of_host(name);
  run.provenance["launch"] = {{"launcher", "slurm"}, {"job", "7.0"},          {"rank", rank},
                              {"size", size},        {"local_rank", nullptr}, {"name", name}};
  return run;
}

TEST(Fleet, ALaunchKnowsHowManyItIsOf) {
  EXPECT_EQ(fleet_of({ranked("a", 0, 2), ranked("b", 1, 2)}).exit_code, ExitCode::ready);
  const Fleet fleet = fleet_of({ranked("a", 0, 3), ranked("b", 2, 3)});
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
  ASSERT_EQ(fleet.hosts.size(), 3U);
  EXPECT_EQ(fleet.hosts[2].name, "rank 1 of 3");
  EXPECT_EQ(fleet.hosts[2].state, FleetHost::State::missing);
}

TEST(Fleet, ALaunchThatCannotBeIsRefused) {
  EXPECT_THROW((void)host_of(ranked("a", 0, 100001), "run/a"), std::invalid_argument);
  EXPECT_THROW((void)host_of(ranked("a", -1, 2), "run/a"), std::invalid_argument);
  EXPECT_THROW((void)host_of(ranked("a", 0, 0), "run/a"), std::invalid_argument);
  EXPECT_THROW((void)host_of(ranked("a", 2, 2), "run/a"), std::invalid_argument);
  reports::Run words = ranked("a", 0, 2);
  words.provenance["launch"]["size"] = "two";
  try {
    (void)host_of(words, "run/a");
    ADD_FAILURE() << "a rank that is missing would not be";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("launch.size is \"two\", allowed is an integer from 1 to 100000"));
  }
}

TEST(Fleet, ARankThatIsMissingIsToldBesideTheNames) {
  FleetOptions with = options();
  with.expected_names = {"a", "b"};
  Fleet fleet = fleet_of({ranked("a.0", 0, 4), ranked("a.1", 1, 4), ranked("b.2", 2, 4)}, with);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
  EXPECT_THAT(fleet.reasons[0], HasSubstr("missing: rank 3 of 4"));
  fleet = fleet_of({ranked("a", 0, 2)}, with);
  EXPECT_EQ(fleet.hosts.size(), 2U) << "b is rank 1";
  EXPECT_THAT(fleet.reasons[0], HasSubstr("missing: b"));
}

TEST(Fleet, AnUnreadableHostIsNotMissingToo) {
  const Fleet fleet =
      merge({host_of(ranked("a", 0, 2), "run/a"), unreadable_host("b", "run/b", "run/b: torn", false)}, options());
  EXPECT_EQ(fleet.hosts.size(), 2U);
  EXPECT_EQ(fleet.exit_code, ExitCode::usage);
  EXPECT_EQ(fleet.verdict, Verdict::conditional);
  EXPECT_THAT(find(fleet, "unreadable")->first.message, HasSubstr("run/b: torn"));
  EXPECT_EQ(merge({unreadable_host("b", "run/b", "other schema", true)}, options()).exit_code, ExitCode::incompatible);
}

TEST(Fleet, AHostThatIsThereTwiceIsRefusedByName) {
  Fleet fleet = fleet_of({run_of_host("a"), run_of_host("a"), run_of_host("b")});
  EXPECT_EQ(fleet.exit_code, ExitCode::usage);
  EXPECT_EQ(fleet.verdict, Verdict::conditional);
  EXPECT_THAT(find(fleet, "twice")->hosts, ElementsAre(0U, 1U));
  reports::Run copy = run_of_host("c");
  copy.id = "run of b";
  fleet = fleet_of({run_of_host("b"), copy});
  EXPECT_THAT(find(fleet, "twice")->first.message, HasSubstr("are the same run run of b"));
}

// What an earlier attempt of a job left, or a rank that was started twice. Where no job is told, it may be two
// launches.
TEST(Fleet, ARankThatIsThereTwiceInOneJobIsRefusedByName) {
  const Fleet fleet = fleet_of({ranked("a", 0, 2), ranked("b", 0, 2), ranked("c", 1, 2)});
  EXPECT_EQ(fleet.exit_code, ExitCode::usage);
  EXPECT_THAT(find(fleet, "twice")->first.message, HasSubstr("are the same rank 0 of slurm 7.0"));
  EXPECT_THAT(find(fleet, "twice")->hosts, ElementsAre(0U, 1U));
  std::vector<reports::Run> two = {ranked("a", 0, 2), ranked("b", 1, 2), ranked("c", 0, 2), ranked("d", 1, 2)};
  for (reports::Run& run : two) run.provenance["launch"]["job"] = "";
  EXPECT_EQ(fleet_of(two).exit_code, ExitCode::ready);
}

// A run of `host` that saw one GPU.
Run on_gpu(const std::string& host, const std::string& visible, const std::string& uuid, const std::string& bus_id) {
  reports::Run run = run_of_host(host);
  run.id += " on " + visible + uuid + bus_id;
  run.device = "cuda";
  run.provenance["gpus"][0]["bus_id"] = bus_id;
  if (!uuid.empty()) run.provenance["gpus"][0]["uuid"] = uuid;
  if (!visible.empty()) run.provenance["environment"]["CUDA_VISIBLE_DEVICES"] = visible;
  return run;
}

std::vector<std::string> names_of(const Fleet& fleet) {
  std::vector<std::string> names;
  for (const FleetHost& host : fleet.hosts) names.push_back(host.name);
  return names;
}

TEST(Fleet, GpusOfOneHostAreEachAPlace) {
  const std::vector<reports::Run> both = {on_gpu("a", "1", "GPU-1", "0:7"), on_gpu("a", "0", "GPU-0", "0:6")};
  const Fleet fleet = fleet_of(both);
  EXPECT_THAT(names_of(fleet), ElementsAre("a:gpu0", "a:gpu1"));
  EXPECT_EQ(fleet.exit_code, ExitCode::ready) << fleet.reasons[0];
  EXPECT_THAT(fleet.reasons, ElementsAre("all 2 GPUs of 1 host are READY"));
  EXPECT_THAT(fleet.differences, IsEmpty()) << "CUDA_VISIBLE_DEVICES chose them";
  EXPECT_THAT(to_text(fleet), HasSubstr("merge: 2 GPUs of 1 host: 2 READY; READY, exit code 0"));

  FleetOptions with = options();
  for (const auto& expected : {std::vector<std::string>{"a:gpu0", "a:gpu1"}, {"a"}}) {
    with.expected_names = expected;
    EXPECT_EQ(fleet_of(both, with).exit_code, ExitCode::ready);
  }
  with.expected_names = {"a:gpu0", "a:gpu1"};
  const Fleet half = fleet_of({both[0]}, with);
  EXPECT_EQ(half.exit_code, ExitCode::inconclusive);
  EXPECT_THAT(names_of(half), ElementsAre("a:gpu0", "a:gpu1")) << "the one that is there is still number 1";
  EXPECT_EQ(half.hosts[0].state, FleetHost::State::missing);
}

TEST(Fleet, GpusAreToldApartByWhatBothTell) {
  using testing::Pair;
  const auto named = [](const std::vector<reports::Run>& runs) {
    const Fleet fleet = fleet_of(runs);
    return std::pair(names_of(fleet), find(fleet, "twice") != nullptr);
  };
  EXPECT_THAT(named({on_gpu("a", "0", "GPU-0", "0:6"), on_gpu("a", "1", "GPU-0", "0:6")}),
              Pair(ElementsAre("a", "a"), true))
      << "one GPU, seen as another number";
  EXPECT_THAT(named({on_gpu("a", "0", "", "0:6"), on_gpu("a", "0", "", "0:7")}),
              Pair(ElementsAre("a:gpu0", "a:gpu1"), false))
      << "two GPUs, seen as one number";
  EXPECT_THAT(named({on_gpu("a", "", "", ""), on_gpu("a", "3", "", "")}), Pair(ElementsAre("a:gpu0", "a:gpu3"), false))
      << "one that sees all uses the first";
  EXPECT_THAT(named({on_gpu("a", "0", "GPU-0", "0:6"), on_gpu("a", "1", "GPU-1", "0:7"), on_gpu("a", "1", "", "0:7")}),
              Pair(ElementsAre("a:gpu0", "a:gpu1", "a:gpu1"), true));
  reports::Run on_cpu = run_of_host("a");
  on_cpu.device = "cpu";
  EXPECT_THAT(named({on_gpu("a", "0", "GPU-0", "0:6"), on_cpu}), Pair(ElementsAre("a", "a"), true))
      << "a run on the CPU has no GPU";
}

TEST(Fleet, GpusAndWholeHostsAreCountedApart) {
  const Fleet fleet = fleet_of({on_gpu("a", "0", "", "0:6"), on_gpu("a", "1", "", "0:7"), on_gpu("b", "", "", "0:6")});
  EXPECT_THAT(names_of(fleet), ElementsAre("a:gpu0", "a:gpu1", "b"));
  EXPECT_THAT(fleet.differences, IsEmpty());
  EXPECT_THAT(to_text(fleet), HasSubstr("merge: 2 GPUs of 1 host and 1 other host: 3 READY"));
}

// -- what differs

struct Change {
  const char* where;
  const char* name;  // as the difference is called
  const char* code;  // "": told by nobody
};

TEST(Fleet, EveryKindOfDifferenceIsToldOfTheOddHost) {
  const Change changes[] = {
      {"/program/version", "program.version", "other_validation"},
      {"/build/build_id", "build.build_id", "other_validation"},
      {"/torch/version", "torch.version", "other_validation"},
      {"/cuda/runtime", "cuda.runtime", "other_validation"},
      {"/flags/effective/NSA_X/value", "flags.effective.NSA_X", "other_validation"},
      {"/settings/values/run.hang_s/value", "settings.values.run.hang_s", "other_validation"},
      {"/selection/fail_fast", "selection.fail_fast", "other_validation"},
      {"/cuda/driver", "cuda.driver", "other_machine"},
      {"/gpus/0/name", "gpus[0].name", "other_machine"},
      {"/host/kernel", "host.kernel", "other_machine"},
      {"/environment/OMP_NUM_THREADS", "environment.OMP_NUM_THREADS", "other_machine"},
      {"/build/source_hash", "build.source_hash", "other_machine"},
      {"/flags/effective/NSA_X/origin", "flags.effective.NSA_X", ""},
      {"/gpus/0/bus_id", "gpus[0].bus_id", ""},
  };
  for (const Change& change : changes) {
    const Fleet fleet =
        with_odd_host([&](reports::Run& run) { run.provenance[Json::json_pointer(change.where)] = "changed"; });
    const FleetDifference* row = difference(fleet, change.name);
    ASSERT_EQ(row != nullptr, *change.code != '\0') << change.where;
    if (row == nullptr) continue;
    EXPECT_TRUE(row->majority) << change.where;
    EXPECT_THAT(row->groups.at(1).hosts, ElementsAre(9U)) << change.where;
    ASSERT_NE(find(fleet, change.code), nullptr) << change.where;
    EXPECT_THAT(find(fleet, change.code)->hosts, ElementsAre(9U));
    const bool warning = std::string(change.code) == "other_machine";
    EXPECT_EQ(fleet.exit_code, warning ? ExitCode::ready : ExitCode::inconclusive) << change.where;
  }
}

TEST(Fleet, HeadAndPlanAreComparedToo) {
  EXPECT_NE(find(with_odd_host([](reports::Run& run) { run.level = "standard"; }), "other_validation"), nullptr);
  EXPECT_NE(find(with_odd_host([](reports::Run& run) { run.device = "cpu"; }), "other_validation"), nullptr);
  EXPECT_NE(find(with_odd_host([](reports::Run& run) { run.master_seed = 9; }), "other_validation"), nullptr);
  EXPECT_NE(find(with_odd_host([](reports::Run& run) { run.faults = {"zero-gate"}; }), "other_validation"), nullptr);
  EXPECT_NE(find(with_odd_host([](reports::Run& run) { run.suites[0].cases.pop_back(); }), "other_validation"),
            nullptr);
}

TEST(Fleet, WithoutAMajorityNobodyIsOdd) {
  auto runs = runs_of_hosts(4);
  for (const std::size_t i : {0U, 1U}) runs[i].provenance["build"]["build_id"] = "b2";
  const Fleet fleet = fleet_of(runs);
  EXPECT_FALSE(difference(fleet, "build.build_id")->majority);
  EXPECT_EQ(find(fleet, "other_validation")->hosts.size(), 4U);
  EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
}

TEST(Fleet, WhatEveryHostHasOfItsOwnAccusesNobody) {
  auto runs = runs_of_hosts(6);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].provenance["host"]["memory_bytes"] = 1000 + i;
  const Fleet fleet = fleet_of(runs);
  EXPECT_TRUE(difference(fleet, "host.memory_bytes")->individual);
  EXPECT_EQ(find(fleet, "other_machine"), nullptr);
}

TEST(Fleet, LongValuesThatDifferAtTheirEndDiffer) {
  const std::string text(500, 'x');
  auto runs = runs_of_hosts(4);
  for (std::size_t i = 0; i < 4; ++i) runs[i].provenance["cuda"]["driver"] = text + (i == 2 ? "a" : "b");
  EXPECT_THAT(difference(fleet_of(runs), "cuda.driver")->groups.at(1).hosts, ElementsAre(2U));
}

TEST(Fleet, OtherBitsAreToldWhereEqualHostsAgree) {
  Fleet fleet = with_odd_host([](reports::Run& run) { run.suites[0].cases[1].metrics[0].value = 5.250001; });
  ASSERT_NE(find(fleet, "other_bits"), nullptr);
  EXPECT_THAT(find(fleet, "other_bits")->hosts, ElementsAre(9U));
  EXPECT_EQ(fleet.exit_code, ExitCode::ready) << "a warning";
  fleet = with_odd_host([](reports::Run& run) {
    run.suites[0].cases[1].metrics[0].value = 5.250001;
    run.provenance["gpus"][0]["name"] = "NVIDIA A100";
  });
  EXPECT_EQ(find(fleet, "other_bits"), nullptr) << "another GPU computes other bits";
  auto runs = runs_of_hosts(10);
  for (std::size_t i = 0; i < 10; ++i)
    runs[i].suites[0].cases[1].metrics[0].value = 5.25 + 1e-9 * static_cast<double>(i);
  EXPECT_EQ(find(fleet_of(runs), "other_bits"), nullptr) << "a figure that is not repeatable accuses nobody";
}

TEST(Fleet, TracesAreBits) {
  auto runs = runs_of_hosts(5);
  for (std::size_t i = 0; i < 5; ++i) runs[i].suites[0].cases[0].facts["trace/0"] = {{"embed", i == 3 ? "ff" : "aa"}};
  EXPECT_THAT(find(fleet_of(runs), "other_bits")->hosts, ElementsAre(3U));
}

TEST(Fleet, AFigureThatIsNaNOnOneHostIsAFinding) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const std::size_t c : {0U, 1U}) {
      const Fleet fleet =
          with_odd_host([&](reports::Run& run) { run.suites[0].cases[c].metrics[0].value = number(value); });
      ASSERT_NE(find(fleet, "no_number"), nullptr);
      EXPECT_THAT(find(fleet, "no_number")->first.message, HasSubstr("node09 (run/node09): alpha/case"));
      EXPECT_EQ(fleet.exit_code, ExitCode::inconclusive);
    }
  auto runs = runs_of_hosts(3);
  for (reports::Run& run : runs) run.suites[0].cases[1].metrics[0].value = "NaN";
  EXPECT_EQ(find(fleet_of(runs), "no_number"), nullptr) << "on all of them: their own checks judge it";
}

// -- slow hosts

TEST(Fleet, ASlowHostMakesTheFleetConditional) {
  Fleet fleet = with_odd_host([](reports::Run& run) { run.suites[0].cases[0].metrics[0].value = 500; });
  EXPECT_THAT(find(fleet, "slow")->hosts, ElementsAre(9U));
  EXPECT_EQ(fleet.verdict, Verdict::conditional);
  EXPECT_EQ(fleet.exit_code, ExitCode::performance);
  fleet = with_odd_host([](reports::Run& run) {
    run.suites[0].cases[0].metrics[0].value = 500;
    run.suites[0].cases[0].facts["load"] = {{"busy", true}};
  });
  EXPECT_EQ(find(fleet, "slow"), nullptr) << "others were at work there";
}

TEST(Fleet, HostsOfAnotherKindAreNotComparedBySpeed) {
  auto runs = runs_of_hosts(12);
  for (std::size_t i = 10; i < 12; ++i) {
    runs[i].provenance["gpus"][0]["name"] = "NVIDIA A100";
    runs[i].suites[0].cases[0].metrics[0].value = 500;
  }
  const Fleet fleet = fleet_of(runs);
  EXPECT_EQ(find(fleet, "slow"), nullptr);
  EXPECT_NE(find(fleet, "other_machine"), nullptr);
}

TEST(Fleet, ARunWithMoreFactsThanAFleetKeepsIsRefused) {
  reports::Run run = run_of_host("a");
  for (int i = 0; i < 20001; ++i) run.provenance["x"][std::to_string(i)] = i;
  EXPECT_THROW((void)host_of(run, "run/a"), std::invalid_argument);
}

}  // namespace
}  // namespace reports
