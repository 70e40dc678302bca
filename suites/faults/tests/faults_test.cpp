// The tester is tested: every planted fault, run through the real program on the CPU, must end with an exit code other
// than 0 and with a finding of an expected code and of severity degrade or worse.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

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
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const harness::Fault& fault : faults(std::make_shared<Seams>())) all.push_back(fault.name);
  return all;
}

std::set<std::string> grave_codes(const Json& report) {
  std::set<std::string> codes;
  const auto collect = [&](const Json& findings) {
    for (const Json& f : findings) {
      const std::string severity = f.at("severity");
      if (severity != "info" && severity != "warn") codes.insert(f.at("code").get<std::string>());
    }
  };
  for (const Json& suite : report.at("suites")) {
    for (const Json& c : suite.at("cases")) collect(c.at("findings"));
  }
  return codes;
}

class PlantedFault : public testing::TestWithParam<std::string> {};

TEST_P(PlantedFault, IsFoundByName) {
  const std::string name = GetParam();
  ASSERT_TRUE(kFoundBy.contains(name)) << "say in kFoundBy which suite finds it";
  const std::filesystem::path out = std::filesystem::temp_directory_path() / ("nsa-validate-fault-" + name);
  std::filesystem::remove_all(out);
  const std::string command = std::string(NSA_VALIDATE_BINARY) + " --device cpu --gates report --hang 8 --inject " +
                              name + " --suite " + kFoundBy.at(name) + " --out " + out.string() + " >/dev/null 2>&1";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 0);

  std::ifstream file(out / "report.json");
  ASSERT_TRUE(file) << "no report in " << out;
  const Json report = Json::parse(file);
  EXPECT_NE(report.at("verdict"), "READY");
  const std::set<std::string> found = grave_codes(report);
  bool named = false;
  for (const harness::Fault& fault : faults(std::make_shared<Seams>())) {
    if (fault.name != name) continue;
    for (const std::string& code : fault.expected_codes) named = named || found.contains(code);
  }
  EXPECT_TRUE(named) << "found instead: " << Json(found).dump();
  if (!HasFailure()) std::filesystem::remove_all(out);
}

INSTANTIATE_TEST_SUITE_P(Catalogue, PlantedFault, testing::ValuesIn(names()), [](const auto& fault) {
  std::string name = fault.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace suites
