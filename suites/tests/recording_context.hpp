// A Context that keeps what a case tells, so that a suite's cases can be run inside a unit test.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "harness/context.hpp"
#include "harness/suite.hpp"

namespace suites {
class Subject;
}

namespace suites::tests {

class RecordingContext : public harness::Context {
 public:
  struct Found {
    std::string code;
    reports::Severity severity;
    std::string message;
    harness::Json evidence;
  };

  // `default_severity` of a code comes from suites::finding_codes().
  explicit RecordingContext(const harness::Settings& settings, std::string id = "test/case");

  [[nodiscard]] const harness::Settings& settings() const override { return settings_; }
  [[nodiscard]] bool cuda() const override { return on_cuda; }
  [[nodiscard]] std::filesystem::path run_folder() const override { return folder; }
  [[nodiscard]] std::string run_id() const override { return "20260101T000000Z-test"; }
  [[nodiscard]] const harness::Json& planned_provenance() const override { return provenance; }
  [[nodiscard]] std::uint64_t seed(std::string_view purpose, int trial) const override {
    return harness::derive_seed(42, id_, purpose, trial);
  }
  [[nodiscard]] base::Load load() const override { return machine_load; }
  void phase(std::string_view name) override { phases.emplace_back(name); }
  void progress() override {}
  void metric(std::string_view name, double value, std::string_view unit) override;
  void fact(std::string_view key, const harness::Json& value) override { facts[std::string(key)] = value; }
  void artifact(const std::filesystem::path& relative) override { artifacts.push_back(relative); }
  void finding(std::string_view code, std::string_view message, const harness::Json& evidence) override;
  void finding(std::string_view code, reports::Severity severity, std::string_view message,
               const harness::Json& evidence) override;

  [[nodiscard]] static std::filesystem::path usual_folder() { return std::filesystem::temp_directory_path(); }
  // Codes of the findings above `warn`.
  [[nodiscard]] std::set<std::string> grave_codes() const;

  bool on_cuda = false;
  std::filesystem::path folder = usual_folder();
  harness::Json provenance = harness::Json::object();
  base::Load machine_load = {};  // unknown
  std::vector<std::string> phases;
  harness::Json metrics = harness::Json::object(), facts = harness::Json::object();
  std::vector<std::filesystem::path> artifacts;
  std::vector<Found> findings;
  int checks = 0, failed_checks = 0;

 protected:
  void check(std::string_view name, bool pass, const harness::Json& measured, std::string_view comparator,
             const harness::Json& bound, std::string_view unit) override;

 private:
  const harness::Settings& settings_;
  std::string id_;
};

// Runs every case of the suite that does not need a GPU and has `level` or less, each in a RecordingContext, one after
// another in this process; returns (case id, context) pairs. Cases whose id lacks `filter` are left out. `folder` is
// that of the run.
struct RunCase {
  std::string id;
  RecordingContext context;
  bool skipped = false;
  std::string exception;
};
[[nodiscard]] std::vector<RunCase> run_suite(const harness::Suite& suite, const harness::Settings& settings,
                                             const std::string& filter = "",
                                             harness::Level level = harness::Level::smoke,
                                             const std::filesystem::path& folder = RecordingContext::usual_folder());

// The common settings and a suite's own (`parity`, of suites/registry.hpp), at their defaults.
[[nodiscard]] harness::Settings default_settings(harness::Suite (*suite)(const Subject&) = nullptr);

}  // namespace suites::tests
