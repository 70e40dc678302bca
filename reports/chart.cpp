#include "reports/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "reports/html_text.hpp"
#include "reports/view.hpp"

namespace reports {

namespace {

constexpr double kWidth = 640, kHeight = 260, kLeft = 70, kRight = 170, kTop = 28, kBottom = 44;
constexpr std::size_t kColours = 6;

Json axis_json(const Axis& axis) { return {{"label", axis.label}, {"unit", axis.unit}, {"log", axis.log}}; }

Axis axis_of(const Json& json) {
  return {json.value("label", std::string()), json.value("unit", std::string()), json.value("log", false)};
}

std::vector<double> numbers_of(const Json& list) {
  std::vector<double> numbers;
  for (const Json& item : list) {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): throws for what is no number
    numbers.push_back(as_number(item).value());
  }
  return numbers;
}

std::string caption(const Axis& axis) { return axis.unit.empty() ? axis.label : axis.label + " [" + axis.unit + "]"; }

// 1200 -> "1.2k": axes have room for few digits.
std::string short_number(double v) {
  const double size = std::abs(v);
  if (size == 0) return "0";
  if (size >= 1e9) return fmt::format("{:.3g}G", v / 1e9);
  if (size >= 1e6) return fmt::format("{:.3g}M", v / 1e6);
  if (size >= 1e4) return fmt::format("{:.3g}k", v / 1e3);
  return fmt::format("{:.3g}", v);
}

// Maps values of one axis to pixels.
class Scale {
 public:
  Scale(const Chart& chart, bool x, double from, double to) : from_(from), to_(to) {
    for (const Series& series : chart.series) {
      for (const double v : x ? series.x : series.y) {
        if (!std::isfinite(v)) continue;
        low_ = std::min(low_, v);
        high_ = std::max(high_, v);
      }
    }
    if (!(low_ <= high_)) low_ = 0, high_ = 1;
    log_ = (x ? chart.x.log : chart.y.log) && low_ > 0;
    base_ = x ? 2 : 10;
    if (!log_ && !x && low_ > 0 && low_ < 0.5 * high_) low_ = 0;  // heights compare only from zero
    if (low_ == high_) {
      const double margin = log_ ? 0 : std::max(1.0, std::abs(low_)) * 0.5;
      low_ = log_ ? low_ / base_ : low_ - margin;
      high_ = log_ ? high_ * base_ : high_ + margin;
    }
  }

  [[nodiscard]] double at(double v) const {
    const double share = log_ ? std::log(v / low_) / std::log(high_ / low_) : (v - low_) / (high_ - low_);
    return from_ + share * (to_ - from_);
  }
  // Powers of the base, or steps of 1, 2 or 5 times a power of ten.
  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> found;
    if (log_) {
      const double logarithm = std::log(base_);
      const int first = static_cast<int>(std::ceil(std::log(low_) / logarithm - 1e-9));
      const int last = static_cast<int>(std::floor(std::log(high_) / logarithm + 1e-9));
      const int step = std::max(1, (last - first) / 8);
      for (int i = first; i <= last; i += step) found.push_back(std::pow(base_, i));
      if (found.size() >= 2) return found;
      return {low_, high_};
    }
    const double raw = (high_ - low_) / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
    const double step = power * (raw / power <= 1 ? 1 : raw / power <= 2 ? 2 : raw / power <= 5 ? 5 : 10);
    // Each by itself: a sum of steps does not hit zero, nor grow where a step is less than the number's last bit.
    const double first = std::ceil(low_ / step - 1e-9), last = high_ / step + 1e-9;
    for (int i = 0; first + i <= last; ++i) found.push_back((first + i) * step);
    return found;
  }

 private:
  double from_, to_, base_ = 10;
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
  bool log_ = false;
};

std::string text(double x, double y, const char* anchor, const std::string& words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", x, y, anchor, esc(words));
}

std::string axes(const Chart& chart, const Scale& x, const Scale& y) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  std::string out;
  for (const double v : y.ticks()) {
    out += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, right, y.at(v),
                       y.at(v));
    out += text(kLeft - 6, y.at(v) + 4, "end", short_number(v));
  }
  for (const double v : x.ticks()) out += text(x.at(v), bottom + 16, "middle", short_number(v));
  out += fmt::format("<path class=\"axis\" d=\"M{} {} V{} H{}\"/>", kLeft, kTop, bottom, right);
  out += text((kLeft + right) / 2, kHeight - 8, "middle", caption(chart.x));
  out += text(kLeft - 60, kTop - 12, "start", caption(chart.y));
  return out;
}

