#include "suites/init_stats/processes.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "harness/process.hpp"
#include "suites/codes.hpp"
#include "suites/init_stats/checks.hpp"
#include "suites/tests/recording_context.hpp"

namespace {

using namespace suites;

// Runs the check with a program in place of the real one.
tests::RecordingContext check(const std::filesystem::path& executable) {
  static const harness::Settings settings = tests::default_settings();
  tests::RecordingContext context(settings);
  ModelOptions options;
  options.seed = 7;
  init_checks::processes(context, options, executable);
  return context;
}

// A shell script; $5 is the number of threads.
class Script {
 public:
  explicit Script(const std::string& body)
      : path_(std::filesystem::temp_directory_path() / ("processes_test." + std::to_string(getpid()))) {
    std::ofstream(path_) << "#!/bin/sh\n" << body << "\n";
    chmod(path_.c_str(), 0700);
  }
  ~Script() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Processes, TheProductMakesTheSameBitsInTwoProcesses) {
  const auto context = check(PRINT_PARAMETERS);
  EXPECT_TRUE(context.findings.empty()) << context.findings[0].message;
  EXPECT_GT(context.metrics["parameters_compared"]["value"].get<double>(), 30);
}

TEST(Processes, AnotherSeedOrPrecisionGivesOtherHashes) {
  const auto hashes = [](std::uint64_t seed, nsa::Precision precision) {
    const auto output = harness::output_of(
        init_checks::command_of(PRINT_PARAMETERS,
                                {data_folder() / "configs" / "models" / "tiny.yaml", precision, seed, 1}),
        100);
    return init_checks::parse_hashes(output.value());
  };
  const auto base = hashes(7, nsa::Precision::fp32);
  for (const auto& other : {hashes(8, nsa::Precision::fp32), hashes(7, nsa::Precision::bf16)}) {
    EXPECT_EQ(other.size(), base.size());
    EXPECT_NE(other.at("head.weight"), base.at("head.weight"));
  }
}

TEST(Processes, AParameterThatDependsOnTheProcessIsNamed) {
  const Script script("echo embedding.weight 0123456789abcdef; printf 'head.weight %016d\\n' $5");
  const auto context = check(script.path());
  EXPECT_EQ(context.grave_codes(), std::set<std::string>{std::string(codes::kProcessBits)});
  EXPECT_EQ(context.findings.at(0).evidence["parameters"], harness::Json::array({"head.weight"}));
}

TEST(Processes, AParameterThatIsMissingInOneProcessIsFound) {
  const Script script("echo embedding.weight 0123456789abcdef; [ $5 = 1 ] || echo more.weight 0123456789abcdef");
  EXPECT_EQ(check(script.path()).grave_codes(), std::set<std::string>{std::string(codes::kProcessBits)});
}

TEST(Processes, AProcessThatFailsOrTalksNonsenseIsNotAPass) {
  EXPECT_THROW(check(Script("exit 3").path()), std::runtime_error);
  EXPECT_THROW(check(Script("true").path()), std::runtime_error);
  EXPECT_THROW(check(Script("echo head.weight 12").path()), std::runtime_error);
  EXPECT_THROW(check("/nonexistent/program"), std::runtime_error);
}

TEST(Processes, BadArgumentsOfTheVerbAreRefused) {
  const auto run = [](std::vector<std::string> words) {
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    return init_checks::parameters_verb(static_cast<int>(argv.size()), argv.data());
  };
  EXPECT_EQ(run({"program", "run"}), std::nullopt);
  EXPECT_EQ(run({"program", "__parameters", "x.yaml"}), 2);
  EXPECT_EQ(run({"program", "__parameters", "x.yaml", "fp8", "1", "1"}), 2);
  EXPECT_EQ(run({"program", "__parameters", "/nonexistent.yaml", "fp32", "1", "1"}), 2);
}

}  // namespace
