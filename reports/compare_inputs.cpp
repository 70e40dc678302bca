// What went in: the provenance, whatever its depth, so that what a provider adds one day is compared too; and the plan.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "reports/compare_parts.hpp"
#include "reports/view.hpp"

namespace reports::comparing {

namespace {

bool begins(const std::string& name, std::initializer_list<std::string_view> with) {
  return std::any_of(with.begin(), with.end(), [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool has_row(const std::vector<Difference>& rows, std::string_view name) {
  return std::any_of(rows.begin(), rows.end(), [&](const Difference& row) { return row.name == name; });
}

// Variables that are set belong to the environment, what they lead to (flags.effective) to the configuration.
void compare_provenance(const Runs& runs, Comparison& to) {
  std::vector<Json> all;
  for (std::size_t i = 0; i < runs.size(); ++i) all.push_back(runs.at(i).provenance);
  for (Difference& row : compare_leaves(all)) {
    const bool variable = begins(row.name, {"flags.set."});
    if (begins(row.name, {"settings.", "config.", "flags."}) && !variable)
      to.configuration.push_back(std::move(row));
    else if (begins(row.name, {"selection."}))
      to.plan.push_back(std::move(row));
    else
      to.environment.push_back(std::move(row));
  }
}

// What stands in the head of a run too, where the provenance does not tell it already.
void compare_heads(const Runs& runs, Comparison& to) {
  if (!has_row(to.plan, "selection.level"))
    add_each(to.plan, "level", runs, [](const Run& run) { return Json(run.level); });
  if (!has_row(to.plan, "selection.partial"))
    add_each(to.plan, "partial", runs, [](const Run& run) { return Json(run.partial); });
  if (!has_row(to.configuration, "settings.values.run.device"))
    add_each(to.configuration, "device", runs, [](const Run& run) { return Json(run.device); });
  if (!has_row(to.configuration, "settings.values.run.seed"))
    add_each(to.configuration, "master_seed", runs, [](const Run& run) { return Json(run.master_seed); });
  add_each(to.configuration, "planted faults", runs,
           [](const Run& run) { return run.faults.is_array() ? run.faults : Json::array(); });
}

// Suites of another size are told case by case.
void compare_suites(const Runs& runs, Comparison& to) {
  for (const std::string& name : runs.suite_names()) {
    std::vector<Json> values;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Suite* suite = runs.find_suite(i, name);
      values.push_back(suite == nullptr ? Json() : Json(view::plural(suite->cases.size(), "case")));
    }
    if (std::any_of(values.begin(), values.end(), [](const Json& value) { return value.is_null(); }))
      add(to.plan, "suite " + name, std::move(values));
  }
}

// The rows of one case; where its whole suite is missing, the suite's row has told it.
void compare_case(const std::string& id, const Runs& runs, Comparison& to) {
  std::vector<const Case*> cases;
  for (std::size_t i = 0; i < runs.size(); ++i) cases.push_back(runs.find_case(i, id));
  const auto row = [&](const std::string& name, auto of) {
    std::vector<Json> values;
    values.reserve(cases.size());
    for (const Case* c : cases) values.push_back(c == nullptr ? Json() : Json(of(*c)));
    add(to.plan, name, std::move(values));
  };
  const auto first = std::find_if(cases.begin(), cases.end(), [](const Case* c) { return c != nullptr; });
  std::size_t missing = 0, with_suite = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    missing += cases[i] == nullptr ? 1 : 0;
    with_suite += cases[i] == nullptr && runs.find_suite(i, (*first)->suite) != nullptr ? 1 : 0;
  }
  if (with_suite > 0) row("case " + id, [](const Case&) { return "planned"; });
  if (missing > 0) return;
  row("required: " + id, [](const Case& c) { return c.required; });
  row("level: " + id, [](const Case& c) { return c.level; });
  // The same master seed gives the same seeds, unless the way from one to the other has changed.
  for (std::size_t i = 0; i + 1 < cases.size(); ++i) {
    const bool begun = cases[i]->seed != 0 && cases[i + 1]->seed != 0;
    if (!begun || runs.at(i).master_seed != runs.at(i + 1).master_seed || cases[i]->seed == cases[i + 1]->seed)
      continue;
    row("seed: " + id, [](const Case& c) { return c.seed; });
    break;
  }
}

}  // namespace

void flatten(const std::string& name, const Json& value, std::vector<std::pair<std::string, Json>>& to) {
  const bool has_origin = value.is_object() && value.contains("value") && value.contains("origin");
  const bool of_objects = value.is_array() && std::any_of(value.begin(), value.end(),
                                                          [](const Json& item) { return item.is_structured(); });
  if (value.is_null()) return;
  if (value.is_object() && !has_origin) {
    for (const auto& [key, item] : value.items())
      flatten(name.empty() ? key : fmt::format("{}.{}", name, key), item, to);
  } else if (of_objects) {
    for (std::size_t i = 0; i < value.size(); ++i) flatten(name + "[" + std::to_string(i) + "]", value[i], to);
  } else {
    to.emplace_back(name, value);
  }
}

std::vector<Difference> compare_leaves(const std::vector<Json>& values) {
  std::vector<Difference> all, different;
  std::unordered_map<std::string, std::size_t> where;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<std::pair<std::string, Json>> leaves;
    flatten("", values[i], leaves);
    for (auto& [key, value] : leaves) {
      const auto [place, fresh] = where.try_emplace(key, all.size());
      if (fresh) all.push_back({key, std::vector<Json>(values.size())});
      all[place->second].values[i] = std::move(value);
    }
  }
  // A list without anything, where another run has a list of objects: their rows tell it.
  std::set<std::string> lists;
  for (const Difference& row : all)
    for (std::size_t at = row.name.find('['); at != std::string::npos; at = row.name.find('[', at + 1))
      lists.insert(row.name.substr(0, at));
  for (Difference& row : all)
    if (!lists.contains(row.name)) add(different, std::move(row.name), std::move(row.values));
  return different;
}

void compare_inputs(const Runs& runs, Comparison& to) {
  compare_provenance(runs, to);
  compare_heads(runs, to);
  compare_suites(runs, to);
  for (const std::string& id : runs.case_ids()) compare_case(id, runs, to);
}

}  // namespace reports::comparing
