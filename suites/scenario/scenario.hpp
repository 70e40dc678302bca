// A day of a seed report as data: what is planted and run (attempts), and what the program, run without being told,
// must say of it (verdict, causes, facts). fixtures/scenarios/ holds them; README.md has the file's form.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "reports/json.hpp"

namespace suites::scenario {

using reports::Json;

inline constexpr const char* kSchema = "nsa-validate/scenario";
inline constexpr const char* kVersion = "1.0.0";

// One run of this program.
struct Attempt {
  std::string name;                                  // of its folder: "v1"
  std::string said;                                  // what the seed did there
  std::string level;                                 // smoke | standard
  std::vector<std::string> suites, cases, excludes;  // suites or cases, not both
  std::string model, expect;                         // files beside the scenario, or "": the program's own
  bool gates = false;                                // gates on speed decide
  std::map<std::string, std::string> settings, flags;
  std::vector<std::string> inject;
  // Where there is one; elsewhere the attempt goes without. Besides, or where it stands in `inject`: faults are planted
  // in their order, and one that assembles a table anew undoes those before it.
  std::vector<std::string> inject_on_gpu;

  void plant_on(const std::string& device);  // settles `inject`
};

// What a value must be; all that is said must hold.
struct Wanted {
  std::optional<Json> is;
  std::optional<double> at_least, at_most;  // NaN fails
  std::vector<std::string> names;           // texts that stand in it
};

// One look at what a run has left.
struct Look {
  enum class Kind {
    finding,     // a finding of `code` in a case of `where`, whose message or evidence names `wanted.names`
    clean,       // the cases of `where` ran, and none has a failing finding (of `code`, if one is named)
    outcome,     // every case of `where` that ran ended as `word`
    metric,      // every metric `key` of `where`
    told,        // fact `key` of a case of `where`, at `at` within it
    record,      // the run's provenance at `at`
    not_tested,  // a sentence of what was not tested
    verdict,     // the run's verdict is `word`
    compared,    // `compare` of two attempts: the finding `code` did what `word` says
    went_in      // `compare` of two attempts: `key` of what went in differs
  };
  Kind kind = Kind::finding;
  std::string attempt;  // "": the one that is judged. Of a comparison the later one
  std::string from;     // of a comparison the earlier one
  std::string code, where = "*", key, at, word;
  Wanted wanted;
};

struct Fact {
  std::string id, said;
  std::string needs_gpu;  // why a CPU cannot show it; "": it can
  std::string beyond;     // why no run of this program can show it; there are no looks then
  std::vector<Look> looks;
};

struct Cause {
  std::string said;
  std::vector<std::string> of;  // ids of the report's causes or codes of their findings; one is enough
  std::vector<std::string> names;
  std::string needs_gpu;  // as a fact's
};

struct Scenario {
  std::string name, title, seed;
  Json configuration;  // the seed's, for the reader
  std::vector<Attempt> attempts;
  std::string judged;  // the attempt whose verdict and causes count
  std::string verdict;
  int exit_code = 0;
  std::optional<int> exit_code_on_gpu;  // where what is injected there alone ends the run otherwise
  std::vector<Cause> causes;            // in the order in which the report must name them
  std::vector<Fact> facts;

  [[nodiscard]] const Attempt& attempt(const std::string& name) const;  // "": the judged one
  [[nodiscard]] int exit_code_on(const std::string& device) const;
};

// What is wrong with the file: "FILE: causes[1].of: ...". `incompatible`: another major of the schema.
class ScenarioError : public std::runtime_error {
 public:
  ScenarioError(const std::string& what, bool other) : std::runtime_error(what), incompatible(other) {}
  bool incompatible;
};

// What a scenario may name.
struct Known {
  std::vector<std::string> suites, faults, codes, causes, flags, settings;
};

// Throws ScenarioError for whatever is damaged, foreign, of another major, or names what is not known. `file` for
// messages; `name` becomes the scenario's.
[[nodiscard]] Scenario parse(const std::string& text, const std::string& file, const std::string& name,
                             const Known& known);

}  // namespace suites::scenario
