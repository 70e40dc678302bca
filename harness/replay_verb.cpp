// `replay BUNDLE|RUN`: a failing case again, and with --minimize with smaller sizes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>

#include "base/stamp.hpp"
#include "base/streams.hpp"
#include "harness/bundles.hpp"
#include "harness/interrupts.hpp"
#include "harness/journal_writer.hpp"
#include "harness/replay.hpp"
#include "harness/replay_sizes.hpp"
#include "harness/verbs.hpp"
#include "reports/journal.hpp"

namespace harness {

namespace fs = std::filesystem;
using reports::Bundle;
using reports::ExitCode;

namespace {

constexpr double kLongestReplay = 3600;  // seconds; a case has its own limit and is found hanging long before
constexpr std::size_t kMostDifferences = 40;
constexpr std::size_t kMostInFolder = 1000;

// -- which bundle

std::vector<fs::path> bundles_in(const fs::path& run) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(run / reports::kBundleFolder, error), end; !error && entry != end;
       entry.increment(error))
    if (fs::exists(fs::symlink_status(entry->path() / reports::kBundleFile, error)) && files.size() < kMostInFolder)
      files.push_back(entry->path() / reports::kBundleFile);
  std::sort(files.begin(), files.end());
  return files;
}

fs::path bundle_of_run(const Program& program, const fs::path& run, const std::vector<std::string>& cases) {
  std::vector<std::pair<std::string, fs::path>> known;
  for (const fs::path& file : bundles_in(run)) {
    if (cases.empty() && known.size() > 1) break;
    known.emplace_back(read_bundle(file, program).case_id, file);
  }
  if (known.empty()) {
    std::error_code error;
    const bool is_run = fs::exists(run / reports::kJournalFile, error);
    throw UsageError(fmt::format("replay: {} holds no bundle{}", run.string(),
                                 is_run ? fmt::format(": no case of it failed, or an earlier version wrote it (`report "
                                                      "{}` writes its bundles)",
                                                      run.string())
                                        : "; give a bundle or the folder of a run"));
  }
  std::vector<std::string> ids;
  for (const auto& [id, file] : known) {
    if (!cases.empty() && (cases.front() == id || cases.front() == case_hash(id))) return file;
    ids.push_back(id);
  }
  if (!cases.empty())
    throw UsageError(fmt::format("--case: {} has no bundle of '{}'; it has those of {}", run.string(), cases.front(),
                                 fmt::join(ids, ", ")));
  if (known.size() > 1)
    throw UsageError(
        fmt::format("replay: {} has several bundles; name one, or its case: --case '{}'", run.string(), ids.front()));
  return known.front().second;
}

fs::path find_bundle(const Program& program, const CommandLine& line) {
  if (line.operands.size() != 1)
    throw UsageError(fmt::format("replay: one bundle at a time; {} are given", line.operands.size()));
  if (line.cases.size() > 1) throw UsageError("--case: one case at a time");
  fs::path given = line.operands.front();
  std::error_code error;
  if (!fs::is_directory(given, error)) return given;
  if (!fs::exists(fs::symlink_status(given / reports::kBundleFile, error)))
    return bundle_of_run(program, given, line.cases);
  return given / reports::kBundleFile;
}

fs::path make_folder(const CommandLine& line) {
  fs::path folder = fs::absolute(line.out ? *line.out : fs::path("out") / ("replay-" + base::new_run_id()));
  std::error_code error;
  if (fs::exists(folder, error) && (!fs::is_directory(folder, error) || !fs::is_empty(folder, error)))
    throw UsageError(fmt::format("--out: {} is not an empty folder; give a new one", folder.string()));
  fs::create_directories(folder, error);
  if (error) throw InfrastructureError(fmt::format("{}: {}", folder.string(), error.message()));
  return folder;
}

// -- one replay

ExitCode code_of(const Replayed& replayed) {
  switch (replayed.outcome) {
    case Replayed::Outcome::same:
      return ExitCode::failed;
    case Replayed::Outcome::other:
    case Replayed::Outcome::undecided:
      return ExitCode::inconclusive;
    case Replayed::Outcome::passes:
      return ExitCode::ready;
    case Replayed::Outcome::refused:
      return ExitCode::usage;
    case Replayed::Outcome::broken:
      return ExitCode::infrastructure;
    case Replayed::Outcome::stopped:
      return interruption_by(replayed.exit_code);
  }
  throw std::logic_error("Replayed::Outcome outside its enumeration");
}

void print_differences(const std::vector<std::string>& lines) {
  if (lines.empty()) base::out("differs: nothing that is recorded\n");
  for (std::size_t i = 0; i < std::min(kMostDifferences, lines.size()); ++i) base::out("differs: {}\n", lines[i]);
  if (lines.size() > kMostDifferences) base::out("differs: and {} more\n", lines.size() - kMostDifferences);
}

bool failed(const Replayed& replayed) {
  return replayed.outcome == Replayed::Outcome::same || replayed.outcome == Replayed::Outcome::other;
}

void print_result(const Bundle& bundle, const Replayed& replayed) {
  base::out("there:   {}\nhere:    {}\n", to_string(bundle.signature),
            failed(replayed) ? to_string(replayed.signature) : replayed.why);
  if (failed(replayed) && replayed.signature.codes != bundle.signature.codes)
    base::out("codes:   {} there, {} here\n", fmt::join(bundle.signature.codes, ", "),
              fmt::join(replayed.signature.codes, ", "));
  std::error_code error;
  if (const fs::path report = replayed.folder / "report.md"; fs::exists(report, error))
    base::out("report:  {}\n", report.string());
}

}  // namespace

ExitCode replay(const Program& program, const CommandLine& line) {
  const fs::path file = find_bundle(program, line);
  const Bundle bundle = read_bundle(file, program);
  if (!line.cases.empty() && line.cases.front() != bundle.case_id && line.cases.front() != case_hash(bundle.case_id))
    throw UsageError(fmt::format("--case: {} is the bundle of {}", file.string(), bundle.case_id));
  const Replay replay(program, line, bundle, file);
  if (!line.quiet)
    base::out("bundle:  {}: {}{}\n", file.string(), bundle.case_id,
              bundle.faults.empty() ? "" : fmt::format(", with the planted faults {}", fmt::join(bundle.faults, ", ")));
  if (!line.quiet) print_differences(replay.differences());
  if (!replay.cannot().empty()) {
    base::out("replay: cannot run here: {}\n", replay.cannot());
    return ExitCode::infrastructure;
  }
  const fs::path folder = make_folder(line);
  Interrupts interrupts;
  const Replayed replayed = replay.run(replay.as_it_was(), folder / "run", kLongestReplay);
  ExitCode code = code_of(replayed);
  std::string_view last = to_string(replayed.outcome);
  if (replayed.outcome == Replayed::Outcome::passes && replayed.exit_code != 0)  // the run found what the case did not
    code = ExitCode::inconclusive;
  if (!line.quiet) print_result(bundle, replayed);
  if (line.minimize && replayed.outcome == Replayed::Outcome::same) {
    const int signal = minimise_replay(program, bundle, replay, {file, folder, line.limit_s, line.quiet}, interrupts);
    if (signal != 0) {
      code = interruption_by(signal);
      last = to_string(Replayed::Outcome::stopped);
    }
  } else if (line.minimize) {
    base::out("nothing is minimised but the same failure\n");
  }
  base::out("replay: {}\n", last);
  return code;
}

}  // namespace harness
