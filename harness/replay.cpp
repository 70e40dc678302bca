#include "harness/replay.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "harness/bundles.hpp"
#include "harness/journal_writer.hpp"
#include "harness/many_runs.hpp"
#include "harness/plan.hpp"
#include "harness/probe.hpp"
#include "harness/process.hpp"
#include "harness/protocol.hpp"
#include "harness/provenance.hpp"
#include "harness/repro.hpp"
#include "reports/journal.hpp"

namespace harness {

namespace fs = std::filesystem;
using reports::Bundle;

namespace {

constexpr const char* kOrigin = "the bundle";
constexpr std::size_t kMostLogBytes = std::size_t{64} << 10;

std::vector<std::string> variables_of_process() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    names.emplace_back(*entry, std::strcspn(*entry, "="));
  return names;
}

std::string shown(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : reports::dump(value);
  return text.size() > 80 ? text.substr(0, 80) + "..." : text;
}

Json resolved_here(const Program& program, const Settings& settings) {
  return program.provenance ? program.provenance(settings).value(Json::json_pointer("/config/resolved"), Json::object())
                            : Json::object();
}

// The last lines of what a run printed.
std::string tail_of(const fs::path& log) {
  std::string text;
  try {
    text = base::read_head(log, kMostLogBytes);
  } catch (const std::exception&) {
    return "";
  }
  while (text.ends_with('\n')) text.pop_back();
  const std::size_t before = text.rfind('\n');
  return text.substr(before == std::string::npos ? 0 : before + 1);
}

// A case that did not fail.
Replayed without_failure(const reports::Run& run, const reports::Case& c, Replayed result) {
  const reports::Status status = reports::outcome(c);
  result.outcome = status == reports::Status::pass ? Replayed::Outcome::passes : Replayed::Outcome::undecided;
  result.why = fmt::format("{}{}{}", reports::to_string(status), c.reason.empty() ? "" : ": ", c.reason);
  if (!run.complete) {
    result.outcome = Replayed::Outcome::broken;
    result.why = "the run did not come to its end";
  }
  return result;
}

}  // namespace

std::string_view to_string(Replayed::Outcome outcome) {
  switch (outcome) {
    case Replayed::Outcome::same:
      return "the same failure";
    case Replayed::Outcome::other:
      return "another failure";
    case Replayed::Outcome::passes:
      return "does not fail here";
    case Replayed::Outcome::undecided:
      return "cannot tell here";
    case Replayed::Outcome::refused:
      return "cannot run here";
    case Replayed::Outcome::broken:
      return "no result";
    case Replayed::Outcome::stopped:
      return "interrupted";
  }
  throw std::logic_error("Replayed::Outcome outside its enumeration");
}

Replay::Replay(const Program& program, const CommandLine& line, const Bundle& bundle, const fs::path& file)
    : program_(program), bundle_(bundle), self_(line.argv.empty() ? program.name : line.argv.front()) {
  as_it_was_.id = bundle.case_id;
  take_environment();
  take_settings(line, file);
  try {
    take_resolved();
    if (const std::string why = refused(as_it_was_); !why.empty()) throw std::invalid_argument(why);
    compare_worlds(line);
  } catch (const InfrastructureError&) {
    throw;
  } catch (const std::exception& error) {  // a flag with a value that nobody knows, say
    throw UsageError(fmt::format("{}: cannot be repeated here: {}", file.string(), error.what()));
  }
}

// The recorded variables are as they were there; all others stay.
void Replay::take_environment() {
  for (const std::string& name : variables_of_process()) {
    if (!may_be_set(program_, name) || bundle_.environment.contains(name)) continue;
    differences_.push_back(fmt::format("environment {}: not set there, {} here: unset for the replay", name,
                                       shown(*base::variable(name))));
    unset_.push_back(name);
    unsetenv(name.c_str());
  }
  for (const auto& [name, value] : bundle_.environment) {
    const auto here = base::variable(name);
    if (here == value) continue;
    differences_.push_back(fmt::format("environment {}: {} there, {} here: set for the replay", name, shown(value),
                                       here ? shown(*here) : "not set"));
    setenv(name.c_str(), value.c_str(), /*replace=*/1);
  }
}

