// The whole flag table: pairwise rows, executed in every situation; values and origins of the effective flags for each.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/codes.hpp"
#include "suites/flag_matrix/checks.hpp"
#include "suites/flag_matrix/matrix.hpp"
#include "suites/flag_matrix/record.hpp"
#include "suites/flag_matrix/witness.hpp"
#include "suites/probes/one_thread.hpp"

namespace suites::flag_checks {

namespace {

using covering::Pair;
using flag_matrix_rows::Matrix;
using flag_matrix_rows::matrix;

// Variables that the product's table has and nobody here has values or a witness for.
std::vector<std::string> strangers_of(std::span<const nsa::FlagSpec> table) {
  const std::vector<std::string>& known = flag_truth::known_variables();
  std::vector<std::string> found;
  for (const nsa::FlagSpec& flag : table) {
    const std::string name(flag.name);
    if (flag_matrix_rows::values_of(flag).empty())
      found.push_back(fmt::format("{} (type {})", name, flag.type));
    else if (std::find(known.begin(), known.end(), name) == known.end())
      found.push_back(name);
  }
  return found;
}

// A pair that no row may hold, set alone: the product must refuse it and name both variables.
void check_refused(Context& context, const covering::Problem& problem, const Pair& pair) {
  covering::Row row(problem.factors.size(), 0);  // every other variable unset
  row[static_cast<std::size_t>(pair.a.factor)] = pair.a.value;
  row[static_cast<std::size_t>(pair.b.factor)] = pair.b.value;
  const nsa::Environment environment = flag_matrix_rows::environment_of(problem, row);
  const std::string text = flag_matrix_rows::text_of(problem, pair);
  std::string message;
  try {
    (void)nsa::resolve(environment);
  } catch (const nsa::FlagInvalid& refusal) {
    message = refusal.what();
  }
  const auto names = [&](const covering::Choice& c) {
    return message.find(problem.factors[static_cast<std::size_t>(c.factor)].name) != std::string::npos;
  };
  context.expect(
      "refused: " + text, names(pair.a) && names(pair.b),
      message.empty() ? text + " was accepted" : fmt::format("the refusal of {} does not name both: {}", text, message),
      codes::kIllegalFlagAccepted, {{"pair", text}, {"message", message}});
}

std::string shown(const nsa::Environment& environment) {
  std::string text;
  for (const auto& [name, value] : environment) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "nothing set" : text;
}

// Value and origin of every field against the written table; the differences, one line each.
std::vector<std::string> differences(const nsa::Environment& environment) {
  const nsa::EffectiveFlags flags = nsa::resolve(environment);
  const std::map<std::string, std::string> values = nsa::flatten(flags);
  const std::map<std::string, flag_truth::Field> wanted = flag_truth::expected_fields(environment);
  std::vector<std::string> found;
  for (const auto& [field, value] : values)
    if (!wanted.contains(field)) found.push_back(fmt::format("{}: no expectation for this field", field));
  for (const auto& [field, w] : wanted) {
    const auto value = values.find(field);
    const auto origin = flags.origin.find(field);
    const std::string v = value == values.end() ? "(absent)" : value->second;
    const std::string o = origin == flags.origin.end() ? "(absent)" : origin->second.text;
    // A mask that packing overrules explains itself in words of the product's choice.
    const bool same_origin = w.in_own_words ? o.starts_with(w.origin) : o == w.origin;
    if (v == w.value && same_origin) continue;
    found.push_back(fmt::format("{}: {} is {} from '{}', must be {} from '{}'", shown(environment), field, v, o,
                                w.value, w.origin));
  }
  return found;
}

}  // namespace

void cover_array(Context& context) {
  const Matrix& m = matrix();
  const covering::Coverage& c = m.coverage;
  context.metric("rows", static_cast<double>(m.environments.size()), "1");
  context.metric("variables", static_cast<double>(m.problem.factors.size()), "1");
  context.metric("pairs_possible", static_cast<double>(c.possible), "1");
  context.metric("pairs_legal", static_cast<double>(c.legal()), "1");
  context.metric("pairs_covered", static_cast<double>(c.covered), "1");
  context.metric("coverage",
                 c.legal() == 0 ? 0 : 100.0 * static_cast<double>(c.covered) / static_cast<double>(c.legal()), "%");
  Json illegal = Json::array(), missed = Json::array();
  for (const Pair& pair : c.illegal) illegal.push_back(flag_matrix_rows::text_of(m.problem, pair));
  for (const Pair& pair : c.missed) missed.push_back(flag_matrix_rows::text_of(m.problem, pair));
  context.fact("pairs_not_covered_because_they_must_be_refused", illegal);
  context.fact("executed_but_not_witnessed",
               {"NSA_NVTX (ranges are no operations)", "NSA_DETECT_ANOMALY (the trainer's)"});
  context.expect("pairs.covered", c.missed.empty() && c.covered == c.legal() && c.legal() > 0,
                 fmt::format("{} of {} legal pairs stand in no row: {}", c.missed.size(), c.legal(), missed.dump()),
                 codes::kPairsNotCovered, {{"missed", missed}});
  const std::vector<std::string> strangers = strangers_of(nsa::flag_table());
  context.expect("table.known", strangers.empty(),
                 fmt::format("the flag table has variables that the matrix does not try or cannot judge: {}",
                             fmt::join(strangers, ", ")),
                 codes::kPairsNotCovered, {{"variables", strangers}});
  for (const Pair& pair : c.illegal) check_refused(context, m.problem, pair);
}

void origins(Context& context) {
  // Each value of each variable alone first, so that what is told names as little as it can.
  std::vector<nsa::Environment> all = {{}};
  for (const covering::Factor& factor : matrix().problem.factors)
    for (const std::string& value : factor.values)
      if (const nsa::Environment alone = {{factor.name, value}}; !value.empty() && !flag_truth::contradictory(alone))
        all.push_back(alone);
  all.insert(all.end(), matrix().environments.begin(), matrix().environments.end());
  for (const flag_truth::Fa2Row& row : flag_truth::fa2_table()) all.push_back(row.environment());
  for (const flag_truth::Setting& setting : flag_truth::settings()) {
    nsa::Environment environment = flag_truth::together({&setting});
    if (!flag_truth::contradictory(environment)) all.push_back(std::move(environment));
  }
  Json wrong = Json::array();
  for (const nsa::Environment& environment : all)
    for (const std::string& line : differences(environment)) wrong.push_back(line);
  const std::string first = wrong.empty() ? "" : wrong[0].get<std::string>();
  context.metric("environments", static_cast<double>(all.size()), "1");
  context.expect("fields_and_origins", wrong.empty(),
                 fmt::format("{} field(s) are wrong in value or origin; the first: {}", wrong.size(), first),
                 codes::kFlagOrigin, {{"first", first}, {"wrong", wrong}});
}

void cover(const Subject& subject, Context& context, const flag_execution::Plan& plan) {
  const probes::OneThread alone;
  flag_record::Record record;
  Json blind = Json::object();
  const std::vector<nsa::Environment>& rows = matrix().environments;
  for (const bool training : {false, true}) {
    context.phase(training ? "with gradients" : "without gradients");
    const flag_witness::Yardstick yardstick = flag_witness::measure(plan, training);
    blind[training ? "with_gradients" : "without_gradients"] = flag_witness::blind_spots(yardstick);
    for (const nsa::Environment& environment : rows) run({subject, context, plan, yardstick}, environment, record);
  }
  context.fact("situation", {{"B", plan.B}, {"S", plan.S}, {"packed", plan.packed}});
  context.fact("ways_that_run_the_same_operations_here", blind);
  record.tell(context, "cover");
  context.expect_equal("rows_executed", record.executed(), 2 * rows.size(), codes::kPairsNotCovered);
}

}  // namespace suites::flag_checks
