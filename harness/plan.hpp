// The plan: which cases a run executes, in which order, and which suites an `isolate` finding blocks. A pure function
// of the program, the settings and the selection; it never touches a device.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "harness/program.hpp"

namespace harness {

struct Selection {
  std::vector<std::string> suites;    // names, or one level; empty: all suites
  std::string level;                  // "" : the level in `suites`, else smoke
  std::vector<std::string> cases;     // id or hash (whatever its level), or a pattern with * and ? (within the level)
  std::vector<std::string> excludes;  // the same
};

struct PlannedCase {
  Case work;
  std::string id, hash;
  std::string brought_by;  // the first of the case's own settings that somebody has named; "" for none
};

struct PlannedSuite {
  const Suite* suite = nullptr;
  std::vector<PlannedCase> cases;
};

struct Plan {
  Level level = Level::smoke;
  std::vector<PlannedSuite> suites;  // without the empty ones, in the order of running
  bool partial = false;              // something of the level was left out by name

  [[nodiscard]] std::size_t size() const;
};

// What a user sets is looked at: a setting brings the case that obeys it (Case::brought_by) to every level, and a guard
// (Suite::guards) to every selection of suites; an option that sets what is another suite's, and leaves that suite out,
// is refused. Naming cases (--case, --exclude) is more exact than any of this.
//
// Throws UsageError for an unknown suite, level or case (with the nearest name) and for such an option,
// std::logic_error for a program that is wrong in itself (a cycle or an unknown name in
// `requires_suites` and `runs_after`, a case twice).
[[nodiscard]] Plan make_plan(const Program& program, const Settings& settings, const Selection& selection);

// The part of it that can be said without enumerating cases: unknown suites and levels.
void check_scope(const Program& program, const Selection& selection);

// The program's suites: each directly behind the one that it runs after (Suite::runs_after), those that run after none
// in the program's own order, and what a suite requires before it.
[[nodiscard]] std::vector<const Suite*> running_order(const std::vector<Suite>& suites);

// The first isolated suite that `suite` requires, directly or through others; "" when it is free to run.
[[nodiscard]] std::string blocked_by(const std::vector<Suite>& suites, const std::string& suite,
                                     const std::set<std::string>& isolated);

// '*' is any run of characters, '?' any one; everything else, brackets too, is itself.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view text);

}  // namespace harness