void Replay::take_settings(const CommandLine& line, const fs::path& file) {
  const auto is_executed = [&](const std::string& key) {
    return std::find(program_.executed.begin(), program_.executed.end(), key) != program_.executed.end();
  };
  for (const Override& given : line.overrides) {
    // How it is run; not what.
    if (!is_executed(given.key) &&
        (!given.key.starts_with("run.") || given.key == "run.seed" || given.key == "run.device"))
      throw UsageError(fmt::format(
          "{}: {}: a replay takes its settings from the bundle; here go run.* (how it is run){}{}", given.origin,
          given.key, program_.executed.empty() ? "" : " and ", fmt::join(program_.executed, ", ")));
  }
  const auto given = [&](const std::string& key) {
    return std::any_of(line.overrides.begin(), line.overrides.end(), [&](const Override& o) { return o.key == key; });
  };
  Settings checked(all_setting_specs(program_));
  for (const auto& [key, value, origin] : bundle_.settings) {
    if (is_executed(key) && !given(key))
      throw UsageError(
          fmt::format("{}: settings: {} is '{}', and nothing that a bundle names is executed; where that is "
                      "what you want, say so: --set {}",
                      file.string(), key, value, shell_quote(fmt::format("{}={}", key, value))));
    const bool beside = key == "run.seed" || key == "run.device";  // of a bundle of an earlier version
    if (beside && value != (key == "run.seed" ? std::to_string(bundle_.seed) : bundle_.device))
      throw UsageError(fmt::format("{}: settings: {} is '{}', and the bundle's own is '{}'", file.string(), key, value,
                                   key == "run.seed" ? std::to_string(bundle_.seed) : bundle_.device));
    if (given(key) || beside) continue;
    as_it_was_.settings.push_back({key, value, kOrigin});
  }
  for (const Override& o : line.overrides) as_it_was_.settings.push_back(o);
  as_it_was_.settings.push_back({"run.seed", std::to_string(bundle_.seed), kOrigin});
  as_it_was_.settings.push_back({"run.device", bundle_.device, kOrigin});
  try {
    for (const Override& o : as_it_was_.settings) checked.set(o.key, o.value, o.origin);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: settings: {}", file.string(), error.what()));
  }
}

// Keys of a file that says something else here, or is not there, become settings.
void Replay::take_resolved() {
  const auto differing = [&](const Json& here) {
    for (const auto& [key, value] : bundle_.resolved) {
      const bool set = std::any_of(as_it_was_.settings.begin(), as_it_was_.settings.end(),
                                   [k = key](const Override& o) { return o.key == k; });
      if (!set && (!here.contains(key) || here[key] != value)) as_it_was_.settings.push_back({key, value, kOrigin});
    }
  };
  if (bundle_.resolved.empty()) return;
  try {
    differing(resolved_here(program_, settings_of(as_it_was_)));
  } catch (const std::exception& error) {
    std::erase_if(as_it_was_.settings, [&](const Override& o) { return o.key == program_.configuration; });
    differences_.push_back(
        fmt::format("{}: cannot be used here ({}): its values are in the bundle", bundle_.resolved_file, error.what()));
    differing(resolved_here(program_, settings_of(as_it_was_)));
  }
}

Settings Replay::settings_of(const ReplayedCase& what) const {
  Settings settings(all_setting_specs(program_));
  for (const Override& o : what.settings) settings.set(o.key, o.value, o.origin);
  return settings;
}

