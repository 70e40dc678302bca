#include "suites/selftest/verb.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/live_line.hpp"
#include "base/stamp.hpp"
#include "base/streams.hpp"
#include "harness/codes.hpp"
#include "harness/journal_writer.hpp"
#include "harness/many_runs.hpp"
#include "harness/probe.hpp"
#include "harness/settings.hpp"
#include "reports/status.hpp"
#include "suites/selftest/files.hpp"
#include "suites/selftest/folder.hpp"
#include "suites/selftest/options.hpp"
#include "suites/selftest/text.hpp"

namespace suites::selftest {

namespace {

namespace fs = std::filesystem;
using harness::Ended;
using harness::Job;
using harness::UsageError;
using reports::ExitCode;

constexpr const char* kVerb = "selftest";
constexpr const char* kFile = "selftest.json";
constexpr const char* kClean = "clean-";
constexpr double kProbeSeconds = 60;
constexpr const char* kEquivalents = "fixtures/selftest/equivalent.json";
constexpr auto kOwnFolder = base::AtomicFile::Folder::own;  // nothing is written through a link
constexpr std::size_t kMostBaseline = std::size_t{16} << 20;
// Where a run hangs on purpose nobody waits long; gates on speed are not what is tested.
constexpr const char* kHangSeconds = "8";

constexpr const char* kExitCodes = R"(
Exit codes:
    0  nothing is worse than the baseline, and every fault that must be caught was
    1  a false alarm; an equivalent mutant that was noticed; a cause that was right first and is not
    2  the command line; a baseline that is damaged, foreign or empty
    3  nothing was run
    4  a run is broken; the machine
    9  a fault that must be caught, or was caught, was not
   11  a baseline of another version, level or device
  130  interrupted (143: terminated))";

// The runs of faults and clean runs, and the report.
FolderWish folder_of(const Options& o, const std::vector<std::string>& faults) {
  return {o.out, o.force, "self-test", [faults](const std::string& name) {
            return name == kFile || std::find(faults.begin(), faults.end(), name) != faults.end() ||
                   (name.starts_with(kClean) &&
                    name.find_first_not_of("0123456789", std::string_view(kClean).size()) == std::string::npos);
          }};
}

std::string text_of_file(const std::string& file, const char* what) try {
  return base::read_head(file, kMostBaseline);
} catch (const std::system_error& error) {
  throw BaselineError(fmt::format("{}: {}", what, error.what()), false);
}

class Selftest {
 public:
  Selftest(const harness::Program& program, const std::vector<Planted>& catalogue, Options options, std::string self)
      : program_(program), catalogue_(catalogue), options_(std::move(options)), self_(std::move(self)) {}

  int run(const std::vector<std::string>& argv);

 private:
  [[nodiscard]] std::vector<std::string> arguments(const Planted* fault) const;
  [[nodiscard]] Job job(const std::string& name, std::vector<std::string> arguments) const;
  [[nodiscard]] bool is_measured(const Planted& fault) const;
  [[nodiscard]] bool runs_alone(const Planted* fault) const;
  [[nodiscard]] std::string suites_of_all() const;
  void read_equivalents();
  [[nodiscard]] Baseline read_baseline(const std::string& file) const;  // of this level and device
  void plan();
  int execute();
  int execute(std::size_t first, std::size_t count, std::size_t at_once);
  void ended(std::size_t number, const Ended& how);
  void clean_ended(const Evidence& evidence, const Ended& how, const std::string& name);
  void say(const std::string& line);
  void draw(const std::vector<std::string>& names);
  [[nodiscard]] ExitCode exit_code() const;

