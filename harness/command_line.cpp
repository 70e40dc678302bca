#include "harness/command_line.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "base/nearest.hpp"
#include "reports/status.hpp"

namespace harness {

namespace {

struct VerbRow {
  Verb verb;
  const char* name;
  const char* meaning;
  bool runs;  // takes the options of a run
};

constexpr VerbRow kVerbs[] = {
    {Verb::run, "run", "run suites and write a report (the default verb)", true},
    {Verb::dry_run, "dry-run", "print the plan of a run and do nothing", true},
    {Verb::list, "list", "list suites and cases, or --faults, --settings, --codes", true},
    {Verb::describe, "describe", "describe a case (id or hash) or a suite", true},
    {Verb::report, "report", "write the report of run folders again from their events.jsonl", false},
    {Verb::compare, "compare", "say what is different between runs, in what went in and in what came out", false},
    {Verb::merge, "merge",
     "make one report of the runs of many hosts, with a verdict on all of them; --out DIR keeps it", false},
    {Verb::replay, "replay", "run a failing case again from its bundle; --minimize finds smaller sizes", false},
    {Verb::explain, "explain", "explain a finding code", false},
    {Verb::doctor, "doctor", "say what this machine offers and what is missing", true},
    {Verb::schema, "schema", "print the JSON Schema of report.json, or of event, comparison, fleet or bundle", false},
    {Verb::version, "version", "print version and build id", false},
};

// Sugar for settings: `--hang 5` is `--set run.hang_s=5`.
struct Sugar {
  const char* flag;
  const char* key;
  const char* meaning;
};
constexpr Sugar kSugar[] = {
    {"--seed", "run.seed", "master seed of the run"},
    {"--device", "run.device", "auto, cpu or cuda"},
    {"--hang", "run.hang_s", "seconds without progress that count as a hang"},
    {"--timeout", "run.timeout_s", "absolute limit of a case in seconds (default: each case's own)"},
    {"--isolation", "run.isolation", "one worker process a suite, a case, or none (in this process)"},
    {"--gates", "run.gates", "decide: speed gates decide the verdict; report: they are reported only"},
};

std::string exit_codes() {
  std::string text = "\nExit codes:\n";
  for (const auto& [code, precedence, meaning] : reports::exit_code_table())
    text += fmt::format("  {:>3}  {}\n", static_cast<int>(code), meaning);
  return text;
}

constexpr const char* kReplayExitCodes = R"(
Exit codes:
    0  it does not fail here
    1  the same failure
    2  the bundle is damaged, edited or foreign, or a setting must be given
    4  it cannot run here (a GPU is missing), or the run came to no end
    8  another failure, or no telling
   11  the bundle is of another major version
  130  interrupted (143: terminated))";

class Parser {
 public:
  explicit Parser(const Program& program);
  CommandLine parse(int argc, char** argv);

 private:
  void add_selection();
  void add_configuration(const Program& program);
  void add_execution();
  void add_output();
  void add_verbs(const Program& program);
  void take_no_values_for_flags();
  void refuse_own_verbs() const;
  void refuse_leftovers() const;
  void refuse_run_options(const VerbRow& row) const;
  [[nodiscard]] std::vector<std::string> known_words() const;