void Replay::compare_worlds(const CommandLine& line) {
  const Settings settings = settings_of(as_it_was_);
  const DeviceProbe probe = probe_in_worker(settings.real("run.start_s"));
  if (bundle_.device == "cuda" && !probe.cuda_usable)
    cannot_ = fmt::format("it failed on a GPU, and none is usable here: {}", probe.why_not);
  Json here = provenance(program_, settings, line);
  if (probe.provenance.is_object()) here.update(probe.provenance);
  const Json there = bundle_.json.at("provenance").flatten(), now = here.flatten();
  for (const auto& [where, value] : there.items()) {
    if (where.empty() || where.starts_with("/device/") || where.starts_with("/config/")) continue;  // "": of {}
    const auto found = now.find(where);
    if (found != now.end() && *found == value) continue;
    std::string name = where.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    differences_.push_back(
        fmt::format("{}: {} there, {} here", name, shown(value), found == now.end() ? "nothing" : shown(*found)));
  }
}

std::string Replay::value_of(const std::string& key) const {
  const Settings settings = settings_of(as_it_was_);
  const SettingValue& value = settings.values().at(key);
  const auto resolved = bundle_.resolved.find(key);
  return value.origin == "default" && resolved != bundle_.resolved.end() ? resolved->second : value.text;
}

std::string Replay::refused(const ReplayedCase& what) const {
  try {
    const Settings settings = settings_of(what);
    if (program_.validate) program_.validate(settings);
    Selection selection;
    selection.cases = {what.id};
    const Plan plan = make_plan(program_, settings, selection);
    // An id and no pattern.
    if (plan.size() != 1 || plan.suites.front().cases.front().id != what.id)
      return fmt::format("'{}' is the id of no case", what.id);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

Replayed Replay::run(const ReplayedCase& what, const fs::path& folder, double limit_s) const {
  std::vector<std::string> argv = {self_, "run", "--case", what.id, "--out", folder.string(), "--color", "never"};
  const Settings settings = settings_of(what);
  for (const auto& [key, value] : settings.values())
    if (value.origin != "default") argv.insert(argv.end(), {"--set", key + "=" + value.text});
  for (const std::string& fault : bundle_.faults) argv.insert(argv.end(), {"--inject", fault});

  Replayed result;
  result.folder = folder;
  const fs::path log = folder.string() + ".log";
  std::string trouble;
  const std::vector<Job> jobs = {{"replay", argv, log}};
  const int signal = run_all(
      "/proc/self/exe", jobs, {1, limit_s},
      [&](std::size_t, const Ended& how) {
        result.exit_code = how.exit_code;
        trouble = how.trouble;
      },
      [](const std::vector<std::string>&) {});
  if (signal != 0) {
    result.outcome = Replayed::Outcome::stopped;
    result.exit_code = signal;
    result.why = signal_name(signal);
    return result;
  }
  result.why = trouble.empty() ? fmt::format("exit code {}: {}", result.exit_code, tail_of(log)) : trouble;
  std::error_code error;
  if (!fs::exists(folder / reports::kJournalFile, error)) {
    if (result.exit_code == static_cast<int>(reports::ExitCode::usage)) result.outcome = Replayed::Outcome::refused;
    return result;
  }
  try {
    const reports::Run run = reports::read_journal(folder / reports::kJournalFile);
    for (const reports::Suite& suite : run.suites) {
      for (const reports::Case& c : suite.cases) {
        if (c.id != what.id) continue;
        if (reports::tally(reports::outcome(c)) != reports::Tally::failed) return without_failure(run, c, result);
        result.signature = reports::signature_of(c);
        result.outcome = reports::same_failure(result.signature, bundle_.signature) ? Replayed::Outcome::same
                                                                                    : Replayed::Outcome::other;
        return result;
      }
    }
  } catch (const reports::JournalError& damaged) {
    result.why = damaged.what();
  }
  return result;
}

std::string Replay::command(const ReplayedCase& what) const {
  const Settings settings = settings_of(what);
  std::string unset;
  for (const std::string& name : unset_) unset += fmt::format("{} -u {}", unset.empty() ? "env" : "", name);
  return unset + (unset.empty() ? "" : " ") +
         repro_command({self_, bundle_.environment, bundle_.device, bundle_.faults}, settings, what.id);
}

}  // namespace harness
