#include "reports/view.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

namespace reports::view {

std::string duration(double seconds) {
  if (seconds < 60) return fmt::format("{:.2f} s", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string value(const Json& v) {
  if (v.is_string()) return v.get<std::string>();
  if (v.is_null()) return "none";
  if (v.is_number_float()) return fmt::format("{:.6g}", v.get<double>());
  if (v.is_array() && std::none_of(v.begin(), v.end(), [](const Json& item) { return item.is_structured(); })) {
    std::string text;
    for (const auto& item : v) text += fmt::format("{}{}", text.empty() ? "" : ", ", value(item));
    return text;
  }
  return dump(v);
}

std::string measure(const Json& v, const std::string& unit) { return unit.empty() ? value(v) : value(v) + " " + unit; }

std::string cut(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes) + "...";
}

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < ' ' || c == 0x7f;
    if (c == '\n' || c == '\r' || c == '\t') {
      line += ' ';
    } else if (!control) {
      line += c;
    }
  }
  return line;
}

std::string utf8(const std::string& text) { return Json::parse(dump(Json(text))).get<std::string>(); }

std::string plural(std::size_t n, const std::string& noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string planted_faults(const Run& run) { return run.faults.is_array() ? value(run.faults) : std::string(); }

std::string why(const Case& c) {
  const auto failure =
      std::find_if(c.findings.begin(), c.findings.end(), [](const Finding& f) { return failing(f.severity); });
  std::string text = c.reason_code;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ": ") + part;
  };
  add(c.reason);
  if (failure != c.findings.end()) add(failure->code + " " + failure->message);
  const bool died = c.status == Status::crash || c.status == Status::hang || c.reason_code == "interrupted";
  if (died && !c.last_phase.empty()) text += " (in phase " + c.last_phase + ")";
  return text;
}

std::string key_metrics(const Suite& suite) {
  constexpr std::size_t kShown = 3;
  struct Range {
    std::string name, unit;
    Json low, high;
  };
  std::vector<Range> ranges;
  for (const auto& c : suite.cases) {
    for (const auto& m : c.metrics) {
      const auto known = std::find_if(ranges.begin(), ranges.end(), [&](const Range& r) { return r.name == m.name; });
      if (known == ranges.end()) {
        ranges.push_back({m.name, m.unit, m.value, m.value});
        continue;
      }
      // A NaN, once seen, stays: a range that hides it would be a lie.
      const double now = as_number(m.value).value_or(0);
      const double low = as_number(known->low).value_or(0), high = as_number(known->high).value_or(0);
      if (!std::isnan(low) && !(low <= now)) known->low = m.value;
      if (!std::isnan(high) && !(high >= now)) known->high = m.value;
    }
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, ranges.size()); ++i) {
    const auto& r = ranges[i];
    const std::string range = value(r.low) == value(r.high) ? value(r.low) : value(r.low) + " ... " + value(r.high);
    text += fmt::format("{}{} {}{}", i == 0 ? "" : "; ", r.name, range, r.unit.empty() ? "" : " " + r.unit);
  }
  return text;
}

namespace {

struct Taken {
  std::set<const Case*> cases;
  std::set<std::string> kernels;
};

}  // namespace

std::vector<std::string> kernels_of(const Json& route) {
  std::vector<std::string> all;
  if (!route.is_object()) return all;
  const auto word = [](const Json& from, const char* key) {
    return from.is_object() && from.contains(key) && from.at(key).is_string() ? from.at(key).get<std::string>() : "";
  };
  for (const Json& launched : route.value("kernels", Json::array())) {
    const std::string branch = word(launched, "branch"), kernel = word(launched, "kernel");
    const char* pass = word(launched, "pass") == "backward" ? "backward " : "";
    if (!kernel.empty()) all.push_back(fmt::format("{}{}{}{}", branch, branch.empty() ? "" : " ", pass, kernel));
  }
  if (const std::string told = word(route, "kernel"); !told.empty()) all.push_back(told);
  return all;
}

