#include "suites/probes/decision.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace suites::probes {

namespace {

std::string unusable_because(const Timed& timed, const char* which, const DecisionLimits& limits) {
  if (timed.seconds.size() < limits.least_samples)
    return fmt::format("{} has {} samples, at least {} are needed", which, timed.seconds.size(), limits.least_samples);
  if (!(timed.noise >= 0) || !std::isfinite(timed.noise))
    return fmt::format("the noise floor of {} is {}", which, timed.noise);
  for (const double s : timed.seconds) {
    if (!(s > 0) || !std::isfinite(s)) return fmt::format("{} holds a time of {} s", which, s);
  }
  const double scatter = interquartile_range(timed.seconds) / median(timed.seconds);
  if (!(scatter <= limits.largest_scatter))
    return fmt::format(
        "{} scatters: the middle half of {} samples spreads over {:.0f} % of the median (allowed {:.0f})", which,
        timed.seconds.size(), 100 * scatter, 100 * limits.largest_scatter);
  return "";
}

// Which side of the threshold a ratio is on: -1 faster, 1 slower, 0 within.
int side(double ratio, double threshold) {
  if (ratio > 1 + threshold) return 1;
  return ratio < 1 / (1 + threshold) ? -1 : 0;
}

}  // namespace

std::string_view to_string(Change change) {
  switch (change) {
    case Change::same:
      return "same";
    case Change::faster:
      return "faster";
    case Change::slower:
      return "slower";
    case Change::ambiguous:
      return "ambiguous";
    case Change::unusable:
      return "unusable";
  }
  return "?";
}

std::string_view words(Change change) {
  switch (change) {
    case Change::same:
      return "SAME";
    case Change::faster:
      return "FASTER";
    case Change::slower:
      return "SLOWER";
    case Change::ambiguous:
    case Change::unusable:
      return "CANNOT TELL";
  }
  return "?";
}

double noise_floor(std::span<const double> a, std::span<const double> again) {
  const Interval ratio = bootstrap_ratio(again, a);
  return std::max(ratio.high, 1 / ratio.low) - 1;
}

reports::Json Timed::to_json() const {
  reports::Json json = {{"seconds", reports::Json::array()}, {"noise", reports::number(noise)}};
  for (const double s : seconds) json["seconds"].push_back(reports::number(s));
  if (sm_mhz) json["sm_mhz"] = reports::number(*sm_mhz);
  return json;
}

Timed Timed::from_json(const reports::Json& json) {
  const auto real = [&](const char* key, const reports::Json& value) {
    if (const auto number = reports::as_number(value)) return *number;
    throw std::invalid_argument(fmt::format("'{}' holds {}, which is no number", key, reports::dump(value)));
  };
  if (!json.is_object() || !json.contains("seconds") || !json.contains("noise") || !json.at("seconds").is_array())
    throw std::invalid_argument("times need a list 'seconds' and a number 'noise'");
  Timed timed;
  for (const reports::Json& s : json.at("seconds")) timed.seconds.push_back(real("seconds", s));
  timed.noise = real("noise", json.at("noise"));
  if (json.contains("sm_mhz")) timed.sm_mhz = real("sm_mhz", json.at("sm_mhz"));
  return timed;
}

Decision decide(const Timed& before, const Timed& now, const DecisionLimits& limits) {
  Decision decision;
  decision.reason = unusable_because(before, "the baseline", limits);
  if (decision.reason.empty()) decision.reason = unusable_because(now, "this run", limits);
  if (!decision.reason.empty()) return decision;

  decision.ratio = median(now.seconds) / median(before.seconds);
  decision.interval = bootstrap_ratio(now.seconds, before.seconds);
  decision.threshold = std::max({limits.least_effect, before.noise, now.noise});
  decision.p = mann_whitney(now.seconds, before.seconds);
  if (before.sm_mhz && now.sm_mhz) decision.in_cycles = decision.ratio * *now.sm_mhz / *before.sm_mhz;

  const int low = side(decision.interval.low, decision.threshold),
            high = side(decision.interval.high, decision.threshold);
  if (low != high) {
    decision.change = Change::ambiguous;
    decision.reason = fmt::format("the ratio's interval {:.3f} to {:.3f} holds the threshold of {:.1f} %",
                                  decision.interval.low, decision.interval.high, 100 * decision.threshold);
  } else if (low == 0) {
    decision.change = Change::same;
  } else if (decision.in_cycles && side(*decision.in_cycles, decision.threshold) != low) {
    decision.change = Change::ambiguous;
    decision.reason = fmt::format("the time changed by {:.3f}, the clock cycles by {:.3f}: the clock moved",
                                  decision.ratio, *decision.in_cycles);
  } else {
    decision.change = low > 0 ? Change::slower : Change::faster;
  }
  return decision;
}

reports::Json Decision::to_json() const {
  reports::Json json = {{"decision", to_string(change)}, {"word", words(change)}};
  if (change != Change::unusable) {
    json["time_ratio"] = reports::number(ratio);
    json["interval"] = {reports::number(interval.low), reports::number(interval.high)};
    json["threshold_percent"] = reports::number(100 * threshold);
    json["p"] = reports::number(p);
    if (in_cycles) json["cycle_ratio"] = reports::number(*in_cycles);
  }
  if (!reason.empty()) json["reason"] = reason;
  return json;
}

}  // namespace suites::probes