std::string line(const Series& series, std::size_t colour, const Scale& x, const Scale& y) {
  std::string path, points;
  bool pen_down = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const double px = x.at(series.x[i]);
    const std::string title =
        fmt::format("<title>{}: {:.6g}, {:.6g}</title>", esc(series.name), series.x[i], series.y[i]);
    if (!std::isfinite(series.y[i])) {
      points += fmt::format("<path class=\"bad\" d=\"M{:.1f} {:.1f} l8 8 m0 -8 l-8 8\">{}</path>", px - 4, kTop, title);
      pen_down = false;
      continue;
    }
    const double py = y.at(series.y[i]);
    path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", px, py);
    points += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\">{}</circle>", px, py,
                          series.x.size() > 60 ? 1.2 : 2.5, title);
    pen_down = true;
  }
  return fmt::format("<g class=\"c{}\"><path class=\"line\" d=\"{}\"/>{}</g>", colour, path, points);
}

}  // namespace

Json to_json(const Chart& chart) {
  Json series = Json::array();
  for (const Series& one : chart.series) {
    Json xs = Json::array(), ys = Json::array();
    for (const double v : one.x) xs.push_back(number(v));
    for (const double v : one.y) ys.push_back(number(v));
    series.push_back({{"name", one.name}, {"x", xs}, {"y", ys}});
  }
  return {{"chart", chart.title}, {"x", axis_json(chart.x)}, {"y", axis_json(chart.y)}, {"series", series}};
}

std::optional<Chart> chart_of(const Json& fact) try {
  if (!fact.is_object() || !fact.contains("chart") || !fact.contains("series")) return std::nullopt;
  Chart chart{fact.at("chart").get<std::string>(), axis_of(fact.at("x")), axis_of(fact.at("y")), {}};
  for (const Json& one : fact.at("series")) {
    Series series{one.at("name").get<std::string>(), numbers_of(one.at("x")), numbers_of(one.at("y"))};
    const bool placed = std::all_of(series.x.begin(), series.x.end(), [](double v) { return std::isfinite(v); });
    if (series.x.size() != series.y.size() || !placed) return std::nullopt;
    chart.series.push_back(std::move(series));
  }
  return chart;
} catch (const std::exception&) {  // a fact may be anything; what is no chart is shown as it is
  return std::nullopt;
}

std::string svg(const Chart& chart) {
  const Scale x(chart, true, kLeft + 8, kWidth - kRight - 8), y(chart, false, kHeight - kBottom - 6, kTop + 6);
  std::string out = fmt::format(
      "<svg class=\"chart\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\">",
      esc(chart.title), kWidth, kHeight, kWidth, kHeight);
  out += axes(chart, x, y);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const std::size_t colour = i % kColours;
    out += line(chart.series[i], colour, x, y);
    const double row = kTop + 8 + 18 * static_cast<double>(i);
    out += fmt::format("<g class=\"c{}\"><circle cx=\"{}\" cy=\"{}\" r=\"4\"/></g>", colour, kWidth - kRight + 14, row);
    out += text(kWidth - kRight + 24, row + 4, "start", chart.series[i].name);
  }
  return out + "</svg>";
}

std::optional<Table> table_of(const Json& fact) {
  if (!fact.is_array() || fact.empty()) return std::nullopt;
  Table table;
  for (const Json& row : fact) {
    if (!row.is_object() || row.empty()) return std::nullopt;
    for (const auto& [key, value] : row.items()) {
      if (value.is_structured() && view::value(value).size() > 60) return std::nullopt;
      if (std::find(table.head.begin(), table.head.end(), key) == table.head.end()) table.head.push_back(key);
    }
  }
  for (const Json& row : fact) {
    std::vector<std::string> cells;
    cells.reserve(table.head.size());
    for (const std::string& key : table.head) cells.push_back(row.contains(key) ? view::value(row.at(key)) : "");
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table table_of(const Chart& chart) {
  Table table;
  table.head.push_back(caption(chart.x));
  std::map<double, std::vector<std::string>> rows;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    table.head.push_back(fmt::format("{} {}", series.name, caption(chart.y)));
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      auto& cells = rows[series.x[i]];
      cells.resize(chart.series.size());
      cells[s] = view::value(number(series.y[i]));
    }
  }
  for (auto& [x, cells] : rows) {
    cells.insert(cells.begin(), view::value(number(x)));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table thinned(Table table, std::size_t limit) {
  if (table.rows.size() <= limit || limit < 2) return table;
  std::vector<std::vector<std::string>> kept;
  for (std::size_t i = 0; i < limit; ++i) kept.push_back(table.rows[i * (table.rows.size() - 1) / (limit - 1)]);
  table.rows = std::move(kept);
  return table;
}

}  // namespace reports
