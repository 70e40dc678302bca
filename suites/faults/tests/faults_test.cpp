// The tester is tested: every planted fault, run through the real program, must end with an exit code other than 0, and
// findings of an expected code must point at the cause that the report leads with. On the CPU, but for those that only
// a GPU shows.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "suites/program.hpp"

namespace suites {
namespace {

using harness::Json;

// The suites to run for a fault: those that are to find it. (Smoke as a whole finds each of them too; this is the
// shortest way there.)
const std::map<std::string, std::string> kFoundBy = {
    {"zero-gate-init", "init_stats"},
    {"flag-ignored", "flag_matrix"},
    {"inplace-view-write", "autograd"},
    {"nan-at-block-boundary", "s_sweep"},
    {"empty-row-nan", "s_sweep"},
    {"future-leak", "parity"},
    {"detached-compressed-keys", "autograd"},
    {"uninitialised-cu-seqlens", "forward"},
    {"kv-expand-slow", "throughput"},
    {"stale-halt", "preflight"},
    {"config-drift", "preflight"},
    {"nan-gradient-step", "training"},
    {"worker-crash", "s_sweep"},
    {"worker-hang", "s_sweep"},
    {"worker-exit-zero", "s_sweep"},
    {"attend-nan-at-512", "s_sweep"},
    {"attend-dq-nan-at-512", "s_sweep"},
    {"attend-dv-cmp-nan-at-2048", "s_sweep"},
};

// Faults of attention as a whole are found by one case each, at the length in their name; 2048 tokens need a GPU
// (suites/parity/tests plants them all in one process).
std::string case_for(const std::string& fault) {
  if (fault.starts_with("captured-")) return "training/captured_step";
  const std::size_t at = fault.rfind("-at-");
  const std::string S = at == std::string::npos ? "128" : fault.substr(at + 4);
  return fault.find("nan-at") == std::string::npos ? "parity/attention[S=" + S + "]" : "";
}

// No case of smoke takes 2048 tokens on the CPU, and no step is captured there.
bool needs_gpu(const std::string& fault) { return fault.ends_with("-at-2048") || fault.starts_with("captured-"); }

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const harness::Fault& fault : faults(std::make_shared<Seams>())) all.push_back(fault.name);
  return all;
}

// What the reader of report.md is told first, for faults whose place a suite can name.
const std::map<std::string, std::string> kLeads = {
    {"inplace-view-write", "layer 0, attend_window, input v: written in place"}};

// The first line of the first finding: "- `case`: message".
std::string first_occurrence(const std::filesystem::path& report) {
  std::ifstream file(report);
  std::string line;
  while (std::getline(file, line) && !line.starts_with("### 1. ")) {
  }
  while (std::getline(file, line) && !line.starts_with("- ")) {
  }
  return line;
}

class PlantedFault : public testing::TestWithParam<std::string> {};

TEST_P(PlantedFault, IsFoundByName) {
  const std::string name = GetParam();
  if (needs_gpu(name) && !torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  const std::string own_case = name.starts_with("attend-") || needs_gpu(name) ? case_for(name) : "";
  ASSERT_TRUE(kFoundBy.contains(name) || !own_case.empty()) << "say in kFoundBy which suite finds it";
  const std::string what = own_case.empty() ? "--suite " + kFoundBy.at(name) : "--case '" + own_case + "'";
  const std::filesystem::path out = std::filesystem::temp_directory_path() / ("nsa-validate-fault-" + name);
  std::filesystem::remove_all(out);
  const std::string command = std::string(NSA_VALIDATE_BINARY) + " --device " + (needs_gpu(name) ? "cuda" : "cpu") +
                              " --gates report --hang 8 --inject " + name + " " + what + " --out " + out.string() +
                              " >/dev/null 2>&1";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 0);

  std::ifstream file(out / "report.json");
  ASSERT_TRUE(file) << "no report in " << out;
  const Json report = Json::parse(file);
  EXPECT_NE(report.at("verdict"), "READY");
  ASSERT_FALSE(report.at("causes").empty());
  const Json& likeliest = report.at("causes").at(0);  // the fault itself, not what follows from it
  const std::vector<std::string> codes = likeliest.at("codes");
  bool named = false;
  for (const harness::Fault& fault : faults(std::make_shared<Seams>())) {
    if (fault.name != name) continue;
    for (const std::string& code : fault.expected_codes)
      named = named || std::find(codes.begin(), codes.end(), code) != codes.end();
  }
  EXPECT_TRUE(named) << "named instead: " << likeliest.dump();
  if (kLeads.contains(name)) {
    const std::string told = first_occurrence(out / "report.md");
    EXPECT_NE(told.find(kLeads.at(name)), std::string::npos) << told;
  }
  if (!HasFailure()) std::filesystem::remove_all(out);
}

INSTANTIATE_TEST_SUITE_P(Catalogue, PlantedFault, testing::ValuesIn(names()), [](const auto& fault) {
  std::string name = fault.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace suites
