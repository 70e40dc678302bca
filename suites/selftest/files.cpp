#include "suites/selftest/files.hpp"

#include <fmt/format.h>

#include <fstream>

#include "base/files.hpp"
#include "reports/journal.hpp"

namespace suites::selftest {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;  // of a report

// Times only: what is no event is passed over here, and the report has been made by who was strict about it.
void read_times(const fs::path& journal, Evidence& evidence) {
  std::ifstream lines(journal);
  for (std::string line; std::getline(lines, line);) {
    const bool begins = line.find(R"("event":"run_begin")") != std::string::npos;
    if (!begins && line.find(R"("event":"finding")") == std::string::npos) continue;
    Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object() || !event.contains("t") || !event["t"].is_string()) continue;
    if (begins)
      evidence.began = event["t"].get<std::string>();
    else
      evidence.findings.push_back(std::move(event));
  }
}

}  // namespace

Evidence read_evidence(const fs::path& folder, int exit_code) {
  Evidence evidence;
  evidence.exit_code = exit_code;
  std::error_code absent;
  evidence.reached = fs::exists(folder / kReachedFile, absent);
  const fs::path report = folder / "report.json";
  std::error_code error;
  if (!fs::exists(report, error)) return evidence;
  try {
    evidence.report = Json::parse(base::read_head(report, kMostBytes), nullptr, /*allow_exceptions=*/false);
    if (!evidence.report.is_object()) evidence.trouble = fmt::format("{} is no report", report.string());
  } catch (const std::exception& unreadable) {
    evidence.trouble = unreadable.what();
  }
  read_times(folder / reports::kJournalFile, evidence);
  return evidence;
}

}  // namespace suites::selftest
