#include "suites/subject.hpp"

#include <gtest/gtest.h>

#include "suites/registry.hpp"
#include "suites/tests/recording_context.hpp"

namespace suites {
namespace {

// A run reports the model that it has planned, whatever becomes of its file meanwhile.
TEST(Subject, RefusesAModelThatIsNotThePlannedOne) {
  const Subject subject(std::make_shared<Seams>());
  const harness::Settings with = tests::default_settings(forward);
  tests::RecordingContext context(with, "forward/first");
  harness::Json resolved = harness::Json::object();
  for (const auto& [key, value] : nsa::flatten(subject.config(context))) resolved[key] = value;
  context.provenance["config"]["resolved"] = resolved;
  EXPECT_NO_THROW((void)subject.config(context));
  context.provenance["config"]["resolved"]["model.dim"] = "32";
  EXPECT_THROW((void)subject.config(context), std::runtime_error);
  EXPECT_NO_THROW((void)subject.config_as_it_is(context));
}

TEST(Subject, ARunIsComputedInWhatItsDeviceIsFor) {
  const harness::Settings with = tests::default_settings(forward);
  tests::RecordingContext context(with, "forward/first");
  EXPECT_EQ(device_of(context), at::Device(at::kCPU));
  EXPECT_EQ(run_precision(context), nsa::Precision::fp32);
  context.on_cuda = true;
  EXPECT_EQ(device_of(context), at::Device(at::kCUDA, 0));
  EXPECT_EQ(run_precision(context), nsa::Precision::bf16);
}

// What a fault says of program and machine reaches the checks, and nothing else of what was planned is touched.
TEST(Subject, SaysOfProgramAndMachineWhatIsPlanted) {
  const auto seams = std::make_shared<Seams>();
  seams->planned.push_back([](harness::Json& planned) { planned["build"]["source_hash"] = "other"; });
  seams->gpu_processes.push_back([](probes::GpuCensus& census) { census.processes.push_back({7, "python", {}}); });
  const harness::Settings with = tests::default_settings(forward);
  tests::RecordingContext context(with, "preflight/build");
  context.provenance["build"] = {{"build_id", "same"}, {"source_hash", "same"}};
  EXPECT_EQ(Subject(seams).planned(context)["build"], (harness::Json{{"build_id", "same"}, {"source_hash", "other"}}));
  EXPECT_EQ(Subject(std::make_shared<Seams>()).planned(context), context.provenance);
  EXPECT_EQ(Subject(seams).gpu_processes({}).processes.size(), 1U);
  EXPECT_TRUE(Subject(std::make_shared<Seams>()).gpu_processes({}).processes.empty());
}

}  // namespace
}  // namespace suites
