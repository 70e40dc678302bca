#include "suites/tests/recording_context.hpp"

#include <stdexcept>

#include "harness/codes.hpp"
#include "suites/codes.hpp"
#include "suites/subject.hpp"

namespace suites::tests {

RecordingContext::RecordingContext(const harness::Settings& settings, std::string id)
    : settings_(settings), id_(std::move(id)) {}

void RecordingContext::metric(std::string_view name, double value, std::string_view unit) {
  metrics[std::string(name)] = {{"value", reports::number(value)}, {"unit", unit}};
}

void RecordingContext::finding(std::string_view code, std::string_view message, const harness::Json& evidence) {
  for (const harness::Code& row : finding_codes()) {
    if (row.id == code) return finding(code, row.severity, message, evidence);
  }
  throw std::logic_error("unknown finding code " + std::string(code));
}

void RecordingContext::finding(std::string_view code, reports::Severity severity, std::string_view message,
                               const harness::Json& evidence) {
  findings.push_back({std::string(code), severity, std::string(message), evidence});
}

void RecordingContext::check(std::string_view, bool pass, const harness::Json&, std::string_view, const harness::Json&,
                             std::string_view) {
  ++checks;
  if (!pass) ++failed_checks;
}

std::set<std::string> RecordingContext::grave_codes() const {
  std::set<std::string> grave;
  for (const Found& f : findings) {
    if (f.severity > reports::Severity::warn) grave.insert(f.code);
  }
  return grave;
}

std::vector<RunCase> run_suite(const harness::Suite& suite, const harness::Settings& settings,
                               const std::string& filter, harness::Level level, const std::filesystem::path& folder) {
  std::vector<RunCase> ran;
  for (const harness::Case& c : suite.cases(settings)) {
    const std::string id = harness::case_id(suite.name, c);
    if (c.needs_cuda || c.level > level || id.find(filter) == std::string::npos) continue;
    ran.push_back({id, RecordingContext(settings, id), false, ""});
    ran.back().context.folder = folder;
    try {
      c.run(ran.back().context);
    } catch (const harness::Skipped&) {
      ran.back().skipped = true;
    } catch (const std::exception& error) {
      ran.back().exception = error.what();
    }
  }
  return ran;
}

harness::Settings default_settings(harness::Suite (*suite)(const Subject&)) {
  std::vector<harness::SettingSpec> specs = harness::own_settings();
  const std::vector<harness::SettingSpec> common = common_settings();
  specs.insert(specs.end(), common.begin(), common.end());
  if (suite != nullptr) {
    const std::vector<harness::SettingSpec> own = suite(Subject(std::make_shared<Seams>())).settings;
    specs.insert(specs.end(), own.begin(), own.end());
  }
  harness::Settings settings(std::move(specs));
  settings.set("run.device", "cpu", "test");
  return settings;
}

}  // namespace suites::tests
