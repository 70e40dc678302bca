// What is told, held against what was seen: many small comparisons that make one check of the report.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/context.hpp"

namespace suites::training_cases {

class Claims {
 public:
  // `subject`: what is judged, "metrics.csv"; stands in the check's name and in the evidence as "file".
  Claims(std::string subject, std::string_view code) : subject_(std::move(subject)), code_(code) {}

  // `where`: "line 3, step 2"; `what`: "loss". Within `allowed` of `seen`; what is not there, or NaN, never is. Returns
  // whether it holds.
  bool near(const std::string& where, const std::string& what, std::optional<double> told, double seen, double allowed);
  void equal(const std::string& where, const std::string& what, const harness::Json& told, const harness::Json& seen);
  // Where more is compared than what is shown.
  void holds(bool holds, const std::string& where, const std::string& what, const harness::Json& told,
             const harness::Json& seen);
  void wrong(const std::string& where, const std::string& what, const harness::Json& told, const harness::Json& seen);
  // What gives the number that was told last and is wrong: "it is the mean of ...".
  void explain(const std::string& as_if) { wrong_.back()["as_if"] = as_if; }
  // The same of the first that is wrong.
  void explain_first(const std::string& as_if) { wrong_.front()["as_if"] = as_if; }
  // Something to add to the first that is wrong.
  void note_first(const std::string& key, const harness::Json& value) { wrong_.front()[key] = value; }
  [[nodiscard]] bool hold() const { return wrong_.empty(); }

  // One check: everything holds, and there was something to compare. The first that does not is the message, a few
  // more are in the evidence.
  void conclude(harness::Context& context) const;

 private:
  std::string subject_;
  std::string_view code_;
  std::int64_t compared_ = 0;
  std::vector<harness::Json> wrong_;
};

}  // namespace suites::training_cases
