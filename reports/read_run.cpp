#include "reports/read_run.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "reports/fields.hpp"
#include "reports/journal_rules.hpp"
#include "reports/records.hpp"
#include "reports/writers.hpp"

namespace reports {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDepthOfReport = 16;  // of what stands around the values of a journal

// `read` of each element of an array; an element that is no object is an error too.
template <typename Read>
void for_each(const Json& object, const char* key, Read read) {
  const Json& array = fields::array(object, key);
  for (std::size_t i = 0; i < array.size(); ++i) {
    fields::within(fmt::format("{}[{}]", key, i), [&] {
      if (!array[i].is_object()) throw std::invalid_argument("is no object");
      read(array[i]);
    });
  }
}

Case case_of(const Json& object, const std::string& suite) {
  Case c = records::planned_case(object, suite);
  c.status = records::status(object);
  c.reason_code = fields::text_or(object, "reason_code", "");
  c.reason = fields::text_or(object, "reason", "");
  c.last_phase = fields::text_or(object, "last_phase", "");
  c.duration_s = fields::seconds(object, "duration_s");
  c.seed = fields::natural(object, "seed");
  c.facts = fields::object(object, "facts");
  for_each(object, "checks", [&](const Json& item) { c.checks.push_back(records::check(item)); });
  for_each(object, "metrics", [&](const Json& item) { c.metrics.push_back(records::metric(item)); });
  for_each(object, "findings", [&](const Json& item) { c.findings.push_back(records::finding(item)); });
  for (const auto& path : fields::array_or_empty(object, "artifacts")) {
    if (!path.is_string()) fields::reject(object, "artifacts", "an array of paths");
    c.artifacts.push_back(path.get<std::string>());
  }
  return c;
}

Suite suite_of(const Json& object, std::set<std::string>& ids) {
  Suite suite;
  suite.name = records::suite_name(object);
  suite.purpose = fields::text_or(object, "purpose", "");
  suite.requires_suites = records::required_suites(object);
  suite.duration_s = fields::seconds(object, "duration_s");
  for_each(object, "cases", [&](const Json& item) {
    suite.cases.push_back(case_of(item, suite.name));
    if (!ids.insert(suite.cases.back().id).second)
      throw std::invalid_argument(fmt::format("case '{}' stands twice", suite.cases.back().id));
  });
  return suite;
}

void read_head(Run& run, const Json& head) {
  run.id = fields::text(head, "id");
  run.argv = fields::array_or_empty(head, "argv");
  run.level = records::level(head);
  run.device = fields::text(head, "device");
  run.master_seed = fields::natural(head, "master_seed");
  run.started = fields::text(head, "started");
  run.ended = fields::text(head, "ended");
  run.duration_s = fields::seconds(head, "duration_s");
  run.harness_s = fields::seconds_or(head, "harness_s", 0);
  run.partial = fields::boolean_or(head, "partial", false);
  run.complete = fields::boolean(head, "complete");
  run.torn_tail = fields::boolean_or(head, "torn_tail", false);
  run.faults = fields::array_or_empty(head, "faults");
  if (head.contains("interruption")) run.interruption = records::interruption(head);
}

// One that lost a part, or was changed by hand, contradicts itself.
void check_consistency(const Run& run, const Json& report) {
  const Json totals = to_json(run).at("totals");
  for (const auto& [word, n] : fields::object(report, "totals").items()) {
    if (totals.contains(word) && totals.at(word) != n)
      throw std::invalid_argument(fmt::format("it contradicts itself: its totals say {} {}, its cases say {}",
                                              dump(n).substr(0, 60), word, dump(totals.at(word))));
  }
  const Assessment assessment = assess(run);
  const std::string verdict = fields::text(report, "verdict");
  const auto code = fields::natural(fields::object(report, "run"), "exit_code");
  if (verdict != to_string(assessment.verdict) || code != static_cast<std::uint64_t>(assessment.exit_code))
    throw std::invalid_argument(
        fmt::format("it contradicts itself: it says {} (exit code {}), and what stands in it is {} ({}); use the run's "
                    "journal, {}, instead",
                    verdict.substr(0, 60), code, to_string(assessment.verdict), static_cast<int>(assessment.exit_code),
                    kJournalFile));
}

Run run_of(const Json& report) {
  Run run;
  fields::within("run", [&] { read_head(run, fields::object(report, "run")); });
  run.provenance = fields::object(report, "provenance");
  std::set<std::string> ids, names;
  for_each(report, "suites", [&](const Json& item) {
    run.suites.push_back(suite_of(item, ids));
    if (!names.insert(run.suites.back().name).second)
      throw std::invalid_argument(fmt::format("suite '{}' stands twice", run.suites.back().name));
  });
  for_each(report, "findings", [&](const Json& item) { run.findings.push_back(records::finding(item)); });
  check_consistency(run, report);
  return run;
}

std::string all_of(std::istream& in) {
  std::string text;
  for (std::array<char, 1 << 16> part; in.read(part.data(), part.size()) || in.gcount() > 0;) {
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMostJournalBytes)
      throw std::invalid_argument(fmt::format("longer than {} MiB: no report", kMostJournalBytes >> 20));
  }
  if (in.bad()) throw std::invalid_argument(fmt::format("cannot be read: {}", std::strerror(errno)));
  return text;
}

