#include "harness/verbs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "base/nearest.hpp"
#include "base/streams.hpp"
#include "harness/protocol.hpp"
#include "harness/publish.hpp"
#include "harness/run.hpp"
#include "harness/run_folder.hpp"
#include "reports/journal.hpp"
#include "reports/schema.hpp"

namespace harness {

using reports::ExitCode;

namespace {

// A list by default has every case of every level; the selecting options narrow it.
Plan plan_to_list(const Program& program, const CommandLine& line) {
  Settings settings = make_settings(program, line);
  check_scope(program, selection_of(line));
  (void)settle_device(settings, line);
  Selection selection = selection_of(line);
  const bool level_given =
      !line.level.empty() ||
      (line.suites.size() == 1 &&
       std::any_of(std::begin(kLevels), std::end(kLevels), [&](Level l) { return line.suites[0] == to_string(l); }));
  if (!level_given) selection.level = to_string(kTopLevel);
  return make_plan(program, settings, selection);
}

Json case_json(const PlannedCase& c) {
  Json params = Json::object();
  for (const auto& [key, value] : c.work.params.items()) params[key] = value;
  return {{"id", c.id},
          {"hash", c.hash},
          {"level", to_string(c.work.level)},
          {"needs_cuda", c.work.needs_cuda},
          {"timeout_s", c.work.timeout.count()},
          {"params", params}};
}

void print_json(const Json& json) { base::out("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace)); }

ExitCode list_cases(const Program& program, const CommandLine& line) {
  Json suites = Json::array();
  for (const PlannedSuite& suite : plan_to_list(program, line).suites) {
    Json cases = Json::array();
    for (const PlannedCase& c : suite.cases) cases.push_back(case_json(c));
    suites.push_back({{"name", suite.suite->name},
                      {"purpose", suite.suite->purpose},
                      {"requires", suite.suite->requires_suites},
                      {"cases", cases}});
    if (line.json) continue;
    base::out("{}: {}\n", suite.suite->name, suite.suite->purpose);
    for (const PlannedCase& c : suite.cases)
      base::out("  {}  {:8}  {}{}\n", c.hash, to_string(c.work.level), c.id,
                c.work.needs_cuda ? "  (needs a GPU)" : "");
  }
  if (line.json) print_json({{"suites", suites}});
  return ExitCode::ready;
}

ExitCode list_faults(const Program& program, bool json) {
  Json rows = Json::array();
  for (const Fault& fault : program.faults) {
    rows.push_back({{"name", fault.name}, {"what", fault.what}, {"expected_codes", fault.expected_codes}});
    if (!json) base::out("{:26} {} -> {}\n", fault.name, fault.what, fmt::join(fault.expected_codes, ", "));
  }
  if (json) print_json({{"faults", rows}});
  return ExitCode::ready;
}

ExitCode list_settings(const Program& program, bool json) {
  Json rows = Json::array();
  const Settings settings(all_setting_specs(program));
  for (const SettingSpec& spec : settings.specs()) {
    const std::string& value = settings.values().at(spec.key).text;
    rows.push_back({{"key", spec.key}, {"default", value}, {"meaning", spec.meaning}, {"allowed", spec.allowed}});
    if (!json) base::out("{:28} {:20} {}\n", spec.key, value.empty() ? "\"\"" : value, spec.meaning);
  }
  if (json) print_json({{"settings", rows}});
  return ExitCode::ready;
}

ExitCode list_codes(const Program& program, bool json) {
  Json rows = Json::array();
  const CodeTable codes(program.codes);
  for (const Code& code : codes.all()) {
    rows.push_back({{"id", code.id},
                    {"severity", reports::to_string(code.severity)},
                    {"category", code.category},
                    {"title", code.title}});
    if (!json) base::out("{}  {:8} {:12} {}\n", code.id, reports::to_string(code.severity), code.category, code.title);
  }
  if (json) print_json({{"codes", rows}});
  return ExitCode::ready;
}

}  // namespace

ExitCode list(const Program& program, const CommandLine& line) {
  if (line.list_faults) return list_faults(program, line.json);
  if (line.list_settings) return list_settings(program, line.json);
  if (line.list_codes) return list_codes(program, line.json);
  return list_cases(program, line);
}

ExitCode describe(const Program& program, const CommandLine& line) {
  Settings settings = make_settings(program, line);
  (void)settle_device(settings, line);
  const Plan all = make_plan(program, settings, Selection{{}, std::string(to_string(kTopLevel)), {}, {}});
  const std::string& name = line.operands.front();
  std::vector<std::string> known;
  for (const PlannedSuite& suite : all.suites) {
    known.push_back(suite.suite->name);
    if (name == suite.suite->name) {
      base::out("suite {}\n  proves:   {}\n  requires: {}\n  cases:    {}\n", name, suite.suite->purpose,
                suite.suite->requires_suites.empty() ? "nothing"
                                                     : fmt::format("{}", fmt::join(suite.suite->requires_suites, ", ")),
                suite.cases.size());
      for (const PlannedCase& c : suite.cases) base::out("    {}  {:8}  {}\n", c.hash, to_string(c.work.level), c.id);
      return ExitCode::ready;
    }
    for (const PlannedCase& c : suite.cases) {
      known.push_back(c.id);
      if (name != c.id && name != c.hash) continue;
      base::out("case {}\n  hash:     {}\n  level:    {}\n  device:   {}\n  limit:    {} s\n  suite:    {}: {}\n", c.id,
                c.hash, to_string(c.work.level), c.work.needs_cuda ? "needs a GPU" : "CPU or GPU",
                c.work.timeout.count(), suite.suite->name, suite.suite->purpose);
      for (const auto& [key, value] : c.work.params.items()) base::out("  {} = {}\n", key, value);
      return ExitCode::ready;
    }
  }
  const std::string near = base::nearest(name, known);
  throw UsageError(fmt::format("no suite or case '{}'{} (`list` shows all)", name,
                               near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

ExitCode explain(const Program& program, const CommandLine& line) {
  const CodeTable codes(program.codes);
  std::vector<std::string> known;
  for (const Code& code : codes.all()) known.emplace_back(code.id);
  for (const std::string& id : line.operands) {
    const Code* code = codes.find(id);
    if (code == nullptr) {
      const std::string near = base::nearest(id, known);
      throw UsageError(fmt::format("unknown finding code '{}'{} (`list --codes` shows all)", id,
                                   near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
    }
    base::out("{}: {}\n  category:     {}\n  severity:     {} by default\n  likely cause: {}\n  next step:    {}\n",
              code->id, code->title, code->category, reports::to_string(code->severity), code->cause, code->next);
  }
  return ExitCode::ready;
}

namespace {

// The folder that `given` names now: out/latest may lead elsewhere before the report is written.
std::filesystem::path folder_of_run(const std::string& given) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::canonical(given, error);
  if (!error && !std::filesystem::exists(folder / reports::kJournalFile, error) && !error)
    error = std::make_error_code(std::errc::no_such_file_or_directory);
  if (error)
    throw UsageError(fmt::format("{}: cannot be read: {}",
                                 (std::filesystem::path(given) / reports::kJournalFile).string(), error.message()));
  return folder;
}

// A run that is going on keeps its files to itself: it is shown as far as it is, and nothing is written.
ExitCode report(const Program& program, const std::filesystem::path& folder, const CommandLine& line) {
  const base::FolderLock lock(folder / RunFolder::kLock, "report");
  if (lock.state() == base::FolderLock::State::foreign) throw UsageError(lock.why());
  const bool busy = lock.state() == base::FolderLock::State::busy;
  const reports::Run run = reports::read_journal(folder / reports::kJournalFile);
  if (busy)
    base::err("note: {} is in use by {}: this is what its journal holds so far; no file is written\n", folder.string(),
              lock.why());
  return publish(run, program.causes,
                 {busy ? std::nullopt : std::optional(folder), line.summary_file, line.quiet, line.color});
}

}  // namespace

ExitCode report(const Program& program, const CommandLine& line) {
  std::vector<std::filesystem::path> folders;
  std::vector<Fd> summaries;
  for (const std::string& given : line.operands) {
    folders.push_back(folder_of_run(given));
    if (line.summary_file) summaries.push_back(check_summary_file(*line.summary_file, folders.back()));
  }
  ExitCode code = ExitCode::ready;
  for (const auto& folder : folders) code = reports::worse(code, report(program, folder, line));
  return code;
}

ExitCode print_schema(const CommandLine& line) {
  using Schema = std::string_view (*)();
  static const std::vector<std::pair<std::string, Schema>> kSchemas = {{"report", reports::report_schema},
                                                                       {"event", reports::event_schema},
                                                                       {"comparison", reports::comparison_schema},
                                                                       {"fleet", reports::fleet_schema},
                                                                       {"bundle", reports::bundle_schema}};
  if (line.operands.size() > 1)
    throw UsageError("schema: one name at a time: report, event, comparison, fleet or bundle");
  const std::string wanted = line.operands.empty() ? "report" : line.operands.front();
  const auto known = std::find_if(kSchemas.begin(), kSchemas.end(), [&](const auto& s) { return s.first == wanted; });
  if (known == kSchemas.end())
    throw UsageError(fmt::format("unknown schema '{}'; there are report, event, comparison, fleet and bundle", wanted));
  base::out("{}\n", known->second());
  return ExitCode::ready;
}

ExitCode print_version(const Program& program) {
  base::out("{} {} (build {})\n", program.name, program.version, program.build_id);
  return ExitCode::ready;
}

}  // namespace harness
