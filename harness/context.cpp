#include "harness/context.hpp"

#include <fmt/format.h>

#include "harness/compare.hpp"

namespace harness {

namespace {

std::string with_unit(double value, std::string_view unit) {
  return unit.empty() || unit == "1" ? fmt::format("{:.6g}", value) : fmt::format("{:.6g} {}", value, unit);
}

}  // namespace

void Context::conclude(const Comparison& c, std::string_view code, const std::string& what_failed,
                       const Json& evidence) {
  check(c.name, c.pass, c.measured, c.comparator, c.bound, c.unit);
  if (!c.pass) finding(code, what_failed, evidence);
}

bool Context::expect_at_most(std::string_view name, double value, double bound, std::string_view unit,
                             std::string_view code, const Json& evidence) {
  const bool pass = at_most(value, bound);
  conclude({name, pass, reports::number(value), "<=", reports::number(bound), unit}, code,
           fmt::format("{} is {}, allowed is at most {}", name, with_unit(value, unit), with_unit(bound, unit)),
           evidence);
  return pass;
}

bool Context::expect_at_least(std::string_view name, double value, double bound, std::string_view unit,
                              std::string_view code, const Json& evidence) {
  const bool pass = at_least(value, bound);
  conclude({name, pass, reports::number(value), ">=", reports::number(bound), unit}, code,
           fmt::format("{} is {}, needed is at least {}", name, with_unit(value, unit), with_unit(bound, unit)),
           evidence);
  return pass;
}

bool Context::expect_within(std::string_view name, double value, double low, double high, std::string_view unit,
                            std::string_view code, const Json& evidence) {
  const bool pass = within(value, low, high);
  const Json bounds = Json::array({reports::number(low), reports::number(high)});
  conclude({name, pass, reports::number(value), "in", bounds, unit}, code,
           fmt::format("{} is {}, allowed is {} to {}", name, with_unit(value, unit), with_unit(low, unit),
                       with_unit(high, unit)),
           evidence);
  return pass;
}

bool Context::expect_equal(std::string_view name, const Json& value, const Json& wanted, std::string_view code,
                           const Json& evidence) {
  const bool pass = value == wanted;  // NaN is unequal to everything, as IEEE has it
  const auto text = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
  conclude({name, pass, value, "==", wanted, ""}, code,
           pass ? "" : fmt::format("{} is {}, wanted is {}", name, text(value), text(wanted)), evidence);
  return pass;
}

bool Context::expect(std::string_view name, bool holds, std::string_view what_failed, std::string_view code,
                     const Json& evidence) {
  conclude({name, holds, holds, "==", true, ""}, code, std::string(what_failed), evidence);
  return holds;
}

}  // namespace harness
