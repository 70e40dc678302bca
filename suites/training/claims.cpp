#include "suites/training/claims.hpp"

#include <fmt/format.h>

#include <cmath>

#include "harness/compare.hpp"
#include "reports/json.hpp"

namespace suites::training_cases {

using harness::Json;

namespace {

constexpr std::size_t kShown = 4;  // of what is wrong besides the first

std::string text(const Json& value) {
  constexpr std::size_t kLongest = 120;
  const std::string all =
      value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return all.size() > kLongest ? all.substr(0, kLongest) + "..." : all;
}

}  // namespace

bool Claims::near(const std::string& where, const std::string& what, std::optional<double> told, double seen,
                  double allowed) {
  const bool near = told && std::isfinite(seen) && harness::at_most(std::abs(*told - seen), allowed);
  holds(near, where, what, told ? reports::number(*told) : Json("nothing"), reports::number(seen));
  return near;
}

void Claims::equal(const std::string& where, const std::string& what, const Json& told, const Json& seen) {
  holds(told == seen, where, what, told, seen);
}

void Claims::holds(bool holds, const std::string& where, const std::string& what, const Json& told, const Json& seen) {
  if (holds)
    ++compared_;
  else
    wrong(where, what, told, seen);
}

void Claims::wrong(const std::string& where, const std::string& what, const Json& told, const Json& seen) {
  ++compared_;
  wrong_.push_back({{"where", where}, {"what", what}, {"told", told}, {"seen", seen}});
}

void Claims::conclude(harness::Context& context) const {
  Json evidence = {{"file", subject_}, {"compared", compared_}, {"wrong", wrong_.size()}};
  std::string message = fmt::format("{}: there is nothing to compare", subject_);
  if (!wrong_.empty()) {
    const Json& first = wrong_.front();
    evidence.update(first);
    const auto end = wrong_.begin() + static_cast<std::ptrdiff_t>(std::min(wrong_.size(), kShown + 1));
    evidence["more"] = std::vector<Json>(wrong_.begin() + 1, end);
    message = fmt::format("{}, {}, {}: told is {}, seen {} ({} of {} comparisons fail)", subject_, text(first["where"]),
                          text(first["what"]), text(first["told"]), text(first["seen"]), wrong_.size(), compared_);
    if (first.contains("as_if")) message += fmt::format("; it is what it would be if {}", text(first["as_if"]));
  }
  context.expect(subject_ + ": what is told is what was seen", wrong_.empty() && compared_ > 0, message, code_,
                 evidence);
}

}  // namespace suites::training_cases
