// What the user asked for, as typed; nothing here is looked up yet. command_line.cpp is the only file that knows CLI11.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "harness/program.hpp"

namespace harness {

enum class Verb {
  run,
  dry_run,
  list,
  describe,
  report,
  compare,
  merge,
  replay,
  explain,
  doctor,
  schema,
  version,
  help
};

struct Override {
  std::string key, value, origin;  // "run.hang_s", "5", "--hang"
};

struct CommandLine {
  Verb verb = Verb::run;
  std::vector<std::string> argv;      // as given, program name first
  std::vector<std::string> operands;  // of describe, report, compare, merge, replay, explain, schema
  std::string help;                   // Verb::help: the text to print

  // selection
  std::vector<std::string> suites;  // names or one level, still unchecked
  std::string level;                // "" when not given
  std::vector<std::string> cases, excludes;
  // configuration
  std::vector<std::filesystem::path> config_files;
  std::vector<Override> overrides;  // in the order of precedence: later wins
  bool show_config = false;
  // execution
  bool require_cuda = false, fail_fast = false;
  std::vector<std::string> inject;
  // output
  std::optional<std::filesystem::path> out, summary_file;
  bool force = false, quiet = false;
  std::string color = "auto";
  // list, compare, merge
  bool json = false, list_faults = false, list_settings = false, list_codes = false;
  bool trace = false;                 // of compare
  std::optional<std::string> expect;  // of merge: a number, or names
  // replay
  bool minimize = false;
  double limit_s = 600;
};

// Throws UsageError: what is wrong, and the nearest option or verb for a typo.
[[nodiscard]] CommandLine parse_command_line(const Program& program, int argc, char** argv);

}  // namespace harness
