#include "suites/s_sweep/design.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <tuple>

namespace suites::s_sweep_cases {

namespace {

constexpr std::uint64_t kSeed = 1;

covering::Pair pair_of(const Pair& p) {
  return {{static_cast<int>(p.first), static_cast<int>(p.a)}, {static_cast<int>(p.second), static_cast<int>(p.b)}};
}

void each_pair(const std::vector<Axis>& axes, const std::function<void(const Pair&)>& visit) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (std::size_t j = i + 1; j < axes.size(); ++j) {
      for (std::size_t a = 0; a < axes[i].values.size(); ++a) {
        for (std::size_t b = 0; b < axes[j].values.size(); ++b) visit({i, a, j, b});
      }
    }
  }
}

bool holds(const Point& point, const Shared& values) {
  return std::all_of(values.begin(), values.end(), [&](const auto& v) { return point[v.first] == v.second; });
}

bool separates(const Shared& values, const std::vector<Point>& failing, const std::vector<Point>& passing) {
  const auto has = [&](const Point& point) { return holds(point, values); };
  return std::all_of(failing.begin(), failing.end(), has) && std::none_of(passing.begin(), passing.end(), has);
}

}  // namespace

Design::Design(std::vector<Axis> given, const Allowed& allowed) : axes(std::move(given)) {
  for (const Axis& axis : axes) {
    if (axis.values.empty())
      throw std::invalid_argument(fmt::format("covering design: axis {} has no value", axis.name));
  }
  covering::Problem problem{axes, {}};
  std::set<std::array<std::size_t, 4>> refused;
  each_pair(axes, [&](const Pair& pair) {
    if (allowed(pair)) return;
    const covering::Pair both = pair_of(pair);
    problem.forbidden.push_back({{both.a, both.b}, ""});
    refused.insert({pair.first, pair.a, pair.second, pair.b});
  });
  const std::vector<covering::Row> rows = covering::pairwise(problem, kSeed, /*candidates=*/1);
  for (const covering::Row& row : rows) points.emplace_back(row.begin(), row.end());
  for (const covering::Pair& p : covering::coverage(problem, rows).illegal) {
    const Pair pair{static_cast<std::size_t>(p.a.factor), static_cast<std::size_t>(p.a.value),
                    static_cast<std::size_t>(p.b.factor), static_cast<std::size_t>(p.b.value)};
    if (!refused.contains({pair.first, pair.a, pair.second, pair.b})) impossible.push_back(pair);
  }
  excluded = refused.size();
  pairs = held(points);
}

std::string Design::name(const Point& point) const {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? "" : " ", axes[i].name, axes[i].values[point[i]]);
  }
  return text;
}

reports::Json Design::json(const Point& point) const {
  reports::Json json = reports::Json::object();
  for (std::size_t i = 0; i < axes.size(); ++i) json[axes[i].name] = axes[i].values[point[i]];
  return json;
}

std::size_t Design::held(const std::vector<Point>& some_points) const {
  std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> seen;
  for (const Point& point : some_points) {
    for (std::size_t i = 0; i < point.size(); ++i) {
      for (std::size_t j = i + 1; j < point.size(); ++j) seen.insert({i, point[i], j, point[j]});
    }
  }
  return seen.size();
}

std::vector<Shared> separating_values(const std::vector<Point>& failing, const std::vector<Point>& passing) {
  if (failing.empty() || passing.empty()) return {};
  const Point& one = failing.front();
  std::vector<Shared> found;
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (separates({{i, one[i]}}, failing, passing)) found.push_back({{i, one[i]}});
  }
  if (!found.empty()) return found;
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (std::size_t j = i + 1; j < one.size(); ++j) {
      Shared both = {{i, one[i]}, {j, one[j]}};
      if (separates(both, failing, passing)) found.push_back(std::move(both));
    }
  }
  return found;
}

}  // namespace suites::s_sweep_cases
