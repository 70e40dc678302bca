// The whole program's plan: what a user sets is looked at.
#include "suites/program.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "harness/command_line.hpp"
#include "harness/plan.hpp"
#include "harness/protocol.hpp"
#include "nsa/config.hpp"
#include "suites/locations.hpp"
#include "suites/scenario/verb.hpp"

namespace {

using harness::Selection;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

class WhatIsSet : public testing::Test {
 protected:
  WhatIsSet() : settings_(harness::all_setting_specs(program_)) {
    settings_.set("run.device", "cpu", "test");
    std::ofstream(report_)
        << R"({"schema_version": "1.1.0", "run": {"id": "earlier"}, "provenance": {}, "suites": []})";
  }
  ~WhatIsSet() override { std::filesystem::remove(report_); }

  void set(const std::string& key, const std::string& value) { settings_.set(key, value, "--set"); }
  // Something to compare with, for the settings that say nothing by default.
  void set(const harness::SettingSpec& spec) {
    const std::map<std::string, std::string> values = {
        {"throughput.baseline", report_.string()}, {"preflight.expect", "some.yaml"},
        {"s_sweep.long_lengths", "[4096]"},        {"preflight.expect_environment", "[NSA_USE_CUDA=]"},
        {"preflight.expect_commit", "abc"},        {"preflight.train_folder", "out/run"}};
    const auto value = values.find(spec.key);
    set(spec.key, value == values.end() ? spec.default_value : value->second);
  }
  [[nodiscard]] std::set<std::string> planned(const Selection& selection) const {
    std::set<std::string> ids;
    for (const auto& suite : make_plan(program_, settings_, selection).suites)
      for (const auto& c : suite.cases) ids.insert(c.id);
    return ids;
  }
  // Of all levels.
  [[nodiscard]] std::set<std::string> brought_by(const std::string& key) const {
    std::set<std::string> ids;
    for (const harness::Suite& suite : program_.suites)
      for (const harness::Case& c : suite.cases(settings_))
        if (std::count(c.brought_by.begin(), c.brought_by.end(), key) > 0) ids.insert(case_id(suite.name, c));
    return ids;
  }

  harness::Program program_ = suites::make_program();
  harness::Settings settings_;
  std::filesystem::path report_ = std::filesystem::temp_directory_path() / fmt::format("earlier-{}.json", getpid());
};

// A new setting is either looked at by a case of smoke, or it brings its case.
TEST_F(WhatIsSet, IsLookedAtAtSmoke) {
  std::set<std::string> by_smoke = {
      "distributed.timeout_s", "model", "parity.budget_factor", "parity.lengths", "s_sweep.lengths",
      "s_sweep.logit_scales", "throughput.cpu_percent", "throughput.floor_tok_s", "throughput.gpu_percent",
      "throughput.repeats", "training.floor_steps", "training.steps",
      // Whose functions all of its cases judge, and how.
      "implementation", "python", "python_timeout_s",
      // Say nothing by themselves: what the floor holds for, how the baseline is compared.
      "throughput.gate_model", "throughput.least_effect_percent",
      // What forward and training record.
      "trace"};
  for (const auto& [key, value] : nsa::flatten(nsa::Config{})) by_smoke.insert(key);  // as `model` is
  for (const harness::SettingSpec& spec : program_.settings) {
    set(spec);
    const std::set<std::string> cases = brought_by(spec.key);
    EXPECT_EQ(cases.empty(), by_smoke.contains(spec.key)) << spec.key;
    EXPECT_THAT(planned({{"smoke"}, "", {}, {}}), IsSupersetOf(cases)) << spec.key;
  }
}

// Every key of a model's configuration stands above the file, and is checked as if it stood there.
TEST_F(WhatIsSet, AKeyOfTheModelStandsAboveTheFile) {
  EXPECT_EQ(suites::model_config(settings_).model.nsa.w, 32);
  set("nsa.w", "24");
  set("model.n_layers", "1");
  set("train.lr", "0.5");
  const nsa::Config config = suites::model_config(settings_);
  EXPECT_EQ(config.model.nsa.w, 24);
  EXPECT_EQ(config.model.n_layers, 1);
  EXPECT_EQ(config.train.lr, 0.5);
  EXPECT_EQ(program_.provenance(settings_)["config"]["resolved"]["nsa.w"], "24");
  EXPECT_NO_THROW(program_.validate(settings_));
  set("nsa.d", "3");
  try {
    program_.validate(settings_);
    ADD_FAILURE() << "3 does not divide 8";
  } catch (const harness::UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--set: nsa.d = 3"), HasSubstr("must divide")));
  }
}

// It would be a finding of the suite distributed, as if the product were at fault.
TEST_F(WhatIsSet, WhatTheRanksOfASuiteWouldRefuseInTheirEnvironmentIsRefused) {
  for (const char* name : {"NPROC_SUM_BUCKET_KB", "SLURM_NTASKS_PER_NODE", "GLOO_SOCKET_IFNAME"}) {
    ASSERT_EQ(::setenv(name, "abc", /*overwrite=*/1), 0);
    try {
      program_.validate(settings_);
      ADD_FAILURE() << name;
    } catch (const harness::UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string(name) + " is 'abc', allowed is a"));
    }
    ASSERT_EQ(::unsetenv(name), 0);
  }
  EXPECT_NO_THROW(program_.validate(settings_));
}

