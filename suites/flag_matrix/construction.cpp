// Note [When flags are read]
// The environment is read when somebody asks for the flags (nsa::read_environment), and a model keeps the flags that it
// was made with: setting a variable afterwards changes nothing for it, and everything for the next model. So a
// benchmark that sets NSA_FORCE_BRANCH round the passes of one model times the same pass three times; what tells the
// two apart is the model's own record of its flags, which must say what is in force.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdlib>
#include <optional>

#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/probes/one_thread.hpp"

namespace suites::flag_checks {

namespace {

// Sets a variable of this process, or takes it away, and puts back what was there.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name); old != nullptr) before_ = old;
    set(value);
  }
  ~ScopedVariable() { set(before_ ? before_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  void set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

struct Made {
  Instance instance;
  flag_execution::Execution before;
};

// A model of the environment as it is, and a pass of it. Not its first: that one may allocate what later ones reuse.
Made make(const Subject& subject, const flag_execution::Plan& plan) {
  Made made{flag_execution::make_model(subject, plan, subject.flags()), {}};
  (void)flag_execution::pass(made.instance, plan, false);
  made.before = flag_execution::pass(made.instance, plan, false);
  return made;
}

Json called_of(const flag_execution::Execution& seen) {
  Json names = Json::array();
  for (const auto& [op, counts] : seen.ops) names.push_back(op);
  return names;
}

// A later pass of a model whose environment has changed meanwhile: the same operations, the same bits.
void expect_kept(Context& context, const std::string& name, Made& made, const flag_execution::Plan& plan,
                 const std::string& change) {
  const flag_execution::Execution again = flag_execution::pass(made.instance, plan, false);
  const Json evidence = {
      {"change", change}, {"functions_before", called_of(made.before)}, {"functions_after", called_of(again)}};
  context.expect(name, again.ops == made.before.ops && at::equal(again.output, made.before.output),
                 fmt::format("{}: a model that existed before took another way afterwards", change),
                 codes::kFlagsMovedAfterConstruction, evidence);
}

std::string in_force(const Made& made, const std::string& field) {
  const nsa::EffectiveFlags& flags = made.instance.dispatcher->flags();
  const auto origin = flags.origin.find(field);
  return nsa::flatten(flags).at(field) + " from " + (origin == flags.origin.end() ? "nowhere" : origin->second.text);
}

}  // namespace

void after_construction(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  ScopedVariable branch("NSA_FORCE_BRANCH", nullptr), mask("NSA_FORCE_SEL_MASK", nullptr),
      uniform("NSA_FORCE_UNIFORM_GATE", nullptr), parity("NSA_FORCE_PARITY", nullptr);

  context.phase("a model without flags, then flags");
  Made plain = make(subject, plan);
  mask.set("1");
  expect_kept(context, "a model keeps its way", plain, plan, "NSA_FORCE_SEL_MASK=1 after construction");
  branch.set("win");
  expect_kept(context, "a model keeps its branches", plain, plan, "NSA_FORCE_BRANCH=win after construction");
  context.expect_equal("its record says so", in_force(plain, "forced_branch"), "none from default",
                       codes::kFlagsMovedAfterConstruction);

  context.phase("a model made with flags, then none");
  Made forced = make(subject, plan);
  const Json functions = called_of(forced.before);
  context.expect("a new model takes the flags of its day",
                 forced.before.called("attend_window") && !forced.before.called("attend_compressed") &&
                     !forced.before.called("attend_selected"),
                 fmt::format("a model made with NSA_FORCE_BRANCH=win ran {}", functions.dump()),
                 codes::kFlagsMovedAfterConstruction, {{"functions", functions}});
  context.expect_equal("its record says so too", in_force(forced, "forced_branch"), "win from NSA_FORCE_BRANCH=win",
                       codes::kFlagsMovedAfterConstruction);
  branch.set(nullptr);
  mask.set(nullptr);
  expect_kept(context, "a forced model stays forced", forced, plan, "NSA_FORCE_BRANCH taken away after construction");
  context.fact("when flags are read",
               "when a model is made; a variable that is set afterwards changes the next model only, and the record of "
               "the model (flags with origin) says what is in force");
}

}  // namespace suites::flag_checks
