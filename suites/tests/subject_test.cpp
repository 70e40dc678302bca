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

}  // namespace
}  // namespace suites
