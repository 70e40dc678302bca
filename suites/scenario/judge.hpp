// What the runs of a scenario have left, held against what must be said. Pure: no process, no file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/compare.hpp"
#include "suites/scenario/scenario.hpp"

namespace suites::scenario {

enum class State {
  ok,
  missing,   // it must be said and is not: a defect of the program, or of the scenario
  not_shown  // it cannot be said here, and `seen` says why
};
[[nodiscard]] std::string_view to_string(State state);  // "ok", "MISSING", "not shown"

struct Answer {
  State state = State::missing;
  std::string seen;  // what the run says, or why there is nothing
};

struct Ran {
  std::string attempt;
  reports::NamedRun run;     // its causes found
  int exit_code = 0;         // of the process; 128 + signal
  std::string trouble = {};  // it says nothing: killed, no journal, not the run that was asked for
  std::string command = {}, folder = {};
  double wall_s = 0;
  std::string not_run = {};  // why it cannot be made here: that is no trouble, and no evidence
  [[nodiscard]] bool says_something() const { return trouble.empty() && not_run.empty(); }
};
// Why the run is not the one that the attempt asks for, "" when it is: faults, flags, device, an end of its own, and a
// verdict that goes with the exit code.
[[nodiscard]] std::string not_as_asked(const Attempt& attempt, const reports::Run& run, int exit_code,
                                       const std::string& device);

struct Told {  // a row of the table
  std::string id, said;
  Answer answer;
};

struct Result {
  std::string device;
  Answer verdict;            // with the exit code
  std::vector<Told> causes;  // in the scenario's order
  std::vector<Told> facts;
  std::vector<std::string> besides;  // causes of the report that the scenario does not name
  std::vector<std::string> broken;   // attempts, and why
  int exit_code = 0;

  [[nodiscard]] std::size_t count(State state) const;  // of causes, facts and verdict
};
// `ran`: every attempt, in the scenario's order.
[[nodiscard]] Result judge(const Scenario& scenario, const std::vector<Ran>& ran, const std::string& device);

// One look alone. `runs` as above.
[[nodiscard]] Answer answer(const Look& look, const Scenario& scenario, const std::vector<Ran>& ran);

// The scenario's words that no run could meet: a case or pattern that matches nothing which the attempt plans.
// `planned`: of each attempt the ids. Throws ScenarioError.
void must_be_planned(const Scenario& scenario, const std::vector<std::vector<std::string>>& planned,
                     const std::string& file);

}  // namespace suites::scenario
