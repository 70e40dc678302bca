// What a program gives the harness to run: suites made of cases. Enumerating cases happens in the supervisor,
// which never touches CUDA or torch: `Suite::cases` may look at settings only; the work is in `Case::run`, which
// only a worker calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/context.hpp"
#include "harness/settings.hpp"

namespace harness {

enum class Level { smoke = 1, standard };  // each contains the ones before
inline constexpr Level kLevels[] = {Level::smoke, Level::standard};
inline constexpr Level kTopLevel = Level::standard;
[[nodiscard]] std::string_view to_string(Level level);

// Parameters of a case in canonical (alphabetical) order; they are part of its identity.
class Params {
 public:
  Params() = default;
  Params(std::initializer_list<std::pair<std::string, std::string>> items);
  void set(const std::string& key, const std::string& value);
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& items() const { return items_; }

 private:
  std::vector<std::pair<std::string, std::string>> items_;
};

struct Case {
  std::string name;  // [a-z0-9_]+
  Params params = {};
  Level level = Level::smoke;
  bool needs_cuda = false;            // without a usable GPU: skip(no_cuda), not required
  std::chrono::seconds timeout{120};  // absolute; the hang limit (no progress) is a setting
  std::function<void(Context&)> run;
  // Settings that nobody looks at where this case is left out: named by a user, one makes it a case of smoke.
  std::vector<std::string> brought_by = {};
};

// A setting that is a size: integers that `replay --minimize` may make smaller (replay.hpp).
struct SizeSetting {
  std::string key;
  std::int64_t smallest = 1;  // of one element
  // Cases of the suite that the key begins with are made for each element of the list, which is their parameter of this
  // name: a smaller one is another case. "": none are.
  std::string parameter = {};
};

struct Suite {
  std::string name;     // [a-z0-9_]+
  std::string purpose;  // one sentence: what it proves
  // Suites whose `isolate` finding blocks this one. They need not be selected; if they are, they run before.
  std::vector<std::string> requires_suites;
  std::function<std::vector<Case>(const Settings&)> cases;
  // Its settings say what the results of every suite are about (a commit, an environment): a case of it that one of
  // them brings is planned beside whatever suites are selected.
  bool guards = false;
  std::vector<SettingSpec> settings = {};  // the keys that it declares; they begin with its name
  std::vector<SizeSetting> sizes = {};     // those among them that are sizes
  // The suite directly behind which it stands in a run, whether or not that one is selected or finds anything; "":
  // behind none. Of several that run after the same one, the one with fewest suites behind itself stands first, and of
  // equals the first by name: a newcomer stands before the line that goes on from there. Only a suite that it requires,
  // and that has not run yet, comes between.
  std::string runs_after = {};
  // Whether it can judge an implementation that a run's settings put in the place of the program's own functions: its
  // cases are then about that one. The program leaves out the cases of the others, which would judge its own functions.
  bool judges_implementation = false;
};

// "suite/name[k=v,k=v]" (no brackets without parameters) and the first 8 hex digits of its FNV-1a 64 hash.
[[nodiscard]] std::string case_id(const std::string& suite, const Case& c);
[[nodiscard]] std::string case_hash(std::string_view id);
// The name of a case's folder in artifacts/: its id without what a file name should not have, and its hash.
[[nodiscard]] std::string case_slug(std::string_view id);

// Seed of one use in one case: a hash of (master, id, purpose, trial); independent of order and selection.
[[nodiscard]] std::uint64_t derive_seed(std::uint64_t master, std::string_view id, std::string_view purpose, int trial);

}  // namespace harness
