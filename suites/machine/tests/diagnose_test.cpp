#include "suites/diagnose.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "suites/codes.hpp"
#include "suites/locations.hpp"
#include "suites/preflight/settings.hpp"

namespace suites {
namespace {

using harness::Diagnosis;
using State = Diagnosis::State;

harness::Settings settings() {
  std::vector<harness::SettingSpec> specs = harness::own_settings();
  for (const auto& more : {common_settings(), preflight_settings()})
    specs.insert(specs.end(), more.begin(), more.end());
  harness::Settings made(std::move(specs));
  made.set("run.device", "cpu", "test");
  return made;
}

harness::Json provenance() {
  return {{"program", {{"version", "1"}}},
          {"source", {{"folder", "/nowhere"}}},
          {"build", {{"build_id", "a"}, {"source_hash", "a"}}},
          {"environment", harness::Json::object()}};
}

std::vector<std::string> problems(const Diagnosis& diagnosis) {
  std::vector<std::string> found;
  for (const Diagnosis::Row& row : diagnosis.rows)
    if (row.state == State::problem) found.push_back(row.code);
  return found;
}
// But for who else uses a GPU of this machine at the moment: other tests may.
std::vector<std::string> problems_here(const Diagnosis& diagnosis) {
  std::vector<std::string> found = problems(diagnosis);
  std::erase(found, std::string(codes::kForeignProcess));
  return found;
}
bool has_table(const Diagnosis& diagnosis, const std::string& title) {
  for (const Diagnosis::Table& table : diagnosis.tables)
    if (table.title.starts_with(title)) return !table.rows.empty();
  return false;
}

TEST(Diagnose, AHealthyMachineHasNoProblemAndEveryTable) {
  const Diagnosis found = diagnose(settings(), provenance(), {});
  EXPECT_TRUE(problems_here(found).empty()) << problems_here(found)[0];
  for (const char* title : {"Versions", "Flags in force", "Memory of a training step"})
    EXPECT_TRUE(has_table(found, title)) << title;
}

TEST(Diagnose, WhatIsWrongIsAProblemWithItsCode) {
  harness::Json broken = provenance();
  broken["build"]["source_hash"] = "b";
  broken["environment"]["CUDA_LAUNCH_BLOCKING"] = "1";
  harness::Settings asked = settings();
  asked.set("data", "/nowhere/text", "test");
  asked.set("preflight.expect_environment", "[NSA_USE_FA2=1]", "test");
  asked.set("preflight.host_memory_gib", "65536", "test");
  const Diagnosis found = diagnose(asked, broken, {});
  const std::vector<std::string> wanted = {std::string(codes::kBuildStale), std::string(codes::kUnexpectedFlags),
                                           std::string(codes::kHarmfulVariable), std::string(codes::kHostResources),
                                           std::string(codes::kFirstBatch)};
  EXPECT_EQ(problems_here(found), wanted);
}

TEST(Diagnose, AMisspeltFlagIsANote) {
  setenv("NSA_USE_FA", "1", 1);
  const Diagnosis found = diagnose(settings(), provenance(), {});
  unsetenv("NSA_USE_FA");
  EXPECT_TRUE(problems_here(found).empty());
  bool told = false;
  for (const Diagnosis::Row& row : found.rows)
    told = told || (row.state == State::note && row.code == codes::kUnknownFlag);
  EXPECT_TRUE(told);
}

TEST(Diagnose, AFlagThatCannotBeReadDoesNotStopTheRest) {
  setenv("NSA_USE_FA2", "maybe", 1);
  const Diagnosis found = diagnose(settings(), provenance(), {});
  unsetenv("NSA_USE_FA2");
  EXPECT_TRUE(has_table(found, "Versions"));
  EXPECT_FALSE(found.rows.empty());
}

TEST(Diagnose, ALawFileThatCannotBeReadIsAProblem) {
  const LawOf bad = [](const auto&, const auto&) -> std::optional<machine::FittedLaw> {
    throw std::runtime_error("h200.yaml:3: no number");
  };
  const Diagnosis found = diagnose(settings(), provenance(), {}, bad);
  EXPECT_EQ(problems_here(found).size(), 1U);
  EXPECT_TRUE(has_table(found, "Memory of a training step")) << "the lower count is told all the same";
}

TEST(Rows, OneGoodRowOrOneForEachFailure) {
  machine::Inspection inspection;
  inspection.summary = "all is well";
  inspection.judgements = {{"a", true, "x", codes::kGpuFault}, {"b", true, "y", codes::kUnknownFlag}};
  ASSERT_EQ(rows_of(inspection).size(), 1U);
  EXPECT_EQ(rows_of(inspection)[0].state, State::good);
  inspection.judgements[0].holds = inspection.judgements[1].holds = false;
  ASSERT_EQ(rows_of(inspection).size(), 2U);
  EXPECT_EQ(rows_of(inspection)[0].state, State::problem);
  EXPECT_EQ(rows_of(inspection)[1].state, State::note);
  inspection.judgements.clear();
  inspection.cannot_tell = true;
  EXPECT_EQ(rows_of(inspection)[0].state, State::note);
}

// -- a driver with one GPU on which somebody else's process holds 10 GiB

int gpu;
int ok() { return 0; }
int count(unsigned* n) { return *n = 1, 0; }
int by_index(unsigned, void** device) { return *device = &gpu, 0; }
int gpu_name(void*, char* text, unsigned length) { return std::strncpy(text, "NVIDIA H200", length), 0; }
int memory(void*, unsigned long long* rows) {
  return rows[0] = 140ULL << 30, rows[1] = 129ULL << 30, rows[2] = 11ULL << 30, 0;
}
struct Row {
  unsigned pid;
  unsigned long long bytes;
  unsigned a, b;
};
int processes(void*, unsigned* n, Row* rows) { return rows[0] = {0x7ffffff0, 10ULL << 30, 0, 0}, *n = 1, 0; }
int errors(void*, int, int, unsigned long long* n) { return *n = 2, 0; }

void* lookup(const char* symbol) {
  static const std::map<std::string, void*> table = {
      {"nvmlInit_v2", reinterpret_cast<void*>(&ok)},
      {"nvmlShutdown", reinterpret_cast<void*>(&ok)},
      {"nvmlDeviceGetCount_v2", reinterpret_cast<void*>(&count)},
      {"nvmlDeviceGetHandleByIndex_v2", reinterpret_cast<void*>(&by_index)},
      {"nvmlDeviceGetName", reinterpret_cast<void*>(&gpu_name)},
      {"nvmlDeviceGetMemoryInfo", reinterpret_cast<void*>(&memory)},
      {"nvmlDeviceGetComputeRunningProcesses_v3", reinterpret_cast<void*>(&processes)},
      {"nvmlDeviceGetTotalEccErrors", reinterpret_cast<void*>(&errors)}};
  const auto it = table.find(symbol);
  return it == table.end() ? nullptr : it->second;
}

TEST(DiagnoseGpus, BrokenMemoryAndAStrangerAreProblems) {
  const Diagnosis found = diagnose_gpus(probes::Nvml(lookup));
  EXPECT_EQ(problems(found),
            (std::vector<std::string>{std::string(codes::kGpuFault), std::string(codes::kForeignProcess)}));
  ASSERT_TRUE(has_table(found, "Processes on the GPUs"));
  EXPECT_EQ(found.tables[1].rows[0][1], "2147483632");
  EXPECT_EQ(found.tables[1].rows[0][4], "10737418240");
}

TEST(DiagnoseGpus, NoDriverIsANote) {
  const Diagnosis found = diagnose_gpus(probes::Nvml(nullptr));
  EXPECT_TRUE(problems(found).empty());
  ASSERT_EQ(found.rows.size(), 1U);
  EXPECT_EQ(found.rows[0].state, State::note);
}

}  // namespace
}  // namespace suites
