#include "suites/s_sweep/covering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

namespace suites::s_sweep_cases {

namespace {

constexpr std::size_t kOpen = static_cast<std::size_t>(-1);  // an axis without a value yet

enum class State : char { open, held, excluded, impossible };

// The state of every pair.
class Pairs {
 public:
  Pairs(const std::vector<Axis>& axes, const Covering::Allowed& allowed) {
    for (const Axis& axis : axes) {
      first_.push_back(values_);
      values_ += axis.values.size();
    }
    states_.assign(values_ * values_, State::open);
    each(axes, [&](const Pair& pair) {
      if (!allowed(pair)) (*this)[pair] = State::excluded;
    });
  }

  State& operator[](const Pair& p) { return states_[(first_[p.first] + p.a) * values_ + first_[p.second] + p.b]; }
  // Of two (axis, value) in any order.
  State of(std::size_t i, std::size_t a, std::size_t j, std::size_t b) {
    return i < j ? (*this)[{i, a, j, b}] : (*this)[{j, b, i, a}];
  }

  static void each(const std::vector<Axis>& axes, const std::function<void(const Pair&)>& visit) {
    for (std::size_t i = 0; i < axes.size(); ++i) {
      for (std::size_t j = i + 1; j < axes.size(); ++j) {
        for (std::size_t a = 0; a < axes[i].values.size(); ++a) {
          for (std::size_t b = 0; b < axes[j].values.size(); ++b) visit({i, a, j, b});
        }
      }
    }
  }

 private:
  std::vector<std::size_t> first_;
  std::size_t values_ = 0;
  std::vector<State> states_;
};

// Fills the open axes of a point one by one, each with the value that holds most open pairs with those before; takes
// another where that leads nowhere.
class Filler {
 public:
  Filler(const std::vector<Axis>& axes, Pairs& pairs, std::size_t turn) : axes_(axes), pairs_(pairs), turn_(turn) {}

  bool fill(Point& point) {
    const auto open = std::find(point.begin(), point.end(), kOpen);
    if (open == point.end()) return true;
    const auto axis = static_cast<std::size_t>(open - point.begin());
    for (const std::size_t value : candidates(point, axis)) {
      point[axis] = value;
      if (fill(point)) return true;
    }
    point[axis] = kOpen;
    return false;
  }

 private:
  std::vector<std::size_t> candidates(const Point& point, std::size_t axis) {
    const std::size_t n = axes_[axis].values.size();
    std::vector<std::pair<std::size_t, std::size_t>> ranked;  // gain, value
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t value = (k + turn_) % n;  // ties in turn, so that no value is always preferred
      if (const auto gain = gain_of(point, axis, value)) ranked.emplace_back(*gain, value);
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
    std::vector<std::size_t> values;
    for (const auto& [gain, value] : ranked) values.push_back(value);
    return values;
  }

  // Open pairs that the value would hold; nothing when it may not stand there.
  std::optional<std::size_t> gain_of(const Point& point, std::size_t axis, std::size_t value) {
    std::size_t gain = 0;
    for (std::size_t other = 0; other < point.size(); ++other) {
      if (other == axis || point[other] == kOpen) continue;
      const State state = pairs_.of(axis, value, other, point[other]);
      if (state == State::excluded || state == State::impossible) return std::nullopt;
      if (state == State::open) ++gain;
    }
    return gain;
  }

  const std::vector<Axis>& axes_;
  Pairs& pairs_;
  std::size_t turn_;
};

bool holds(const Point& point, const Shared& values) {
  return std::all_of(values.begin(), values.end(), [&](const auto& v) { return point[v.first] == v.second; });
}

bool separates(const Shared& values, const std::vector<Point>& failing, const std::vector<Point>& passing) {
  const auto has = [&](const Point& point) { return holds(point, values); };
  return std::all_of(failing.begin(), failing.end(), has) && std::none_of(passing.begin(), passing.end(), has);
}

}  // namespace

Covering::Covering(std::vector<Axis> given, const Allowed& allowed) : axes(std::move(given)) {
  for (const Axis& axis : axes) {
    if (axis.values.empty())
      throw std::invalid_argument(fmt::format("covering design: axis {} has no value", axis.name));
  }
  Pairs states(axes, allowed);
  Pairs::each(axes, [&](const Pair& pair) {
    if (states[pair] == State::excluded) ++excluded;
    if (states[pair] != State::open) return;
    Point point(axes.size(), kOpen);
    point[pair.first] = pair.a;
    point[pair.second] = pair.b;
    if (!Filler(axes, states, points.size()).fill(point)) {
      states[pair] = State::impossible;
      impossible.push_back(pair);
      return;
    }
    for (std::size_t i = 0; i < point.size(); ++i) {
      for (std::size_t j = i + 1; j < point.size(); ++j) states[{i, point[i], j, point[j]}] = State::held;
    }
    points.push_back(std::move(point));
  });
  pairs = held(points);
}

std::string Covering::name(const Point& point) const {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? "" : " ", axes[i].name, axes[i].values[point[i]]);
  }
  return text;
}

reports::Json Covering::json(const Point& point) const {
  reports::Json json = reports::Json::object();
  for (std::size_t i = 0; i < axes.size(); ++i) json[axes[i].name] = axes[i].values[point[i]];
  return json;
}

std::size_t Covering::held(const std::vector<Point>& some_points) const {
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