// What --minimize makes smaller is a setting, and one that a case can obey at its smallest or is refused by name.
TEST_F(WhatIsSet, SizesAreSettingsWithIntegers) {
  const std::map<std::string, std::string> resolved = nsa::flatten(suites::model_config(settings_));
  for (const harness::SizeSetting& size : program_.sizes) {
    const auto in_file = resolved.find(size.key);
    const std::string text = in_file != resolved.end() ? in_file->second : settings_.values().at(size.key).text;
    EXPECT_EQ(text.find_first_not_of("0123456789, []"), std::string::npos) << size.key << " is " << text;
    EXPECT_GE(size.smallest, 1);
  }
}

TEST_F(WhatIsSet, IsNoCaseOfSmokeOtherwise) {
  const std::set<std::string> smoke = planned({{"smoke"}, "", {}, {}});
  for (const char* id : {"throughput/rate", "throughput/shapes", "throughput/data_loading", "preflight/host",
                         "s_sweep/watch_overhead", "training/steps[data=text,precision=bf16,steps=50]"})
    EXPECT_THAT(smoke, Not(Contains(id)));
}

TEST_F(WhatIsSet, GuardsAreLookedAtWhateverSuitesAreNamed) {
  const Selection parity{{"parity"}, "", {}, {}};
  EXPECT_THAT(planned(parity), Not(Contains(HasSubstr("preflight/"))));
  set("preflight.expect_commit", "abc");
  EXPECT_THAT(planned(parity), AllOf(Contains("preflight/fix"), Not(Contains("preflight/host"))));
  set("throughput.baseline", report_.string());
  EXPECT_THROW((void)planned(parity), harness::UsageError);
}

// Cases that are left out for want of a GPU would count as looked at.
TEST_F(WhatIsSet, ALengthThatCannotRunHereIsRefused) {
  set("s_sweep.long_lengths", "[512, 65536]");
  try {
    (void)planned({{"smoke"}, "", {}, {}});
    ADD_FAILURE() << "accepted";
  } catch (const harness::UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--set: s_sweep.long_lengths: 65536 is above s_sweep.longest_on_cpu (8193)"));
  }
  set("s_sweep.longest_on_cpu", "65536");
  EXPECT_THAT(planned({{"smoke"}, "", {}, {}}), Contains("s_sweep/long[S=65536,way=default]"));
}

TEST_F(WhatIsSet, HelpHasTheVerbAndTheLimitOfAnImplementation) {
  char name[] = "nsa-validate", flag[] = "--help";
  char* argv[] = {name, flag, nullptr};
  const std::string help = harness::parse_command_line(program_, 2, argv).help;
  EXPECT_THAT(help, testing::ContainsRegex("adapter +write an adapter"));
  EXPECT_THAT(help, testing::ContainsRegex("--python-timeout .*--hang"));
}

// A link that leads in a circle is a usage error, as for every other file that is named.
TEST_F(WhatIsSet, AModelThatIsNoFileIsRefused) {
  const auto loop = report_.string() + ".loop";
  std::filesystem::create_symlink(loop, loop);
  set("model", loop);
  try {
    (void)planned({{"smoke"}, "", {}, {}});
    ADD_FAILURE() << "accepted";
  } catch (const harness::UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(loop + "' is neither a file nor a model"));
  }
  std::filesystem::remove(loop);
}

// A file of a scenario comes from anywhere: no path is its to set.
TEST(Scenarios, MaySetNothingThatNamesAPath) {
  const harness::Program program = suites::make_program();
  const std::vector<std::string> settings = suites::scenario::known_to(program, {}).settings;
  std::vector<std::string> paths = {"preflight.expect", "train.data"};  // taken as they are written
  for (const harness::SettingSpec& spec : harness::all_setting_specs(program))
    if (spec.path_to != harness::PathTo::none) paths.push_back(spec.key);
  EXPECT_THAT(paths, IsSupersetOf({"model", "data", "implementation", "python", "preflight.train_folder",
                                   "throughput.baseline"}));
  for (const std::string& key : paths) EXPECT_THAT(settings, Not(Contains(key)));
  EXPECT_THAT(settings, IsSupersetOf({"run.seed", "train.lr", "s_sweep.lengths"}));
}

// A suite says itself where it stands in a run; readers are told in GUIDE.md.
TEST(Suites, RunInTheOrderOfTheGuide) {
  const harness::Program program = suites::make_program();
  std::vector<std::string> own, planned, told;
  for (const harness::Suite& suite : program.suites) own.push_back(suite.name);
  for (const harness::Suite* suite : harness::running_order(program.suites)) planned.push_back(suite->name);
  EXPECT_EQ(own, planned);
  EXPECT_EQ(std::ranges::count(program.suites, "", &harness::Suite::runs_after), 1)
      << "a second one would stand where its name puts it";

  std::ifstream guide(std::filesystem::path(program.source_dir) / "GUIDE.md");
  std::string line;
  while (std::getline(guide, line) && !line.starts_with("| suite | proves |")) {
  }
  std::getline(guide, line);  // |---|
  while (std::getline(guide, line) && line.starts_with("| ")) told.push_back(line.substr(2, line.find(' ', 2) - 2));
  EXPECT_EQ(own, told);
}

}  // namespace
