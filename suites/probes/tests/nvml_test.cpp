#include "suites/probes/nvml.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

namespace suites::probes {
namespace {

// A fake driver library with one GPU; each test may take symbols away or make them fail.
struct FakeProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct FakeDriver {
  int init_result = 0, query_result = 0;
  unsigned processes = 2;
  int shutdowns = 0;
  int rows_result = 0;  // 3: this GPU replaces no rows
} fake;
int gpu;  // its address is the device's handle

int fake_init() { return fake.init_result; }
int fake_shutdown() { return ++fake.shutdowns, 0; }
const char* fake_words(int) { return "Driver/library version mismatch"; }
int fake_version(char* text, unsigned length) { return std::strncpy(text, "580.95.05", length), fake.query_result; }
int fake_count(unsigned* count) { return *count = 1, 0; }
int fake_by_index(unsigned index, void** device) { return *device = &gpu, index == 0 ? 0 : 2; }
int fake_by_bus(const char* id, void** device) { return *device = &gpu, std::string(id) == "0000:0b:00.0" ? 0 : 6; }
int fake_processes(void*, unsigned* count, FakeProcess* rows) {
  if (*count < fake.processes) return *count = fake.processes, 7;  // insufficient size
  for (unsigned i = 0; i < fake.processes; ++i) rows[i] = {100 + i, i == 1 ? ~0ULL : 1ULL << 30, 0, 0};
  return *count = fake.processes, fake.query_result;
}
int fake_utilisation(void*, unsigned* rates) { return rates[0] = 83, rates[1] = 12, fake.query_result; }
int fake_memory(void*, unsigned long long* rows) {
  return rows[0] = 100, rows[1] = 60, rows[2] = 40, fake.query_result;
}
int fake_clock(void*, int type, unsigned* mhz) { return *mhz = type == 1 ? 1500 : 2600, fake.query_result; }
int fake_max_clock(void*, int, unsigned* mhz) { return *mhz = 1980, fake.query_result; }
int fake_throttle(void*, unsigned long long* reasons) { return *reasons = 0x1 | 0x4 | 0x40, fake.query_result; }
int fake_name(void*, char* text, unsigned length) {
  return std::strncpy(text, "NVIDIA H200", length), fake.query_result;
}
int fake_uuid(void*, char* text, unsigned length) { return std::strncpy(text, "GPU-1", length), fake.query_result; }
int fake_temperature(void*, int, unsigned* celsius) { return *celsius = 41, fake.query_result; }
int fake_draw(void*, unsigned* mw) { return *mw = 75500, fake.query_result; }
int fake_limit(void*, unsigned* mw) { return *mw = 600000, fake.query_result; }
int fake_default_limit(void*, unsigned* mw) { return *mw = 700000, fake.query_result; }
int fake_ecc(void*, int type, int counter, unsigned long long* count) {
  return *count = type != 1 ? 99 : counter == 0 ? 2 : 5, fake.query_result;
}
int fake_rows(void*, unsigned* a, unsigned* b, unsigned* pending, unsigned* failed) {
  return *a = *b = 7, *pending = 1, *failed = 0, fake.rows_result;
}

void* lookup(const char* symbol) {
  static const std::map<std::string, void*> table = {
      {"nvmlInit_v2", reinterpret_cast<void*>(&fake_init)},
      {"nvmlShutdown", reinterpret_cast<void*>(&fake_shutdown)},
      {"nvmlErrorString", reinterpret_cast<void*>(&fake_words)},
      {"nvmlSystemGetDriverVersion", reinterpret_cast<void*>(&fake_version)},
      {"nvmlDeviceGetCount_v2", reinterpret_cast<void*>(&fake_count)},
      {"nvmlDeviceGetHandleByIndex_v2", reinterpret_cast<void*>(&fake_by_index)},
      {"nvmlDeviceGetHandleByPciBusId_v2", reinterpret_cast<void*>(&fake_by_bus)},
      {"nvmlDeviceGetComputeRunningProcesses_v3", reinterpret_cast<void*>(&fake_processes)},
      {"nvmlDeviceGetUtilizationRates", reinterpret_cast<void*>(&fake_utilisation)},
      {"nvmlDeviceGetMemoryInfo", reinterpret_cast<void*>(&fake_memory)},
      {"nvmlDeviceGetClockInfo", reinterpret_cast<void*>(&fake_clock)},
      {"nvmlDeviceGetMaxClockInfo", reinterpret_cast<void*>(&fake_max_clock)},
      {"nvmlDeviceGetCurrentClocksThrottleReasons", reinterpret_cast<void*>(&fake_throttle)},
      {"nvmlDeviceGetName", reinterpret_cast<void*>(&fake_name)},
      {"nvmlDeviceGetUUID", reinterpret_cast<void*>(&fake_uuid)},
      {"nvmlDeviceGetTemperature", reinterpret_cast<void*>(&fake_temperature)},
      {"nvmlDeviceGetPowerUsage", reinterpret_cast<void*>(&fake_draw)},
      {"nvmlDeviceGetEnforcedPowerLimit", reinterpret_cast<void*>(&fake_limit)},
      {"nvmlDeviceGetPowerManagementDefaultLimit", reinterpret_cast<void*>(&fake_default_limit)},
      {"nvmlDeviceGetTotalEccErrors", reinterpret_cast<void*>(&fake_ecc)},
      {"nvmlDeviceGetRemappedRows", reinterpret_cast<void*>(&fake_rows)}};
  const auto it = table.find(symbol);
  return it == table.end() ? nullptr : it->second;
}

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override { fake = {}; }
};

TEST_F(NvmlTest, AnswersEveryQuestion) {
  const Nvml nvml(lookup);
  ASSERT_TRUE(nvml.available()) << nvml.why_not();
  EXPECT_EQ(nvml.driver_version(), "580.95.05");
  EXPECT_EQ(nvml.device_count(), 1U);
  const auto device = nvml.device("0000:0b:00.0");
  ASSERT_TRUE(device.has_value());
  EXPECT_EQ(device, nvml.device(0));
  EXPECT_EQ(nvml.utilisation(*device), 83);
  EXPECT_EQ(nvml.memory(*device)->used, 40U);
  EXPECT_EQ(nvml.clocks(*device)->sm_mhz, 1500U);
  EXPECT_EQ(nvml.clocks(*device)->sm_max_mhz, 1980U);
  EXPECT_EQ(nvml.clocks(*device)->memory_mhz, 2600U);
  EXPECT_EQ(nvml.throttle_reasons(*device), 0x45U);
  EXPECT_EQ(nvml.name(*device), "NVIDIA H200");
  EXPECT_EQ(nvml.uuid(*device), "GPU-1");
  EXPECT_EQ(nvml.temperature(*device), 41U);
  EXPECT_EQ(nvml.power(*device)->draw_w, 75.5);
  EXPECT_EQ(nvml.power(*device)->limit_w, 600);
  EXPECT_EQ(nvml.power(*device)->default_limit_w, 700);
  EXPECT_EQ(nvml.errors(*device)->uncorrected, 2U);
  EXPECT_EQ(nvml.errors(*device)->uncorrected_lifetime, 5U);
  EXPECT_TRUE(nvml.errors(*device)->rows_pending);
  EXPECT_FALSE(nvml.errors(*device)->rows_failed);
  fake.rows_result = 3;
  EXPECT_FALSE(nvml.errors(*device)->rows_pending);
}

TEST_F(NvmlTest, ListsProcessesAndKeepsUnknownBytesApart) {
  const Nvml nvml(lookup);
  const auto processes = nvml.processes(*nvml.device(0));
  ASSERT_TRUE(processes.has_value());
  ASSERT_EQ(processes->size(), 2U);
  EXPECT_EQ((*processes)[0].pid, 100U);
  EXPECT_EQ((*processes)[0].used_bytes, 1ULL << 30);
  EXPECT_FALSE((*processes)[1].used_bytes.has_value());
}

TEST_F(NvmlTest, ListsMoreProcessesThanItFirstMadeRoomFor) {
  fake.processes = 77;
  const Nvml nvml(lookup);
  EXPECT_EQ(nvml.processes(*nvml.device(0))->size(), 77U);
}

TEST_F(NvmlTest, AnUnknownGpuIsNone) {
  const Nvml nvml(lookup);
  EXPECT_FALSE(nvml.device(5).has_value());
  EXPECT_FALSE(nvml.device("0000:ff:00.0").has_value());
}

TEST_F(NvmlTest, ARefusedQuestionIsUnknownAndNeverZero) {
  fake.query_result = 3;  // not supported
  const Nvml nvml(lookup);
  EXPECT_FALSE(nvml.driver_version().has_value());
  EXPECT_FALSE(nvml.processes(&gpu).has_value());
  EXPECT_FALSE(nvml.utilisation(&gpu).has_value());
  EXPECT_FALSE(nvml.memory(&gpu).has_value());
  EXPECT_FALSE(nvml.clocks(&gpu).has_value());
  EXPECT_FALSE(nvml.throttle_reasons(&gpu).has_value());
  EXPECT_FALSE(nvml.name(&gpu).has_value());
  EXPECT_FALSE(nvml.uuid(&gpu).has_value());
  EXPECT_FALSE(nvml.temperature(&gpu).has_value());
  EXPECT_FALSE(nvml.power(&gpu).has_value());
  EXPECT_FALSE(nvml.errors(&gpu).has_value());
}

TEST_F(NvmlTest, AFailedStartSaysWhy) {
  fake.init_result = 18;
  {
    const Nvml nvml(lookup);
    EXPECT_FALSE(nvml.available());
    EXPECT_EQ(nvml.why_not(), "nvmlInit_v2: Driver/library version mismatch");
    EXPECT_EQ(nvml.device_count(), 0U);
    EXPECT_FALSE(nvml.device(0).has_value());
  }
  EXPECT_EQ(fake.shutdowns, 0);
}

TEST_F(NvmlTest, ALibraryWithoutSymbolsOrNoneAtAllSaysWhy) {
  EXPECT_NE(Nvml([](const char*) -> void* { return nullptr; }).why_not().find("nvmlInit_v2"), std::string::npos);
  EXPECT_NE(Nvml(nullptr).why_not().find("not found"), std::string::npos);
}

TEST_F(NvmlTest, ShutsDownOnceAlsoAfterAMove) {
  {
    Nvml first(lookup);
    const Nvml second(std::move(first));
    EXPECT_TRUE(second.available());
  }
  EXPECT_EQ(fake.shutdowns, 1);
}

TEST_F(NvmlTest, ThrottleReasonsInWords) {
  EXPECT_TRUE(throttle_words(0x1 | 0x2).empty()) << "idle and application clocks hold nothing back";
  EXPECT_EQ(throttle_words(0x4 | 0x40), (std::vector<std::string>{"sw_power_cap", "hw_thermal_slowdown"}));
}

TEST(NvmlOnThisMachine, LoadsOrSaysWhyNot) {
  const Nvml nvml = Nvml::load();
  if (!nvml.available()) GTEST_SKIP() << nvml.why_not();
  ASSERT_GT(nvml.device_count(), 0U);
  EXPECT_GT(nvml.memory(*nvml.device(0))->total, 0U);
}

}  // namespace
}  // namespace suites::probes