  CLI::App app_;
  CommandLine line_;
  std::vector<std::string> sets_, suites_;
  std::vector<std::pair<std::string, std::string>> sugar_keys_;  // flag, key
  std::vector<std::string> sugar_values_;
  std::vector<CLI::App*> verbs_, own_verbs_;
  bool version_ = false, dry_run_ = false;
};

Parser::Parser(const Program& program) : app_(program.name + " " + program.version, program.name) {
  app_.fallthrough();   // options may stand before or after the verb
  app_.allow_extras();  // refused by refuse_leftovers(), which knows the nearest word
  app_.require_subcommand(0, 1);
  app_.get_formatter()->column_width(34);
  add_selection();
  add_configuration(program);
  add_execution();
  add_output();
  add_verbs(program);
  app_.add_flag("--version", version_, "print version and build id");
  app_.footer(exit_codes());
  for (CLI::App* verb : verbs_) verb->footer(verb->get_name() == "replay" ? kReplayExitCodes : exit_codes());
  take_no_values_for_flags();
}

// `--fail-fast=3` means nothing.
void Parser::take_no_values_for_flags() {
  const auto all_of = [](CLI::App& app) {
    for (CLI::Option* option : app.get_options())
      if (option->get_expected_max() == 0) option->disable_flag_override();
  };
  all_of(app_);
  for (CLI::App* verb : verbs_) all_of(*verb);
}

// A repeatable option takes one word each time, so that a verb after it stays a verb.
template <typename Value>
CLI::Option* add_repeatable(CLI::App& app, const char* name, std::vector<Value>& to, const char* meaning) {
  return app.add_option(name, to, meaning)->allow_extra_args(false);
}

void Parser::add_selection() {
  constexpr const char* kGroup = "Selection";
  add_repeatable(app_, "--suite", suites_, "a level (smoke, standard) or suite names, comma-separated")->group(kGroup);
  app_.add_option("--level", line_.level, "level at which named suites run (default smoke)")->group(kGroup);
  add_repeatable(app_, "--case", line_.cases, "case id, hash or pattern with * and ?; repeatable")->group(kGroup);
  add_repeatable(app_, "--exclude", line_.excludes, "leave out cases: id, hash or pattern; repeatable")->group(kGroup);
}

void Parser::add_configuration(const Program& program) {
  constexpr const char* kGroup = "Configuration";
  add_repeatable(app_, "--config", line_.config_files, "YAML file; repeatable, later ones win")->group(kGroup);
  add_repeatable(app_, "--set", sets_, "KEY=VALUE; wins over files; repeatable")->group(kGroup);
  app_.add_flag("--show-config", line_.show_config, "print every setting with its origin and do nothing")
      ->group(kGroup);
  sugar_values_.reserve(std::size(kSugar) + program.options.size());  // options keep references
  const auto add = [&](const std::string& flag, const std::string& key, const std::string& meaning) {
    sugar_keys_.emplace_back(flag, key);
    app_.add_option(flag, sugar_values_.emplace_back(), fmt::format("{} [{}]", meaning, key))->group(kGroup);
  };
  for (const Sugar& sugar : kSugar) add(sugar.flag, sugar.key, sugar.meaning);
  for (const OptionAlias& alias : program.options) add(alias.flag, alias.setting, alias.meaning);
}

void Parser::add_execution() {
  constexpr const char* kGroup = "Execution";
  app_.add_flag("--require-cuda", line_.require_cuda, "no usable GPU is an error (exit code 4)")->group(kGroup);
  app_.add_flag("--fail-fast", line_.fail_fast, "stop after the first case that did not pass")->group(kGroup);
  app_.add_flag("--dry-run", dry_run_, "print the plan and do nothing")->group(kGroup);
  add_repeatable(app_, "--inject", line_.inject, "plant a fault (list --faults); repeatable")->group(kGroup);
}

void Parser::add_output() {
  constexpr const char* kGroup = "Output";
  app_.add_option("--out", line_.out, "folder of the run: new or empty (default out/<run id>)")->group(kGroup);
  app_.add_flag("--force", line_.force, "replace the old run in --out (never one that is going on)")->group(kGroup);
  app_.add_option("--summary-file", line_.summary_file, "append report.md to this file (CI job summaries)")
      ->group(kGroup);
  app_.add_option("--color", line_.color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->group(kGroup);
  app_.add_flag("--quiet", line_.quiet, "print the summary line only")->group(kGroup);
}

// CLI::Range lets NaN through.
std::string seconds_of_a_search(const std::string& text) {
  double value = 0;
  if (CLI::detail::lexical_cast(text, value) && value >= 1 && value <= 1e6) return "";
  return fmt::format("{} is not a number of seconds from 1 to 1000000", text);
}

void Parser::add_verbs(const Program& program) {
  for (const VerbRow& row : kVerbs) verbs_.push_back(app_.add_subcommand(row.name, row.meaning));
  for (const OwnVerb& own : program.verbs) own_verbs_.push_back(app_.add_subcommand(own.name, own.meaning));
  const auto verb = [this](const char* name) { return app_.get_subcommand(name); };
  verb("list")->add_flag("--json", line_.json, "as JSON");
  verb("list")->add_flag("--faults", line_.list_faults, "the faults that --inject can plant");
  verb("list")->add_flag("--settings", line_.list_settings, "the keys of --config and --set");
  verb("list")->add_flag("--codes", line_.list_codes, "the finding codes");
  verb("describe")->add_option("NAME", line_.operands, "case id, case hash or suite")->required();
  verb("report")->add_option("DIR", line_.operands, "folder of a run")->required();
  verb("compare")
      ->add_option("RUN", line_.operands, "folder of a run, its report.json or its journal; two or more")
      ->required();
  verb("compare")->add_flag("--json", line_.json, "as JSON (schema comparison)");
  verb("compare")->add_flag("--trace", line_.trace,
                            "the first step and stage whose bits differ, where cases have traced");
  verb("merge")
      ->add_option("DIR", line_.operands, "folder of a run, or folder of run folders; one or more")
      ->required();
  verb("merge")->add_flag("--json", line_.json, "as JSON (schema fleet)");
  verb("merge")->add_option("--expect", line_.expect, "how many hosts there must be, or their names: a,b,c");
  verb("schema")->add_option("NAME", line_.operands, "report (default), event, comparison, fleet or bundle");
  verb("replay")->add_option("BUNDLE", line_.operands, "a bundle, its folder, or the folder of a run")->required();
  CLI::Option* minimize =
      verb("replay")->add_flag("--minimize", line_.minimize, "then make sizes smaller while the same failure stays");
  verb("replay")
      ->add_option("--limit", line_.limit_s, "seconds that --minimize may take (default 600)")
      ->check(seconds_of_a_search)
      ->needs(minimize);
  verb("explain")->add_option("CODE", line_.operands, "finding code")->required();
}

std::vector<std::string> Parser::known_words() const {
  std::vector<std::string> words;
  for (const CLI::Option* option : app_.get_options())
    words.push_back("--" + (option->get_lnames().empty() ? option->get_name() : option->get_lnames().front()));
  for (const VerbRow& row : kVerbs) words.emplace_back(row.name);
  for (const CLI::App* own : own_verbs_) words.push_back(own->get_name());
  return words;
}

void Parser::refuse_own_verbs() const {
  const std::vector<std::string> extra = app_.remaining(true);
  for (const CLI::App* own : own_verbs_)
    if (own->parsed() || (!extra.empty() && own->check_name(extra.front())))
      throw UsageError(fmt::format("the verb '{0}' is the first word: {1} {0} ... (see {1} {0} --help)",
                                   own->get_name(), app_.get_name()));
}

void Parser::refuse_leftovers() const {
  const std::vector<std::string> extra = app_.remaining(true);
  if (extra.empty()) return;
  const std::string word = extra.front().substr(0, extra.front().find('='));
  const auto parsed = [](const CLI::App* verb) { return verb->parsed(); };
  const auto first = std::find_if(verbs_.begin(), verbs_.end(), parsed);
  const bool is_verb =
      std::any_of(verbs_.begin(), verbs_.end(), [&](const CLI::App* v) { return v->check_name(word); });
  if (is_verb && first != verbs_.end())
    throw UsageError(
        fmt::format("the verb is '{}' already; '{}' after it has no meaning (see --help)", (*first)->get_name(), word));
  const std::string near = base::nearest(word, known_words());
  throw UsageError(fmt::format("{} '{}'{} (see --help)", word.starts_with('-') ? "unknown option" : "unknown verb",
                               word, near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

void Parser::refuse_run_options(const VerbRow& row) const {
  if (row.runs) return;
  const auto takes = [&](const std::string& name) {
    if (name == "--summary-file") return row.verb != Verb::replay;
    if (name == "--out" && row.verb == Verb::merge) return true;
    if (name == "--color" || name == "--quiet" || name == "--version") return true;
    const bool is_setting = name == "--set" || std::any_of(sugar_keys_.begin(), sugar_keys_.end(),
                                                           [&](const auto& sugar) { return sugar.first == name; });
    return row.verb == Verb::replay && (is_setting || name == "--out" || name == "--case");
  };
  for (const CLI::Option* option : app_.get_options()) {
    const std::string name = option->get_name();
    if (option->count() > 0 && !takes(name))
      throw UsageError(fmt::format("option '{}' has no meaning for the verb '{}'", name, row.name));
  }
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

CommandLine Parser::parse(int argc, char** argv) {
  line_.argv.assign(argv, argv + argc);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line_.verb = Verb::help;
    line_.help = app_.help();
    return line_;
  } catch (const CLI::ParseError& error) {
    const std::string what = error.what();
    if (const auto end = what.find(" was given a disallowed flag override"); end != std::string::npos)
      throw UsageError(fmt::format("--{} takes no value (see --help)", what.substr(0, end)));
    refuse_own_verbs();
    refuse_leftovers();
    throw UsageError(error.what());
  }
  refuse_own_verbs();
  refuse_leftovers();
  for (std::size_t i = 0; i < std::size(kVerbs); ++i) {
    if (!verbs_[i]->parsed()) continue;
    line_.verb = kVerbs[i].verb;
    refuse_run_options(kVerbs[i]);
  }
  if (line_.out && line_.out->empty())
    throw UsageError("--out: '' names no folder; give the folder of the run, or leave --out away");
  if (version_) line_.verb = Verb::version;
  if (dry_run_ && line_.verb == Verb::run) line_.verb = Verb::dry_run;

  for (const std::string& text : suites_) {
    for (std::string& name : split(text, ',')) line_.suites.push_back(std::move(name));
  }
  for (const std::string& text : sets_) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) throw UsageError(fmt::format("--set: '{}' is not KEY=VALUE", text));
    line_.overrides.push_back({text.substr(0, equals), text.substr(equals + 1), "--set"});
  }
  for (std::size_t i = 0; i < sugar_keys_.size(); ++i) {
    const auto& [flag, key] = sugar_keys_[i];
    if (app_.get_option(flag)->count() > 0) line_.overrides.push_back({key, sugar_values_[i], flag});
  }
  return line_;
}

}  // namespace

CommandLine parse_command_line(const Program& program, int argc, char** argv) {
  return Parser(program).parse(argc, argv);
}

}  // namespace harness