  const harness::Program& program_;
  const std::vector<Planted>& catalogue_;
  Options options_;
  std::string self_;  // as it was typed
  fs::path folder_;
  std::vector<Planted> faults_;
  harness::CodeTable codes_{program_.codes};
  std::vector<Job> jobs_;                             // those that run side by side, then those that run alone
  std::vector<std::optional<std::size_t>> fault_of_;  // job -> its fault; none: a clean run
  std::size_t side_by_side_ = 0;
  Result result_;
  std::size_t done_ = 0;
  base::LiveLine line_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Found by a figure of speed alone: the run's gates must decide, and nothing may run beside it.
bool Selftest::is_measured(const Planted& fault) const {
  return !fault.expected_codes.empty() &&
         std::all_of(fault.expected_codes.begin(), fault.expected_codes.end(), [&](const auto& id) {
           const harness::Code* code = codes_.find(id);
           return code != nullptr && (code->timed || code->category == "performance");
         });
}

// On a GPU preflight would find the memory of the runs beside it, and say so (NSA-E004).
bool Selftest::runs_alone(const Planted* fault) const {
  if (fault != nullptr && is_measured(*fault)) return true;
  if (result_.device != "cuda") return false;
  if (fault == nullptr || fault->any_code || options_.whole) return true;
  const std::vector<std::string> suites = suites_of(fault->found_by);
  return std::find(suites.begin(), suites.end(), "preflight") != suites.end();
}

// No fault: a clean run, of all that any of them runs. Of a mutant of the sources one finding is enough, and
// there are hundreds.
std::vector<std::string> Selftest::arguments(const Planted* fault) const {
  const bool mutant = fault != nullptr && fault->any_code;
  const std::string what = mutant ? options_.level : fault != nullptr ? fault->found_by : suites_of_all();
  std::vector<std::string> words = {self_};
  if (options_.whole || what == options_.level)
    words.insert(words.end(), {"--suite", options_.level});
  else if (what.find('/') != std::string::npos)
    words.insert(words.end(), {"--case", what});
  else
    words.insert(words.end(), {"--suite", what, "--level", options_.level});
  const bool decide = fault != nullptr && is_measured(*fault);
  words.insert(words.end(),
               {"--device", result_.device, "--gates", decide ? "decide" : "report", "--hang", kHangSeconds});
  if (fault != nullptr) words.insert(words.end(), {"--inject", fault->name});
  if (mutant && !options_.whole) words.emplace_back("--fail-fast");
  return words;
}

// The file that comes with the sources is read where it has something to say.
void Selftest::read_equivalents() {
  const bool mutants = std::any_of(faults_.begin(), faults_.end(), [](const Planted& fault) { return fault.any_code; });
  if (options_.equivalent.empty() && !mutants) return;
  const std::string file =
      options_.equivalent.empty() ? (harness::data_folder(program_) / kEquivalents).string() : options_.equivalent;
  result_.equivalents = parse_equivalents(text_of_file(file, "equivalent mutants"), file);
  result_.marked_in_vain = marked_in_vain(names_of(catalogue_), result_.equivalents);
}

Job Selftest::job(const std::string& name, std::vector<std::string> words) const {
  words.insert(words.end(), {"--out", (folder_ / name).string()});
  return {name, std::move(words), folder_ / (name + kLog)};
}

// Those of the faults that run, in the program's order.
std::string Selftest::suites_of_all() const {
  std::vector<std::string> found, ordered;
  for (const Planted& fault : faults_)
    for (std::string& name : suites_of(fault.found_by)) found.push_back(std::move(name));
  for (const harness::Suite& suite : program_.suites)
    if (std::find(found.begin(), found.end(), suite.name) != found.end()) ordered.push_back(suite.name);
  return fmt::format("{}", fmt::join(ordered, ","));
}

Baseline Selftest::read_baseline(const std::string& file) const {
  Baseline baseline = parse_baseline(text_of_file(file, "baseline"), file);
  check_fits(baseline, result_.level, result_.device, file);
  return baseline;
}

void Selftest::plan() {
  result_.trials.resize(faults_.size());
  std::vector<std::optional<std::size_t>> alone;
  const auto put = [&](const Planted* fault, std::optional<std::size_t> number) {
    (runs_alone(fault) ? alone : fault_of_).push_back(number);
  };
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    if (!faults_[i].needs_gpu || result_.device == "cuda") {
      put(&faults_[i], i);
      continue;
    }
    result_.trials[i] = not_run(faults_[i], "needs a GPU, and this run has none");
    say(line_of(result_.trials[i]));
    ++done_;
  }
  for (std::size_t i = 0; i < options_.clean; ++i) put(nullptr, std::nullopt);
  side_by_side_ = fault_of_.size();
  fault_of_.insert(fault_of_.end(), alone.begin(), alone.end());
  std::size_t clean = 0;
  for (const std::optional<std::size_t>& number : fault_of_) {
    const Planted* fault = number ? &faults_[*number] : nullptr;
    jobs_.push_back(job(fault != nullptr ? fault->name : fmt::format("{}{}", kClean, ++clean), arguments(fault)));
  }
}

void Selftest::ended(std::size_t number, const Ended& how) {
  const Job& one = jobs_[number];
  Evidence evidence = read_evidence(folder_ / one.name, how.exit_code);
  if (!how.trouble.empty()) evidence = {Json(), "", {}, how.exit_code, evidence.reached, how.overran, how.trouble};
  ++done_;
  if (!fault_of_[number]) return clean_ended(evidence, how, one.name);
  const Planted& fault = faults_[*fault_of_[number]];
  Trial trial = judge(fault, evidence);
  mark(trial, result_.equivalents);
  trial.command = shell(arguments(&fault));
  trial.folder = (folder_ / one.name).string();
  trial.wall_s = how.wall_s;
  say(line_of(trial));
  result_.trials[*fault_of_[number]] = std::move(trial);
}

void Selftest::clean_ended(const Evidence& evidence, const Ended& how, const std::string& name) {
  if (!evidence.report.is_object()) {
    result_.clean.broken.push_back(fmt::format(
        "{}: {}", name,
        evidence.trouble.empty() ? fmt::format("no report, exit code {}", how.exit_code) : evidence.trouble));
    return say(fmt::format("{:18} {:34} {}", "broken", name, result_.clean.broken.back()));
  }
  ++result_.clean.runs;
  const std::vector<std::string> alarms = false_alarms(evidence);
  if (!alarms.empty()) ++result_.clean.alarmed;
  for (const std::string& alarm : alarms)
    if (std::find(result_.clean.alarms.begin(), result_.clean.alarms.end(), alarm) == result_.clean.alarms.end())
      result_.clean.alarms.push_back(alarm);
  say(fmt::format("{:18} {:34} {}", alarms.empty() ? "clean" : "FALSE ALARM", name, fmt::join(alarms, "; ")));
}

void Selftest::say(const std::string& line) {
  if (options_.quiet) return;
  line_.clear();
  base::err("{}\n", line);
}

void Selftest::draw(const std::vector<std::string>& names) {
  static const bool live = base::want_live_line();
  if (!live || options_.quiet || line_.is_fresh()) return;
  const double elapsed = base::seconds_since(begin_);
  line_.draw(
      fmt::format("[{}/{}] {:.0f}s  {}", done_, faults_.size() + options_.clean, elapsed, fmt::join(names, ", ")));
}

// 0 when all ended, else the exit code of an interruption.
int Selftest::execute() {
  constexpr const char* kThreads = "OMP_NUM_THREADS";
  // Alone a run may have all cores; side by side each has its share.
  const bool share = options_.jobs > 1 && getenv(kThreads) == nullptr;
  const auto cores = static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  if (share) setenv(kThreads, std::to_string(std::max<std::size_t>(1, cores / options_.jobs)).c_str(), /*replace=*/1);
  int signal = execute(0, side_by_side_, options_.jobs);
  if (share) unsetenv(kThreads);
  if (signal == 0) signal = execute(side_by_side_, jobs_.size() - side_by_side_, 1);
  line_.clear();
  if (signal == 0) return 0;
  return static_cast<int>(signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated);
}

int Selftest::execute(std::size_t first, std::size_t count, std::size_t at_once) {
  return harness::run_all(
      "/proc/self/exe", std::span(jobs_).subspan(first, count), {at_once, options_.limit_s},
      [&](std::size_t number, const Ended& how) { ended(first + number, how); },
      [this](const std::vector<std::string>& names) { draw(names); });
}

ExitCode Selftest::exit_code() const {
  ExitCode code = ExitCode::ready;
  const auto raise = [&](bool is, ExitCode to) {
    if (is) code = reports::worse(code, to);
  };
  const Score all = score("all", result_.trials);
  raise(all.planted == all.not_run, ExitCode::nothing_executed);
  raise(all.broken > 0 || !result_.clean.broken.empty(), ExitCode::infrastructure);
  raise(!missed(result_.trials).empty(), ExitCode::mutant_survived);
  raise(result_.clean.alarmed > 0, ExitCode::failed);
  raise(!wrongly_marked(result_.trials, result_.equivalents).empty(), ExitCode::failed);
  if (const auto& c = result_.comparison) {
    raise(!c->lost.empty() || !c->gone.empty(), ExitCode::mutant_survived);
    raise(!c->cause_lost.empty(), ExitCode::failed);
  }
  return code;
}

int Selftest::run(const std::vector<std::string>& argv) {
  const std::string run_id = base::new_run_id();
  const bool cuda = options_.device != "cpu" && harness::probe_in_worker(kProbeSeconds).cuda_usable;
  if (options_.device == "cuda" && !cuda)
    throw harness::InfrastructureError("--device cuda: no usable GPU; `nsa-validate doctor` says why");
  result_.level = options_.level;
  result_.device = cuda ? "cuda" : "cpu";
  result_.whole_catalogue = !options_.narrowed();
  if (options_.seed.empty()) options_.seed = program_.build_id;
  // Before anything takes minutes.
  std::optional<Baseline> baseline, kept;
  if (!options_.baseline.empty()) baseline = read_baseline(options_.baseline);
  if (!options_.write_baseline.empty()) {
    kept = Baseline{result_.level, result_.device, {}};
    if (options_.narrowed() && fs::exists(options_.write_baseline)) kept = read_baseline(options_.write_baseline);
  }
  faults_ = chosen(catalogue_, options_, cuda);
  read_equivalents();
  folder_ = make_folder(folder_of(options_, names_of(catalogue_)), run_id);
  result_.run = {{"id", run_id},
                 {"argv", argv},
                 {"started", base::timestamp()},
                 {"build_id", program_.build_id},
                 {"whole", options_.whole},
                 {"jobs", options_.jobs}};
  if (options_.sample > 0) {
    result_.run["seed"] = options_.seed;
    say(fmt::format("{} faults by the seed '{}'", faults_.size(), options_.seed));
  }
  plan();
  if (const int interrupted = execute(); interrupted != 0) {
    base::tell(fmt::format("interrupted; {} of {} runs had ended, their folders are in {}", done_,
                           faults_.size() + options_.clean, folder_.string()));
    return interrupted;
  }
  std::vector<std::string> codes;
  for (const harness::Code& code : codes_.all()) codes.emplace_back(code.id);
  result_.codes = by_code(result_.trials, catalogue_, codes);
  if (baseline) {
    result_.baseline = options_.baseline;
    result_.comparison = compare(*baseline, result_.trials, names_of(catalogue_));
  }
  result_.exit_code = static_cast<int>(exit_code());
  result_.run["ended"] = base::timestamp();
  base::write_whole(folder_ / kFile, reports::dump(json_of(result_), 2) + "\n", kOwnFolder);
  base::out("{}report: {}\n", text_of(result_), (folder_ / kFile).string());
  if (kept) {
    if (score("all", result_.trials).broken > 0)
      throw harness::InfrastructureError("a run is broken: no baseline was written");
    base::write_whole(options_.write_baseline, to_text(with_rows_of(*kept, result_.trials)), kOwnFolder);
    base::out("baseline: {}\n", options_.write_baseline);
  }
  if (const auto lost = base::lost(stdout)) throw harness::InfrastructureError("standard output: " + *lost);
  return result_.exit_code;
}

// What is planted is planted in the program as it is by default; the runs inherit this process's variables.
void unset_flags() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (const std::string_view one = *entry; one.starts_with("NSA_")) names.emplace_back(one.substr(0, one.find('=')));
  for (const std::string& name : names) {
    base::tell(fmt::format("{} is set: the self-test's runs are without it", name));
    unsetenv(name.c_str());
  }
}

