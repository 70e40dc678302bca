#include "harness/run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <set>

#include "base/clock.hpp"
#include "base/launch.hpp"
#include "base/nearest.hpp"
#include "base/stamp.hpp"
#include "base/streams.hpp"
#include "harness/ending.hpp"
#include "harness/guardian.hpp"
#include "harness/interrupts.hpp"
#include "harness/launch.hpp"
#include "harness/probe.hpp"
#include "harness/provenance.hpp"
#include "harness/publish.hpp"
#include "harness/repro.hpp"
#include "harness/run_folder.hpp"
#include "harness/supervisor.hpp"

namespace harness {

using reports::ExitCode;

Settings make_settings(const Program& program, const CommandLine& line) {
  Settings settings(all_setting_specs(program));
  for (const auto& file : line.config_files) settings.load_file(file);
  for (const Override& item : line.overrides) settings.set(item.key, item.value, item.origin);
  return settings;
}

DeviceProbe settle_device(Settings& settings, const CommandLine& line) {
  DeviceProbe probe = probe_in_worker(settings.real("run.start_s"));
  const std::string wanted = settings.text("run.device");
  if ((line.require_cuda || wanted == "cuda") && !probe.cuda_usable) {
    const std::string& origin = settings.values().at("run.device").origin;
    throw InfrastructureError(fmt::format("{}: no usable GPU: {}",
                                          line.require_cuda ? "--require-cuda" : origin + ": run.device is cuda",
                                          probe.why_not));
  }
  if (wanted == "auto") settings.set("run.device", probe.cuda_usable ? "cuda" : "cpu", "the machine");
  return probe;
}

Selection selection_of(const CommandLine& line) { return {line.suites, line.level, line.cases, line.excludes}; }

Plan make_plan(const Program& program, const Settings& settings, const CommandLine& line) {
  if (program.validate) program.validate(settings);
  return make_plan(program, settings, selection_of(line));
}

namespace {

// What can be refused before anybody looks for a device, which takes seconds.
void refuse_unknown_names(const Program& program, const CommandLine& line) {
  check_scope(program, selection_of(line));
  std::vector<std::string> known;
  known.reserve(program.faults.size());
  for (const Fault& fault : program.faults) known.push_back(fault.name);
  for (const std::string& name : line.inject) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = base::nearest(name, known);
    throw UsageError(fmt::format("--inject: unknown fault '{}'{} (`list --faults` shows all)", name,
                                 near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  }
}

Json plan_json(const Plan& plan, bool cuda) {
  Json suites = Json::array();
  for (const PlannedSuite& suite : plan.suites) {
    Json cases = Json::array();
    for (const PlannedCase& c : suite.cases) {
      Json params = Json::object();
      for (const auto& [key, value] : c.work.params.items()) params[key] = value;
      cases.push_back({{"id", c.id},
                       {"hash", c.hash},
                       {"name", c.work.name},
                       {"params", params},
                       {"level", to_string(c.work.level)},
                       {"required", cuda || !c.work.needs_cuda}});
    }
    suites.push_back({{"name", suite.suite->name},
                      {"purpose", suite.suite->purpose},
                      {"requires", suite.suite->requires_suites},
                      {"cases", cases}});
  }
  return {{"suites", suites}};
}

// Everything of one run that does not change any more once it begins.
struct Prepared {
  const Program& program;
  const CommandLine& line;
  Settings settings;
  Plan plan;
  std::string id;
  std::filesystem::path folder;
  DeviceProbe probe;
  bool cuda;
  Json provenance;
};

// Cases of guards that a setting asks for, and --case or --exclude leaves out: not without a word.
std::vector<std::string> guards_left_out(const Program& program, const Settings& settings, const Plan& plan) {
  std::set<std::string> planned;
  for (const PlannedSuite& suite : plan.suites)
    for (const PlannedCase& c : suite.cases) planned.insert(c.id);
  std::vector<std::string> lines;
  for (const PlannedSuite& suite : make_plan(program, settings, Selection{}).suites)
    for (const PlannedCase& c : suite.cases)
      if (suite.suite->guards && !c.brought_by.empty() && !planned.contains(c.id))
        lines.push_back(fmt::format("{}: left out by name, although {} is set ({})", c.id, c.brought_by,
                                    settings.values().at(c.brought_by).origin));
  return lines;
}

Json full_provenance(const Program& program, const Settings& settings, const CommandLine& line, const Plan& plan,
                     const DeviceProbe& probe) {
  Json json = provenance(program, settings, line);
  json["selection"] = {{"suites", line.suites},      {"level", to_string(plan.level)},
                       {"cases", line.cases},        {"exclude", line.excludes},
                       {"partial", plan.partial},    {"guards_left_out", guards_left_out(program, settings, plan)},
                       {"fail_fast", line.fail_fast}};
  json["device"] = {{"cuda_usable", probe.cuda_usable}, {"why_not", probe.why_not}};
  if (probe.provenance.is_object()) json.update(probe.provenance);
  return json;
}

Json run_begin(const Prepared& run) {
  return {{"event", "run_begin"},
          {"schema", reports::kEventSchema},
          {"schema_version", reports::kEventSchemaVersion},
          {"run",
           {{"id", run.id},
            {"argv", run.line.argv},
            {"level", to_string(run.plan.level)},
            {"device", run.cuda ? "cuda" : "cpu"},
            {"master_seed", static_cast<std::uint64_t>(run.settings.integer("run.seed"))}}},
          {"provenance", run.provenance},
          {"faults", run.line.inject},
          {"plan", plan_json(run.plan, run.cuda)}};
}

ReproBasis repro_basis(const Prepared& run) {
  // As it was called, launcher or binary: the name alone is on nobody's PATH.
  const std::string program = run.line.argv.empty() || run.line.argv[0].empty() ? run.program.name : run.line.argv[0];
  ReproBasis basis{program, {}, run.settings.text("run.device"), run.line.inject};
  const Json& all = run.provenance;
  if (all["environment"].contains("PYTORCH_CUDA_ALLOC_CONF"))
    basis.environment["PYTORCH_CUDA_ALLOC_CONF"] = all["environment"]["PYTORCH_CUDA_ALLOC_CONF"].get<std::string>();
  if (all.contains("flags") && all["flags"].contains("set")) {
    for (const auto& [name, value] : all["flags"]["set"].items()) basis.environment[name] = value.get<std::string>();
  }
  return basis;
}

// What standard error could not show, and standard output will not, stands in the report.
void note_lost_output(Recorder& recorder) {
  const auto note = [&](const char* stream, const std::string& why) {
    recorder.finding(
        {std::string(codes::kLostOutput), std::nullopt, fmt::format("{} cannot be written: {}", stream, why)});
  };
  if (const auto why = base::lost(stderr)) note("standard error", *why);
  auto why = base::lost(stdout);
  if (!why) why = base::unwritable(STDOUT_FILENO);
  if (why) note("standard output", *why);
}

// Writes the journal of the whole run. What stops it early becomes part of it, as far as it can be written: throws
// InfrastructureError when not even its end can.
void execute(const Prepared& run, JournalWriter& journal) {
  const auto begin = std::chrono::steady_clock::now();
  const CodeTable codes(run.program.codes);
  const ReproBasis basis = repro_basis(run);
  Progress progress(
      {run.line.quiet, base::want_live_line(), want_color(run.line.color, STDERR_FILENO), run.plan.size()});
  Recorder recorder({journal, progress, codes,
                     [&](const std::string& id) { return repro_command(basis, run.settings, id); },
                     run.settings.text("run.gates") == "report"});
  std::optional<ExitCode> interruption;
  try {
    recorder.event(run_begin(run));
    const auto signal =
        Supervisor(run.program, run.settings, run.plan,
                   {run.id, run.folder, run.cuda, run.line.fail_fast, run.line.inject, run.provenance}, recorder)
            .run();
    if (signal) interruption = interruption_by(*signal);
  } catch (const JournalLost&) {
    throw;
  } catch (const InfrastructureError& error) {
    base::complain(error.what());
    journal.release_reserve();
    interruption = ExitCode::infrastructure;
  }
  journal.release_reserve();  // a stream may be on the same disk
  note_lost_output(recorder);
  Json end = {{"event", "run_end"}, {"duration_s", base::seconds_since(begin)}, {"case_s", recorder.case_s()}};
  if (interruption) end["interruption"] = static_cast<int>(*interruption);
  recorder.event(end);
}

PublishOptions publishing(const Prepared& run, const std::optional<std::filesystem::path>& folder) {
  return {folder, run.line.summary_file, run.line.quiet, run.line.color, /*streams=*/true};
}

// The verdict comes from the bytes that this run wrote, or there is none: when the journal is lost, what the run had
// told is shown as an incomplete run, and the folder, which may be another's by now, is left alone. One that ends with
// `code` without having written its end says so.
ExitCode conclude(const JournalWriter& journal, const Prepared& run, ExitCode code) {
  try {
    reports::Run told = journal.read_back();
    if (!told.complete && code != ExitCode::ready) told.interruption = code;
    return publish(std::move(told), run.program.causes, publishing(run, run.folder));
  } catch (const JournalLost& error) {
    base::complain(error.what());
  }
  reports::Run told = journal.told();
  told.complete = false;
  told.interruption = ExitCode::infrastructure;
  return publish(told, run.program.causes, publishing(run, std::nullopt));
}

// The run and its reports.
ExitCode carry_out(const Prepared& run, JournalWriter& journal) {
  ExitCode code = ExitCode::ready;
  try {
    execute(run, journal);
  } catch (const InfrastructureError& error) {
    base::complain(error.what());
    code = ExitCode::infrastructure;
  }
  if (journal.empty()) return ExitCode::infrastructure;  // nothing to report on
  journal.release_reserve();                             // for the reports
  return reports::worse(code, conclude(journal, run, code));
}

// The case that was in flight when the process of the run ended, and its suite; nullptrs for none.
std::pair<const PlannedSuite*, const PlannedCase*> planned(const Plan& plan, const std::optional<std::string>& id) {
  for (const PlannedSuite& suite : plan.suites)
    for (const PlannedCase& c : suite.cases)
      if (id && c.id == *id) return {&suite, &c};
  return {nullptr, nullptr};
}

// As the finding of a worker's crash has it, so that the same crash is the same failure with and without workers.
Json evidence_of_end(const JournalWriter& journal, const PlannedCase* in_flight) {
  Json evidence = Json::object();
  if (in_flight == nullptr) return evidence;
  for (const reports::Suite& suite : journal.read_back().suites)
    for (const reports::Case& c : suite.cases)
      if (c.id == in_flight->id) evidence["phase"] = c.last_phase;
  return evidence;
}

// Its process is gone in the middle: what it had told is reported, with its end as a finding, never as a verdict.
ExitCode conclude_for(const Watched& gone, const Prepared& run, JournalWriter& journal) {
  const auto [suite, in_flight] = planned(run.plan, journal.adopt());
  const std::string message = fmt::format(
      "the process of the run {}; without workers (--isolation none) a case takes the run with it", gone.how);
  base::complain(message);
  if (journal.empty()) return gone.interrupted ? interruption_by(*gone.interrupted) : ExitCode::crash;
  const CodeTable codes(run.program.codes);
  const ReproBasis basis = repro_basis(run);
  Progress progress({true, false, false, run.plan.size()});
  Recorder recorder({journal, progress, codes,
                     [&](const std::string& id) { return repro_command(basis, run.settings, id); },
                     run.settings.text("run.gates") == "report"});
  if (in_flight != nullptr) recorder.resume_case(suite->suite->name, *in_flight);
  ExitCode code = ExitCode::crash;
  if (gone.interrupted) {
    code = interruption_by(*gone.interrupted);
    if (in_flight != nullptr)
      recorder.end_case({reports::Status::cancelled, "interrupted", signal_name(*gone.interrupted)});
  } else if (!journal.told().complete) {
    recorder.finding({std::string(gone.by_signal ? codes::kCrash : codes::kVanished), std::nullopt, message,
                      evidence_of_end(journal, in_flight)});
    if (in_flight != nullptr)
      recorder.end_case({reports::Status::crash, gone.by_signal ? "signal" : "vanished", gone.how});
  }
  journal.release_reserve();
  reports::Run told = journal.read_back();
  // One that had ended, ended while it wrote its reports: the verdict may be missing, or not be what was said.
  if (told.complete || gone.interrupted) told.interruption = code;
  told.complete = false;
  return reports::worse(code, publish(told, run.program.causes, publishing(run, run.folder)));
}

// Without workers the run itself is the process that a case can end.
ExitCode carry_out_watched(const Prepared& run, JournalWriter& journal) {
  const Watched child =
      run_watched([&] { return account_for_streams(explained([&] { return carry_out(run, journal); })); });
  return child.code ? *child.code : conclude_for(child, run, journal);
}

// Each of several processes has a folder of its own in the one that was given.
std::optional<std::filesystem::path> folder_in(const std::optional<std::filesystem::path>& out,
                                               const std::optional<Launch>& launch) {
  if (!out || !launch) return out;
  if (std::filesystem::exists(*out / reports::kJournalFile))
    throw UsageError(fmt::format("--out: {} is the folder of one run; {} processes ({}) need one to put theirs into",
                                 out->string(), launch->size, launch->launcher));
  return *out / launch->name();
}

}  // namespace

ExitCode run(const Program& program, const CommandLine& line) {
  Settings settings = make_settings(program, line);
  refuse_unknown_names(program, line);
  const std::string id = base::new_run_id();
  const std::optional<Launch> launch = own_launch();
  if (const std::string alone = base::alone_in_allocation(base::environment()); !alone.empty())
    base::tell("note: " + alone);
  RunFolder folder(folder_in(line.out, launch), id, line.force);
  const Fd summary = line.summary_file ? check_summary_file(*line.summary_file, folder.path()) : Fd();
  const std::string gpu = launch ? take_own_gpu(*launch) : "";
  const DeviceProbe probe = settle_device(settings, line);
  Plan plan = make_plan(program, settings, line);
  if (plan.size() == 0) {
    base::complain("the selection is empty, nothing was executed (`list` shows all cases)");
    return ExitCode::nothing_executed;
  }
  const bool cuda = settings.text("run.device") == "cuda";
  Json all = full_provenance(program, settings, line, plan, probe);
  if (launch) all["launch"] = to_json(*launch, gpu);
  folder.create();
  const Prepared prepared{program, line, settings, std::move(plan), id, folder.path(), probe, cuda, std::move(all)};
  JournalWriter journal(folder.path());
  return settings.text("run.isolation") == "none" ? carry_out_watched(prepared, journal) : carry_out(prepared, journal);
}

ExitCode dry_run(const Program& program, const CommandLine& line) {
  Settings settings = make_settings(program, line);
  refuse_unknown_names(program, line);
  (void)settle_device(settings, line);
  const Plan plan = make_plan(program, settings, line);
  for (const PlannedSuite& suite : plan.suites) {
    const auto& required = suite.suite->requires_suites;
    base::out("{}{}\n", suite.suite->name,
              required.empty() ? "" : fmt::format(" (requires {})", fmt::join(required, ", ")));
    for (const PlannedCase& c : suite.cases)
      base::out("  {}  {}{}{}\n", c.hash, c.id, c.work.needs_cuda ? "  (needs a GPU)" : "",
                c.brought_by.empty() ? "" : fmt::format("  ({} is set)", c.brought_by));
  }
  for (const std::string& left_out : guards_left_out(program, settings, plan)) base::out("not planned: {}\n", left_out);
  base::out("{} cases in {} suites at level {}; nothing was executed\n", plan.size(), plan.suites.size(),
            to_string(plan.level));
  return plan.size() == 0 ? ExitCode::nothing_executed : ExitCode::ready;
}

ExitCode show_config(const Program& program, const CommandLine& line) {
  const Settings settings = make_settings(program, line);
  std::size_t key_width = 0, value_width = 0;
  for (const auto& [key, value] : settings.values()) {
    key_width = std::max(key_width, key.size());
    value_width = std::max(value_width, std::min<std::size_t>(value.text.size(), 40));
  }
  for (const auto& [key, value] : settings.values())
    base::out("{:{}}  {:{}}  {}\n", key, key_width, value.text, value_width, value.origin);
  return ExitCode::ready;
}

}  // namespace harness
