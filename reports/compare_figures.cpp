// Metrics, and what of a change is beyond the noise that the report knows.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "reports/compare_parts.hpp"

namespace reports::comparing {

namespace {

using Interval = std::pair<double, double>;

constexpr std::size_t kLeastRepeats = 3;  // of fewer an interval says nothing

std::optional<double> finite(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return std::nullopt;
  const auto value = as_number(object.at(key));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<Interval> ordered(std::optional<double> low, std::optional<double> high) {
  if (!low || !high || !(*low <= *high)) return std::nullopt;
  return Interval{*low, *high};
}

// A fact of the metric's name: {"low", "high", "n"}, {"interval": [low, high]}, or the repeats themselves.
std::optional<Interval> interval_of_fact(const Json& fact) {
  if (fact.is_array() && fact.size() >= kLeastRepeats) {
    std::optional<Interval> range;
    for (const Json& item : fact) {
      const auto value = as_number(item);
      if (!value || !std::isfinite(*value)) return std::nullopt;
      range =
          range ? Interval{std::min(range->first, *value), std::max(range->second, *value)} : Interval{*value, *value};
    }
    return range;
  }
  if (!fact.is_object()) return std::nullopt;
  if (const auto n = finite(fact, "n"); n && *n < static_cast<double>(kLeastRepeats)) return std::nullopt;
  if (const auto pair = fact.find("interval"); pair != fact.end() && pair->is_array() && pair->size() == 2) {
    const Json ends{{"low", (*pair)[0]}, {"high", (*pair)[1]}};
    return ordered(finite(ends, "low"), finite(ends, "high"));
  }
  return ordered(finite(fact, "low"), finite(fact, "high"));
}

// A case and its metrics by name.
class Told {
 public:
  explicit Told(const Case& c) : case_(c), busy_(busy(c)), noise_percent_(noise_of(c)) {
    for (const Metric& metric : c.metrics) by_name_.try_emplace(metric.name, &metric);
  }
  [[nodiscard]] Figure::InRun in_run(const Metric& metric) const {
    return {true, metric.value, metric.unit, interval_of(metric), noise_percent_, busy_};
  }
  // NAME_low and NAME_high beside NAME are the ends of its interval, no figures of their own.
  [[nodiscard]] bool is_end(const std::string& name) const {
    for (const std::string_view suffix : {"_low", "_high"})
      if (name.ends_with(suffix) && by_name_.contains(name.substr(0, name.size() - suffix.size()))) return true;
    return false;
  }

 private:
  // What the build differs by from itself, as the case measured it.
  static double noise_of(const Case& c) {
    if (!c.facts.is_object() || !c.facts.contains("noise_floor")) return 0;
    return finite(c.facts.at("noise_floor"), "floor_percent").value_or(0);
  }
  [[nodiscard]] std::optional<Interval> interval_beside(const Metric& metric) const {
    const auto low = by_name_.find(metric.name + "_low"), high = by_name_.find(metric.name + "_high");
    if (low == by_name_.end() || high == by_name_.end()) return std::nullopt;
    if (low->second->unit != metric.unit || high->second->unit != metric.unit) return std::nullopt;
    const Json ends{{"low", low->second->value}, {"high", high->second->value}};
    return ordered(finite(ends, "low"), finite(ends, "high"));
  }
  [[nodiscard]] std::optional<Interval> interval_of(const Metric& metric) const {
    const auto value = as_number(metric.value);
    if (!value || !std::isfinite(*value)) return std::nullopt;
    std::optional<Interval> interval;
    if (case_.facts.is_object() && case_.facts.contains(metric.name))
      interval = interval_of_fact(case_.facts.at(metric.name));
    if (!interval) interval = interval_beside(metric);
    const bool holds = interval && interval->first <= *value && *value <= interval->second;
    return holds ? interval : std::nullopt;
  }

  const Case& case_;
  bool busy_;
  double noise_percent_;
  std::unordered_map<std::string, const Metric*> by_name_;
};

std::optional<double> percent(double before, double after) {
  if (before == 0) return std::nullopt;
  const double change = 100 * (after - before) / std::abs(before);
  return std::isfinite(change) ? std::optional(change) : std::nullopt;
}

bool intervals_meet(const Interval& a, const Interval& b) { return a.first <= b.second && b.first <= a.second; }

Figure::Step judge(const Figure::InRun& before, const Figure::InRun& after) {
  if (!before.ran || !after.ran) return {Figure::Change::not_run, {}};
  if (!before.value && !after.value) return {Figure::Change::same, {}};
  if (!before.value || !after.value) return {Figure::Change::missing, {}};
  if (before.unit != after.unit) return {Figure::Change::other_unit, {}};
  const double a = as_number(*before.value).value_or(NAN), b = as_number(*after.value).value_or(NAN);
  if (a == b || (std::isnan(a) && std::isnan(b))) return {Figure::Change::same, {}};
  if (!std::isfinite(a) || !std::isfinite(b)) return {Figure::Change::not_finite, {}};
  const std::optional<double> change = percent(a, b);
  if (!before.interval || !after.interval) return {Figure::Change::no_interval, change};
  const double noise = std::max(before.noise_percent, after.noise_percent);
  if (intervals_meet(*before.interval, *after.interval) || (change && std::abs(*change) <= noise))
    return {Figure::Change::within_noise, change};
  return {before.busy || after.busy ? Figure::Change::machine_busy : Figure::Change::changed, change};
}

bool tells_something(const Figure& figure) {
  return std::any_of(figure.steps.begin(), figure.steps.end(), [](const Figure::Step& step) {
    return step.change != Figure::Change::same && step.change != Figure::Change::not_run;
  });
}

// In two runs in a row, the same number.
bool is_equal(const Figure& figure) {
  for (std::size_t i = 0; i < figure.steps.size(); ++i) {
    const std::optional<Json>& shown = figure.by_run[i].value;
    const auto value = shown ? as_number(*shown) : std::nullopt;
    if (figure.steps[i].change == Figure::Change::same && value) return std::isfinite(*value);
  }
  return false;
}

bool is_never_finite(const Figure& figure) {
  return std::none_of(figure.by_run.begin(), figure.by_run.end(), [](const Figure::InRun& in) {
    const auto value = in.value ? as_number(*in.value) : std::nullopt;
    return value && std::isfinite(*value);
  });
}

// The figures of one case: by name, and by number where a name comes up more than once.
std::vector<Figure> figures_of(const std::string& id, const Runs& runs) {
  std::vector<Figure> figures;
  std::map<std::pair<std::string, std::size_t>, std::size_t> where;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Case* c = runs.find_case(i, id);
    if (c == nullptr) continue;
    const Told told(*c);
    std::map<std::string, std::size_t> times;
    for (const Metric& metric : c->metrics) {
      if (told.is_end(metric.name)) continue;
      const auto [place, fresh] = where.try_emplace({metric.name, times[metric.name]++}, figures.size());
      if (fresh) figures.push_back({id, metric.name, std::vector<Figure::InRun>(runs.size()), {}});
      figures[place->second].by_run[i] = told.in_run(metric);
    }
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Case* c = runs.find_case(i, id);
    for (Figure& figure : figures) figure.by_run[i].ran = c != nullptr && executed(outcome(*c));
  }
  return figures;
}

}  // namespace

void compare_figures(const Runs& runs, Comparison& to) {
  for (const std::string& id : runs.case_ids()) {
    for (Figure& figure : figures_of(id, runs)) {
      for (std::size_t i = 0; i + 1 < runs.size(); ++i)
        figure.steps.push_back(judge(figure.by_run[i], figure.by_run[i + 1]));
      if (tells_something(figure))
        to.figures.push_back(std::move(figure));
      else if (is_never_finite(figure))
        ++to.never_finite;
      else if (is_equal(figure))
        ++to.equal_figures;
    }
  }
}

}  // namespace reports::comparing
