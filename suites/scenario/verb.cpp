#include "suites/scenario/verb.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "base/atomic_file.hpp"
#include "base/clock.hpp"
#include "base/files.hpp"
#include "base/live_line.hpp"
#include "base/nearest.hpp"
#include "base/stamp.hpp"
#include "base/streams.hpp"
#include "harness/codes.hpp"
#include "harness/journal_writer.hpp"
#include "harness/many_runs.hpp"
#include "harness/plan.hpp"
#include "harness/probe.hpp"
#include "harness/protocol.hpp"
#include "nsa/flags.hpp"
#include "reports/read_run.hpp"
#include "reports/status.hpp"
#include "suites/scenario/text.hpp"
#include "suites/selftest/files.hpp"
#include "suites/selftest/folder.hpp"

namespace suites::scenario {

namespace {

namespace fs = std::filesystem;
using harness::UsageError;
using reports::ExitCode;

constexpr const char* kVerb = "scenario";
constexpr const char* kFile = "scenario.json";
constexpr double kProbeSeconds = 60;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr const char* kHangSeconds = "8";  // where a run hangs on purpose nobody waits long
constexpr const char* kHangKey = "run.hang_s";

constexpr const char* kExitCodes = R"(
Exit codes:
    0  the verdict, all causes in their order, all facts
    1  something is missing
    2  the command line; a scenario that is damaged, foreign or names what is not there
    4  an attempt is broken; the machine
    8  nothing is missing, and something could not be shown here
   11  a scenario of another major version
  130  interrupted (143: terminated))";

struct Options {
  std::string scenario, device = "auto";
  std::optional<std::string> out;
  double limit_s = 600;
  bool list = false, quiet = false, force = false, json = false;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("NAME", o.scenario, "scenario of fixtures/scenarios/, or a file (with a '/' in it)");
  app.add_option("--device", o.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--out", o.out, "folder of the runs and of scenario.json: new or empty (default out/<run id>)");
  app.add_option("--limit", o.limit_s, "seconds of one attempt, which is killed then (default 600)")
      ->check(CLI::PositiveNumber);
  app.add_flag("--force", o.force, "remove what an earlier run of this scenario left in --out");
  app.add_flag("--list", o.list, "list the scenarios, and do nothing");
  app.add_flag("--json", o.json, "print scenario.json instead of the table");
  app.add_flag("--quiet", o.quiet, "no progress");
}

fs::path home(const harness::Program& program) { return harness::data_folder(program) / "fixtures" / "scenarios"; }

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

fs::path file_of(const harness::Program& program, const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const fs::path folder = home(program);
  const std::vector<std::string> known = names_in(folder);
  if (std::find(known.begin(), known.end(), name) != known.end()) return folder / (name + ".json");
  const std::string near = base::nearest(name, known);
  throw UsageError(fmt::format("unknown scenario '{}'{}; `scenario --list` lists them", name,
                               near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

Scenario read(const fs::path& file, const Known& known) {
  std::string text;
  try {
    text = base::read_head(file, kMostBytes);
  } catch (const std::system_error& error) {
    throw ScenarioError(fmt::format("{}: {}", file.string(), error.what()), false);
  }
  return parse(text, file.string(), file.stem().string(), known);
}

// The NSA_* variables of whoever called are no part of a scenario; each attempt sets its own.
class Flags {
 public:
  explicit Flags(const std::map<std::string, std::string>& flags) : before_(nsa::read_environment()) {
    for (const auto& [name, value] : before_) unsetenv(name.c_str());
    for (const auto& [name, value] : flags) setenv(name.c_str(), value.c_str(), /*replace=*/1);
  }
  ~Flags() {
    for (const auto& [name, value] : nsa::read_environment()) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), /*replace=*/1);
  }
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

 private:
  nsa::Environment before_;
};

class Day {
 public:
  Day(const harness::Program& program, const std::vector<Planted>& catalogue, Options options, std::string self)
      : program_(program), catalogue_(catalogue), options_(std::move(options)), self_(std::move(self)) {}

  int run(const std::vector<std::string>& argv);

 private:
  void choose_device();
  [[nodiscard]] std::string needs_gpu(
      const Attempt& attempt) const;  // a fault of it does; "" where none, or here is one
  [[nodiscard]] std::vector<std::string> words(const Attempt& attempt) const;
  [[nodiscard]] std::vector<std::string> planned(const Attempt& attempt) const;
  void check() const;  // before anything takes minutes
  [[nodiscard]] Ran ended(const Attempt& attempt, const harness::Ended& how) const;
  int attempt(const Attempt& attempt);
  void say(const std::string& line);
  void draw(const std::string& name);
  [[nodiscard]] std::optional<reports::Comparison> comparison() const;
  int report(Json head);

  const harness::Program& program_;
  const std::vector<Planted>& catalogue_;
  Options options_;
  std::string self_;  // as it was typed
  std::string device_;
  fs::path file_, folder_;
  Scenario scenario_;
  std::vector<Ran> ran_;
  base::LiveLine line_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void Day::choose_device() {
  const bool cuda = options_.device != "cpu" && harness::probe_in_worker(kProbeSeconds).cuda_usable;
  if (options_.device == "cuda" && !cuda)
    throw harness::InfrastructureError("--device cuda: no usable GPU; `nsa-validate doctor` says why");
  device_ = cuda ? "cuda" : "cpu";
}

std::string Day::needs_gpu(const Attempt& attempt) const {
  if (device_ == "cuda") return "";
  for (const Planted& fault : catalogue_)
    if (fault.needs_gpu && std::find(attempt.inject.begin(), attempt.inject.end(), fault.name) != attempt.inject.end())
      return fault.name;
  return "";
}

std::vector<std::string> Day::words(const Attempt& attempt) const {
  std::vector<std::string> words = {self_};
  if (!attempt.suites.empty())
    words.insert(words.end(), {"--suite", fmt::format("{}", fmt::join(attempt.suites, ","))});
  for (const std::string& one : attempt.cases) words.insert(words.end(), {"--case", one});
  for (const std::string& one : attempt.excludes) words.insert(words.end(), {"--exclude", one});
  if (!attempt.level.empty()) words.insert(words.end(), {"--level", attempt.level});
  words.insert(words.end(), {"--device", device_, "--gates", attempt.gates ? "decide" : "report"});
  if (!attempt.settings.contains(kHangKey)) words.insert(words.end(), {"--hang", kHangSeconds});
  if (!attempt.model.empty()) words.insert(words.end(), {"--model", (file_.parent_path() / attempt.model).string()});
  if (!attempt.expect.empty()) words.insert(words.end(), {"--expect", (file_.parent_path() / attempt.expect).string()});
  for (const auto& [key, value] : attempt.settings) words.insert(words.end(), {"--set", key + "=" + value});
  for (const std::string& fault : attempt.inject) words.insert(words.end(), {"--inject", fault});
  return words;
}

std::vector<std::string> Day::planned(const Attempt& attempt) const {
  const Flags flags(attempt.flags);
  harness::Settings settings(harness::all_setting_specs(program_));
  settings.set("run.device", device_, "--device");
  for (const auto& [key, value] : attempt.settings) settings.set(key, value, "settings");
  if (!attempt.model.empty()) settings.set("model", (file_.parent_path() / attempt.model).string(), "model");
  if (!attempt.expect.empty())
    settings.set("preflight.expect", (file_.parent_path() / attempt.expect).string(), "expect");
  if (program_.validate) program_.validate(settings);
  const harness::Plan plan =
      harness::make_plan(program_, settings, {attempt.suites, attempt.level, attempt.cases, attempt.excludes});
  std::vector<std::string> ids;
  for (const harness::PlannedSuite& suite : plan.suites)
    for (const harness::PlannedCase& one : suite.cases) ids.push_back(one.id);
  return ids;
}

void Day::check() const {
  std::vector<std::vector<std::string>> plans;
  for (const Attempt& attempt : scenario_.attempts) try {
      plans.push_back(planned(attempt));
    } catch (const UsageError& error) {
      throw ScenarioError(fmt::format("{}: attempt '{}': {}", file_.string(), attempt.name, error.what()), false);
    }
  must_be_planned(scenario_, plans, file_.string());
}

Ran Day::ended(const Attempt& attempt, const harness::Ended& how) const {
  Ran ran;
  ran.attempt = attempt.name;
  ran.exit_code = how.exit_code;
  ran.trouble = how.trouble;
  ran.wall_s = how.wall_s;
  ran.folder = (folder_ / attempt.name).string();
  if (!ran.trouble.empty()) return ran;
  try {
    ran.run = {attempt.name, reports::read_run(ran.folder)};
    reports::find_causes(ran.run.run, program_.causes);
    ran.trouble = not_as_asked(attempt, ran.run.run, how.exit_code, device_);
  } catch (const std::exception& unreadable) {
    ran.trouble = fmt::format("exit code {}, and no run that can be read: {}", how.exit_code, unreadable.what());
  }
  return ran;
}

void Day::say(const std::string& line) {
  if (options_.quiet) return;
  line_.clear();
  base::err("{}\n", line);
}

void Day::draw(const std::string& name) {
  static const bool live = base::want_live_line();
  if (!live || options_.quiet || line_.is_fresh()) return;
  const double elapsed = base::seconds_since(begin_);
  line_.draw(fmt::format("[{}/{}] {:.0f}s  {}", ran_.size(), scenario_.attempts.size(), elapsed, name));
}

// 0, or the signal that asked to stop.
int Day::attempt(const Attempt& attempt) {
  std::vector<std::string> argv = words(attempt);
  std::vector<std::string> shown;
  for (const auto& [name, value] : attempt.flags) shown.push_back(name + "=" + value);
  const std::string command =
      fmt::format("{}{}{}", fmt::join(shown, " "), shown.empty() ? "" : " ", selftest::shell(argv));
  argv.insert(argv.end(), {"--out", (folder_ / attempt.name).string()});
  const Flags flags(attempt.flags);
  const std::vector<harness::Job> jobs = {{attempt.name, argv, folder_ / (attempt.name + selftest::kLog)}};
  const int signal = harness::run_all(
      "/proc/self/exe", jobs, {1, options_.limit_s},
      [&](std::size_t, const harness::Ended& how) { ran_.push_back(ended(attempt, how)); },
      [&](const std::vector<std::string>&) { draw(attempt.name); });
  line_.clear();
  if (signal != 0) return signal;
  ran_.back().command = command;
  say(fmt::format("{:18} exit code {:3} {:6.1f} s  {}", attempt.name, ran_.back().exit_code, ran_.back().wall_s,
                  ran_.back().trouble.empty() ? attempt.said : "BROKEN: " + ran_.back().trouble));
  return 0;
}

// Of the attempts that ran; nothing where they are fewer than two.
std::optional<reports::Comparison> Day::comparison() const {
  std::vector<reports::NamedRun> runs;
  for (const Ran& one : ran_)
    if (one.says_something()) runs.push_back(one.run);
  if (runs.size() < 2) return std::nullopt;
  return reports::compare(runs);
}

int Day::report(Json head) {
  const Result result = judge(scenario_, ran_, device_);
  const auto compared = comparison();
  Json json = json_of(scenario_, ran_, result);
  head["ended"] = base::timestamp();
  json["run"] = std::move(head);
  if (compared) json["comparison"] = reports::to_json(*compared);
  const std::string text = reports::dump(json, 2) + "\n";
  base::write_whole(folder_ / kFile, text, base::AtomicFile::Folder::own);
  if (options_.json)
    base::out("{}", text);
  else
    base::out("{}report: {}\n", text_of(scenario_, ran_, result, compared ? reports::to_text(*compared) : ""),
              (folder_ / kFile).string());
  if (const auto lost = base::lost(stdout)) throw harness::InfrastructureError("standard output: " + *lost);
  return result.exit_code;
}

int Day::run(const std::vector<std::string>& argv) {
  file_ = fs::absolute(file_of(program_, options_.scenario));
  scenario_ = read(file_, known_to(program_, catalogue_));
  choose_device();
  for (Attempt& one : scenario_.attempts) one.plant_on(device_);
  check();
  const std::string run_id = base::new_run_id();
  folder_ = selftest::make_folder({options_.out, options_.force, "scenario",
                                   [&](const std::string& name) {
                                     return name == kFile ||
                                            std::any_of(scenario_.attempts.begin(), scenario_.attempts.end(),
                                                        [&](const Attempt& one) { return one.name == name; });
                                   }},
                                  run_id);
  Json head = {{"id", run_id},
               {"argv", argv},
               {"started", base::timestamp()},
               {"build_id", program_.build_id},
               {"file", file_.string()}};
  for (const Attempt& one : scenario_.attempts) {
    if (const std::string fault = needs_gpu(one); !fault.empty()) {
      Ran absent;
      absent.attempt = one.name;
      absent.not_run = fmt::format("fault {} needs a GPU, and there is none here", fault);
      say(fmt::format("{:18} not run: {}", one.name, absent.not_run));
      ran_.push_back(std::move(absent));
      continue;
    }
    if (const int signal = attempt(one); signal != 0) {
      base::tell(fmt::format("interrupted; {} of {} attempts had ended, their folders are in {}", ran_.size(),
                             scenario_.attempts.size(), folder_.string()));
      return static_cast<int>(signal == SIGINT ? ExitCode::interrupted : ExitCode::terminated);
    }
  }
  return report(std::move(head));
}

int list(const harness::Program& program, const std::vector<Planted>& catalogue) {
  const Known known = known_to(program, catalogue);
  for (const std::string& name : names_in(home(program))) {
    const Scenario one = read(home(program) / (name + ".json"), known);
    base::out("{:26} {} ({}): {} attempts, {} causes, {} facts -> {}\n", name, one.title, one.seed, one.attempts.size(),
              one.causes.size(), one.facts.size(), one.verdict);
  }
  if (const auto lost = base::lost(stdout)) throw harness::InfrastructureError("standard output: " + *lost);
  return 0;
}

int fail(const harness::Program& program, ExitCode code, const std::string& message) {
  base::complain(message, fmt::format("{}: ", program.name));
  return static_cast<int>(code);
}

// A file of a scenario may come from anywhere: what names a path or a program of its own stays the caller's.
bool may_be_set(const harness::SettingSpec& spec) {
  // Paths that are taken as they are written, and how long a program of the caller's may take.
  static const std::vector<std::string> kept = {"preflight.expect", "train.data", "python_timeout_s"};
  static const std::vector<std::string> of_run = {kHangKey, "run.seed", "run.timeout_s"};
  if (spec.key.starts_with("run.")) return std::find(of_run.begin(), of_run.end(), spec.key) != of_run.end();
  return spec.path_to == harness::PathTo::none && std::find(kept.begin(), kept.end(), spec.key) == kept.end();
}

}  // namespace

Known known_to(const harness::Program& program, const std::vector<Planted>& catalogue) {
  Known known;
  for (const harness::Suite& suite : program.suites) known.suites.push_back(suite.name);
  for (const Planted& fault : catalogue) known.faults.push_back(fault.name);
  const harness::CodeTable codes(program.codes);
  for (const harness::Code& code : codes.all()) known.codes.emplace_back(code.id);
  for (const reports::CauseRule& rule : program.causes) known.causes.emplace_back(rule.id);
  for (const nsa::FlagSpec& flag : nsa::flag_table()) known.flags.emplace_back(flag.name);
  for (const harness::SettingSpec& spec : harness::all_setting_specs(program))
    if (may_be_set(spec)) known.settings.push_back(spec.key);
  return known;
}

std::optional<int> verb(int argc, char** argv, const harness::Program& program, const std::vector<Planted>& catalogue) {
  if (argc < 2 || std::string_view(argv[1]) != kVerb) return std::nullopt;
  CLI::App app(
      "Plants a day of a seed report in this program, attempt by attempt, and says fact by fact what it finds.",
      fmt::format("{} {}", program.name, kVerb));
  app.footer(kExitCodes);
  Options options;
  add_options(app, options);
  try {
    app.parse(argc - 1, argv + 1);
    if (options.list) return list(program, catalogue);
    if (options.scenario.empty()) throw UsageError("scenario: name one; `scenario --list` lists them");
    return Day(program, catalogue, options, argv[0]).run({argv, argv + argc});
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(program, ExitCode::usage, error.what());
  } catch (const UsageError& error) {
    return fail(program, ExitCode::usage, error.what());
  } catch (const ScenarioError& error) {
    return fail(program, error.incompatible ? ExitCode::incompatible : ExitCode::usage, error.what());
  } catch (const std::exception& error) {
    return fail(program, ExitCode::infrastructure, error.what());
  }
}

}  // namespace suites::scenario
