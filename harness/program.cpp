#include "harness/program.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <set>
#include <system_error>

#include "base/streams.hpp"
#include "harness/command_line.hpp"
#include "harness/ending.hpp"
#include "harness/journal_writer.hpp"
#include "harness/many_runs.hpp"
#include "harness/protocol.hpp"
#include "harness/run.hpp"
#include "harness/verbs.hpp"
#include "harness/worker.hpp"

namespace harness {

using reports::ExitCode;

namespace {

// Mistakes of the program itself, found before they can hide in a run.
void check_program(const Program& program) {
  const CodeTable codes(program.codes);
  std::set<std::string> names;
  for (const Suite& suite : program.suites)
    if (!names.insert(suite.name).second) throw std::logic_error(fmt::format("suite '{}' stands twice", suite.name));
  for (const Fault& fault : program.faults) {
    if (!names.insert("fault " + fault.name).second)
      throw std::logic_error(fmt::format("fault '{}' stands twice", fault.name));
    for (const std::string& code : fault.expected_codes)
      if (codes.find(code) == nullptr)
        throw std::logic_error(fmt::format("fault '{}' expects the unknown code '{}'", fault.name, code));
  }
}

// What a bundle and --minimize need names settings.
void check_settings_of_bundles(const Program& program) {
  std::vector<std::string> named = program.executed;
  for (const SizeSetting& size : program.sizes) named.push_back(size.key);
  if (!program.configuration.empty()) named.push_back(program.configuration);
  const std::vector<SettingSpec> specs = all_setting_specs(program);
  for (const std::string& key : named)
    if (std::none_of(specs.begin(), specs.end(), [&](const SettingSpec& spec) { return spec.key == key; }))
      throw std::logic_error(fmt::format("'{}' is named as a setting, and is none", key));
}

ExitCode dispatch(const Program& program, const CommandLine& line) {
  if (line.show_config) return show_config(program, line);
  switch (line.verb) {
    case Verb::run:
      return run(program, line);
    case Verb::dry_run:
      return dry_run(program, line);
    case Verb::list:
      return list(program, line);
    case Verb::describe:
      return describe(program, line);
    case Verb::report:
      return report(program, line);
    case Verb::compare:
      return compare(program, line);
    case Verb::merge:
      return merge(program, line);
    case Verb::replay:
      return replay(program, line);
    case Verb::explain:
      return explain(program, line);
    case Verb::doctor:
      return doctor(program, line);
    case Verb::schema:
      return print_schema(line);
    case Verb::version:
      return print_version(program);
    case Verb::help:
      base::out("{}", line.help);
      return ExitCode::ready;
  }
  throw std::logic_error("Verb outside its enumeration");
}

// A run that could not say what it found is refused before it begins.
void refuse_lost_streams(const CommandLine& line) {
  const auto refuse = [](const char* stream, int fd) {
    if (const auto why = base::unwritable(fd))
      throw InfrastructureError(fmt::format("{} cannot be written: {}; nothing was done", stream, *why));
  };
  refuse("standard output", STDOUT_FILENO);
  if (line.verb == Verb::run || line.verb == Verb::replay) refuse("standard error", STDERR_FILENO);
}

ExitCode fail(ExitCode code, const std::string& what) {
  base::complain(what);
  return code;
}

// How many files a run has open at once at most, with room for the libraries of a worker.
constexpr rlim_t kNeededFiles = 64;

std::string limit_on_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return fmt::format("a process may have {} files open (ulimit -n), {} are needed", limit.rlim_cur, kNeededFiles);
}

void refuse_low_limits(const CommandLine& line) {
  switch (line.verb) {
    case Verb::run:
    case Verb::dry_run:
    case Verb::list:
    case Verb::describe:
    case Verb::doctor:
    case Verb::replay:
      break;
    case Verb::report:
    case Verb::compare:
    case Verb::merge:
    case Verb::explain:
    case Verb::schema:
    case Verb::version:
    case Verb::help:
      return;  // no workers
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < kNeededFiles)
    throw InfrastructureError(limit_on_files() + "; nothing was done");
}

}  // namespace

ExitCode explained(const std::function<ExitCode()>& work) try { return work(); } catch (const UsageError& error) {
  return fail(ExitCode::usage, error.what());
} catch (const reports::JournalError& error) {
  return fail(error.incompatible ? ExitCode::incompatible : ExitCode::usage, error.what());
} catch (const InfrastructureError& error) {
  return fail(ExitCode::infrastructure, error.what());
} catch (const std::system_error& error) {
  if (error.code() == std::errc::too_many_files_open)
    return fail(ExitCode::infrastructure, fmt::format("{}: {}", error.what(), limit_on_files()));
  return fail(ExitCode::internal, fmt::format("internal: {}", error.what()));
} catch (const std::exception& error) {
  return fail(ExitCode::internal, fmt::format("internal: {}", error.what()));
} catch (...) {
  return fail(ExitCode::internal, "internal: an exception that is not a std::exception");
}

// Output that did not arrive is never success. (What standard error lost was told on standard output meanwhile.)
ExitCode account_for_streams(ExitCode code) {
  if (const auto why = base::lost(stdout)) {
    code = reports::worse(code, ExitCode::infrastructure);
    base::err("error: standard output cannot be written: {}; what was printed there is lost\n", *why);
  }
  return base::lost(stderr) ? reports::worse(code, ExitCode::infrastructure) : code;
}

int run_program(const Program& program, int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == kWorkerVerb) return worker_main(program);  // its streams are pipes
  end_with_starter();
  base::guard_streams();
  return static_cast<int>(account_for_streams(explained([&] {
    check_program(program);
    check_settings_of_bundles(program);
    const CommandLine line = parse_command_line(program, argc, argv);
    refuse_lost_streams(line);
    refuse_low_limits(line);
    return dispatch(program, line);
  })));
}

std::filesystem::path data_folder(const Program& program) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path binary = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = binary.parent_path().parent_path() / "share" / program.name;
  for (const fs::path& folder : {installed, program.source_dir})
    if (fs::is_directory(folder / "configs", ignored)) return folder;
  throw UsageError(fmt::format("configs/ and fixtures/ are neither in {} nor in {}", installed.string(),
                               program.source_dir.string()));
}

}  // namespace harness