std::vector<Row> ways(const Run& run) {
  std::map<std::string, std::map<std::string, Taken>> functions;  // function -> way
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      if (!c.facts.is_object() || !c.facts.contains("routes") || !c.facts.at("routes").is_array()) continue;
      for (const Json& route : c.facts.at("routes")) {
        const auto field = [&](const char* name) { return route.is_object() ? route.value(name, "") : ""; };
        const std::string backend = field("backend"), variant = field("variant");
        if (backend.empty()) continue;
        Taken& taken = functions[field("op")][variant.empty() ? backend : fmt::format("{}/{}", backend, variant)];
        taken.cases.insert(&c);
        for (std::string& kernel : kernels_of(route)) taken.kernels.insert(std::move(kernel));
      }
    }
  }
  std::vector<Row> rows;
  for (const auto& [function, taken] : functions) {
    std::vector<std::pair<std::string, Taken>> sorted(taken.begin(), taken.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second.cases.size() > b.second.cases.size(); });
    std::string text;
    for (const auto& [way, by] : sorted) {
      text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", way, plural(by.cases.size(), "case"));
      if (!by.kernels.empty()) text += fmt::format(" ({})", fmt::join(by.kernels, ", "));
    }
    rows.emplace_back(function, text);
  }
  return rows;
}

bool is_speed(const std::string& unit) {
  static constexpr std::array<std::string_view, 6> kUnits{"s", "ms", "us", "ns", "%", "percent"};
  const bool per_second = unit.size() > 2 && unit.compare(unit.size() - 2, 2, "/s") == 0;
  return per_second || std::find(kUnits.begin(), kUnits.end(), unit) != kUnits.end();
}

namespace {

bool about_performance(const Case& c) {
  return std::any_of(c.findings.begin(), c.findings.end(),
                     [](const Finding& f) { return f.category == "performance"; });
}

void add_once(std::vector<std::string>& steps, const std::string& step) {
  if (!step.empty() && std::find(steps.begin(), steps.end(), step) == steps.end()) steps.push_back(step);
}

}  // namespace

std::vector<Gate> gates(const Run& run) {
  std::vector<Gate> found;
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      for (const auto& check : c.checks) {
        if (is_speed(check.unit) || about_performance(c)) found.push_back({&c, &check});
      }
    }
  }
  return found;
}

std::vector<Rate> rates(const Run& run) {
  std::vector<Rate> found;
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      for (const auto& metric : c.metrics) {
        if (is_speed(metric.unit)) found.push_back({&c, &metric});
      }
    }
  }
  return found;
}

std::vector<Figure> charts(const Run& run) {
  std::vector<Figure> found;
  for (const auto& suite : run.suites) {
    for (const auto& c : suite.cases) {
      if (!c.facts.is_object()) continue;
      for (const auto& [key, fact] : c.facts.items()) {
        if (auto chart = chart_of(fact)) found.push_back({&c, std::move(*chart)});
      }
    }
  }
  return found;
}

std::vector<std::string> next_steps(const Run& run, const Assessment& assessment) {
  std::vector<std::string> steps;
  for (const LikelyCause& cause : run.causes)
    add_once(steps, fmt::format("{}: {}", fmt::join(cause.codes, ", "), cause.next));
  if (!run.complete) add_once(steps, "Run again to the end: this run was cut off.");
  if (run.faults.is_array() && !run.faults.empty()) {
    add_once(steps, "Run again without planted faults before you judge the product.");
  }
  switch (assessment.verdict) {
    case Verdict::ready:
      add_once(steps, "Go on: this run is " + assessment.scope + ".");
      break;
    case Verdict::conditional:
    case Verdict::not_ready:
      add_once(steps, "Then repeat this run; only exit code 0 opens the gate.");
      break;
  }
  return steps;
}

}  // namespace reports::view
