#include "suites/throughput/gate_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites::throughput_cases {
namespace {

using testing::HasSubstr;

class GateFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(gates);
    std::filesystem::create_directories(gates);
    write("default.yaml", "throughput:\n  floor_tok_s: 300\n");
    write("h200.yaml", "throughput:\n  floor_tok_s: 7755\n  gate_model: big\n");
    write("h200 nvl.yaml", "throughput.floor_tok_s: 5000\n");
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(gates / name) << text; }
  [[nodiscard]] Floor floor(const std::string& gpu, const std::string& model) const {
    return choose_floor(settings, gpu, model, gates);
  }
  const std::filesystem::path gates =
      std::filesystem::path(testing::TempDir()) /
      (std::string("throughput_gates.") + testing::UnitTest::GetInstance()->current_test_info()->name());
  harness::Settings settings = tests::default_settings(throughput);
};

TEST_F(GateFiles, TheGpusOwnFileIsTaken) {
  EXPECT_EQ(floor("NVIDIA H200", "big").tok_s, 7755);
  EXPECT_THAT(floor("NVIDIA H200", "big").origin, HasSubstr("h200.yaml"));
  EXPECT_EQ(floor("NVIDIA H200 NVL", "big").tok_s, 5000) << "the longest name wins";
  EXPECT_EQ(floor("NVIDIA A100-SXM4-80GB", "big").tok_s, 300);
  EXPECT_EQ(floor("", "big").tok_s, 300) << "a CPU";
}

TEST_F(GateFiles, AFloorHoldsForItsModelOnly) {
  const Floor other = floor("NVIDIA H200", "tiny");
  EXPECT_EQ(other.tok_s, 300);
  EXPECT_THAT(other.origin, HasSubstr("holds for big only"));
}

TEST_F(GateFiles, WhatWasSetWins) {
  settings.set("throughput.floor_tok_s", "42", "--set");
  EXPECT_EQ(floor("NVIDIA H200", "big").tok_s, 42);
  EXPECT_EQ(floor("NVIDIA H200", "big").origin, "--set");
  settings.set("throughput.gate_model", "other", "--config");
  EXPECT_EQ(floor("NVIDIA H200", "big").tok_s, 7755) << "what was set was measured with another model";
}

TEST_F(GateFiles, AFileThatCannotBeUsedIsNamed) {
  write("h200.yaml", "throughput:\n  gate_model: big\n");
  EXPECT_THROW((void)floor("NVIDIA H200", "big"), harness::UsageError);
  write("h200.yaml", "throughput:\n  flor_tok_s: 1\n");
  EXPECT_THROW((void)floor("NVIDIA H200", "big"), harness::UsageError);
}

TEST(Gates, TheFilesOfTheProjectAreSound) {
  const harness::Settings settings = tests::default_settings(throughput);
  const std::filesystem::path gates = data_folder() / "configs" / "gates";
  EXPECT_EQ(choose_floor(settings, "", "tiny", gates).tok_s, 300);
  EXPECT_GT(choose_floor(settings, "NVIDIA H200", "m7c_125m", gates).tok_s, 300);
}

}  // namespace
}  // namespace suites::throughput_cases
