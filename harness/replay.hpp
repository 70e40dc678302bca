// One failing case again, from its bundle: with its settings, environment and planted faults, in this executable. Data
// of a bundle reach the command line of a run and the variables of may_be_set(), nothing else.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "harness/command_line.hpp"
#include "harness/settings.hpp"
#include "reports/bundle.hpp"

namespace harness {

// What is run, as one command line says it.
struct ReplayedCase {
  std::string id;
  std::vector<Override> settings;
};

// How a replay ended.
struct Replayed {
  enum class Outcome {
    same,       // the failure of the bundle
    other,      // another one
    passes,     // it does not fail here
    undecided,  // inconclusive, skipped, not run
    refused,    // these settings do not go together: nothing was run
    broken,     // no result: the run did not end, or left no journal
    stopped     // by a signal
  };
  Outcome outcome = Outcome::broken;
  reports::Signature signature;  // of same and other
  std::string why;               // of the others
  int exit_code = 0;             // of the run; of `stopped` the signal
  std::filesystem::path folder;
};

[[nodiscard]] std::string_view to_string(Replayed::Outcome outcome);  // "the same failure", "does not fail here", ...

class Replay {
 public:
  // Reads the machine (a worker is asked for the device), sets the environment of this process and settles the
  // settings. Throws UsageError for what cannot be repeated here, with the key; for a setting that names what is
  // executed, when the command line does not give it.
  Replay(const Program& program, const CommandLine& line, const reports::Bundle& bundle,
         const std::filesystem::path& file);

  // What is different here from where it failed, a line each.
  [[nodiscard]] const std::vector<std::string>& differences() const { return differences_; }
  // Why it cannot run at all: no GPU. "" where it can.
  [[nodiscard]] const std::string& cannot() const { return cannot_; }
  [[nodiscard]] const ReplayedCase& as_it_was() const { return as_it_was_; }
  // The value here of a setting that the case obeys, as text: as set, as resolved from a file, or the default.
  [[nodiscard]] std::string value_of(const std::string& key) const;

  // Whether the settings go together and the case exists: "" or why not.
  [[nodiscard]] std::string refused(const ReplayedCase& what) const;
  // Runs it into `folder`, which is made.
  [[nodiscard]] Replayed run(const ReplayedCase& what, const std::filesystem::path& folder, double limit_s) const;
  // The command that does the same.
  [[nodiscard]] std::string command(const ReplayedCase& what) const;

 private:
  void take_environment();
  void take_settings(const CommandLine& line, const std::filesystem::path& file);
  void take_resolved();
  void compare_worlds(const CommandLine& line);
  [[nodiscard]] Settings settings_of(const ReplayedCase& what) const;

  const Program& program_;
  const reports::Bundle& bundle_;
  std::string self_;  // as it was typed
  ReplayedCase as_it_was_;
  std::vector<std::string> differences_;
  std::vector<std::string> unset_;  // variables of this shell that the bundle's run did not have
  std::string cannot_;
};

}  // namespace harness