Json parse(const std::string& text) {
  if (records::nests_deeper(std::string_view(text), kMostDepth + kDepthOfReport))
    throw std::invalid_argument("not a report: brackets nest too deep");
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw std::invalid_argument("it is empty");
    if (error.byte > text.size())
      throw std::invalid_argument(fmt::format("cut off after {} bytes: not all of the report is there", text.size()));
    throw std::invalid_argument(fmt::format("not a report: invalid JSON at byte {}", error.byte));
  } catch (const Json::exception& error) {  // a number too large for any type
    throw std::invalid_argument(fmt::format("not a report: {}", error.what()));
  }
}

[[noreturn]] void fail(const fs::path& path, std::string_view why) {
  throw JournalError(fmt::format("{}: {}", path.string(), why), false);
}

std::ifstream open_file(const fs::path& file) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) fail(file, "is a folder, not a file");
  // A pipe would be waited for, a device read for ever.
  if (fs::exists(file, ignored) && !fs::is_regular_file(file, ignored)) fail(file, "is no regular file");
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(file, fmt::format("cannot be opened: {}", std::strerror(errno)));
  return in;
}

// By its name, or because its first line is an event; whatever else is wrong with it.
bool is_journal(const fs::path& file) {
  if (file.extension() == ".jsonl") return true;
  std::ifstream in = open_file(file);
  std::string line;
  for (int c = in.get(); c != std::ifstream::traits_type::eof() && c != '\n' && line.size() < kMostLineBytes;
       c = in.get())
    line.push_back(static_cast<char>(c));
  if (records::nests_deeper(std::string_view(line), kMostDepth)) return false;
  const Json first = Json::parse(line, nullptr, false);
  return first.is_object() && first.contains("event");
}

}  // namespace

Run read_report(std::istream& in, const std::string& name) {
  try {
    const Json report = parse(all_of(in));
    if (!report.is_object()) throw std::invalid_argument("not a report: not a JSON object");
    if (report.contains("schema") && report.at("schema") == kSuiteReportSchema)
      throw std::invalid_argument("is the report of one suite; give the run's folder, its report.json or its journal");
    records::check_schema(report, kReportSchema, kReportSchemaVersion, name, "report");
    return run_of(report);
  } catch (const std::invalid_argument& error) {
    throw JournalError(fmt::format("{}: {}", name, error.what()), false);
  }
}

Run read_report(const fs::path& file) {
  std::ifstream in = open_file(file);
  return read_report(in, file.string());
}

Run read_run(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const char* name : {kJournalFile, kReportFile})
      if (fs::exists(fs::symlink_status(path / name, error))) return read_run(path / name);
    fail(path, fmt::format("holds neither {} nor {}: no run's folder", kJournalFile, kReportFile));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail(path, fmt::format("cannot be read: {}", error.message()));
  return is_journal(path) ? read_journal(path) : read_report(path);
}

}  // namespace reports