int list(const std::vector<Planted>& faults) {
  for (const Planted& fault : faults)
    base::out("{:12} {:34} {:22} {}{}{} -> {}\n", fault.group, fault.name,
              fault.any_code ? "every suite" : fault.found_by, fault.what, fault.must_catch ? " [must be caught]" : "",
              fault.needs_gpu ? " [needs a GPU]" : "",
              fault.any_code                 ? "any code"
              : fault.expected_codes.empty() ? fmt::format("exit code {}", fault.exit_code)
                                             : fmt::format("{}", fmt::join(fault.expected_codes, ", ")));
  if (const auto lost = base::lost(stdout)) throw harness::InfrastructureError("standard output: " + *lost);
  return 0;
}

int fail(const harness::Program& program, ExitCode code, const std::string& message) {
  base::complain(message, fmt::format("{}: ", program.name));
  return static_cast<int>(code);
}

}  // namespace

std::optional<int> verb(int argc, char** argv, const harness::Program& program, const std::vector<Planted>& catalogue) {
  if (argc < 2 || std::string_view(argv[1]) != kVerb) return std::nullopt;
  CLI::App app("Plants every fault of the catalogue in this program, one run each, and says which it finds.",
               fmt::format("{} {}", program.name, kVerb));
  app.footer(kExitCodes);
  Options options;
  options.jobs = static_cast<std::size_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  add_options(app, options);
  try {
    app.parse(argc - 1, argv + 1);
    if (options.list) return list(chosen(catalogue, options, /*cuda=*/true));
    unset_flags();
    return Selftest(program, catalogue, options, argv[0]).run({argv, argv + argc});
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(program, ExitCode::usage, error.what());
  } catch (const UsageError& error) {
    return fail(program, ExitCode::usage, error.what());
  } catch (const BaselineError& error) {
    return fail(program, error.incompatible ? ExitCode::incompatible : ExitCode::usage, error.what());
  } catch (const std::exception& error) {
    return fail(program, ExitCode::infrastructure, error.what());
  }
}

}  // namespace suites::selftest
