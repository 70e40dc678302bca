// The tester is tested: every fault that must be caught, run through the real program, must end with an exit code other
// than 0, and findings of an expected code must point at the cause that the report leads with. On the CPU, but for
// those that only a GPU shows. The whole catalogue is `nsa-validate selftest`'s.
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

const std::vector<Planted>& must_be_caught() {
  static const std::vector<Planted> all = [] {
    std::vector<Planted> faults = catalogue(std::make_shared<Seams>());
    std::erase_if(faults, [](const Planted& fault) { return !fault.must_catch; });
    return faults;
  }();
  return all;
}

const Planted& fault_named(const std::string& name) {
  return *std::find_if(must_be_caught().begin(), must_be_caught().end(),
                       [&](const Planted& fault) { return fault.name == name; });
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Planted& fault : must_be_caught()) all.push_back(fault.name);
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
  const Planted& fault = fault_named(name);
  if (fault.needs_gpu && !torch::cuda::is_available()) GTEST_SKIP() << "needs a GPU";
  const bool one_case = fault.found_by.find('/') != std::string::npos;
  const std::string what = (one_case ? "--case '" : "--suite '") + fault.found_by + "'";
  const std::filesystem::path out = std::filesystem::temp_directory_path() / ("nsa-validate-fault-" + name);
  std::filesystem::remove_all(out);
  const std::string command = std::string(NSA_VALIDATE_BINARY) + " --device " + (fault.needs_gpu ? "cuda" : "cpu") +
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
  for (const std::string& code : fault.expected_codes)
    named = named || std::find(codes.begin(), codes.end(), code) != codes.end();
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
