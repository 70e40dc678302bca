// The parts of compare(): each fills its lists of the comparison. Private to reports/.
#pragma once

#include <string_view>
#include <unordered_map>

#include "reports/compare.hpp"

namespace reports::comparing {

// The runs, and their cases and suites by name.
class Runs {
 public:
  explicit Runs(const std::vector<NamedRun>& runs);
  [[nodiscard]] std::size_t size() const { return runs_.size(); }
  [[nodiscard]] const Run& at(std::size_t i) const { return runs_[i].run; }
  // nullptr when it was not planned.
  [[nodiscard]] const Case* find_case(std::size_t i, const std::string& id) const;
  [[nodiscard]] const Suite* find_suite(std::size_t i, const std::string& name) const;
  // Of all runs, in the order in which they come up.
  [[nodiscard]] const std::vector<std::string>& case_ids() const { return case_ids_; }
  [[nodiscard]] const std::vector<std::string>& suite_names() const { return suite_names_; }

 private:
  const std::vector<NamedRun>& runs_;
  std::vector<std::unordered_map<std::string_view, const Case*>> cases_;
  std::vector<std::unordered_map<std::string_view, const Suite*>> suites_;
  std::vector<std::string> case_ids_, suite_names_;
};

void compare_inputs(const Runs& runs, Comparison& to);    // compare_inputs.cpp
void compare_findings(const Runs& runs, Comparison& to);  // compare_findings.cpp
void compare_figures(const Runs& runs, Comparison& to);   // compare_figures.cpp

// Whether others were at work while it ran, as the harness recorded it.
[[nodiscard]] bool busy(const Case& c);

// Adds the row when something in it differs.
void add(std::vector<Difference>& rows, std::string name, std::vector<Json> values);
template <typename Of>
void add_each(std::vector<Difference>& rows, const std::string& name, const Runs& runs, Of of) {
  std::vector<Json> values;
  for (std::size_t i = 0; i < runs.size(); ++i) values.push_back(of(runs.at(i)));
  add(rows, name, std::move(values));
}

// Every leaf of a value with its name, "a.b[0].c". A value with its origin and a list of scalars are leaves; what is
// null is none.
void flatten(const std::string& name, const Json& value, std::vector<std::pair<std::string, Json>>& to);
// The rows of the leaves of all values.
[[nodiscard]] std::vector<Difference> compare_leaves(const std::vector<Json>& values);

}  // namespace reports::comparing
