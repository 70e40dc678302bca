#include "nsa/train/divergence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/statistics.hpp"

namespace nsa::train {

namespace {

constexpr double kNormDeviations = 8, kNormFactor = 3;  // out of its range: above both
constexpr std::size_t kFewest = 16;                     // figures that make a range

struct Range {
  double middle = 0, sigma = 0;  // of a normal distribution with this median and these absolute deviations
};

// By upper medians, as in the states that checkpoints have: a resumed run is judged by one rule.
Range range_of(const std::deque<double>& values) {
  const double middle = base::upper_median(std::vector(values.begin(), values.end()));
  std::vector<double> deviations;
  deviations.reserve(values.size());
  for (const double value : values) deviations.push_back(std::abs(value - middle));
  return {middle, 1.4826 * base::upper_median(deviations)};
}

void keep(std::deque<double>& values, double value) {
  values.push_back(value);
  if (values.size() > DivergenceGuard::kWindow) values.pop_front();
}

template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

template <typename T>
std::optional<T> optional_at(const nlohmann::json& state, const char* key) {
  return state.at(key).is_null() ? std::nullopt : std::optional<T>(state.at(key).get<T>());
}

}  // namespace

DivergenceGuard::DivergenceGuard(std::int64_t vocab) : uniform_(std::log(static_cast<double>(vocab))) {}

void DivergenceGuard::step(std::int64_t step, double loss, double grad_norm) {
  if (!first_) first_ = loss;
  std::erase_if(above_, [&](std::int64_t one) { return one + static_cast<std::int64_t>(kLast) <= step; });
  if (!(loss <= bound())) {
    above_.push_back(step);
  } else {
    keep(losses_, loss);
    if (losses_.size() == kWindow) {
      const Range range = range_of(losses_);
      if (!best_ || range.middle < *best_) {
        best_ = range.middle;
        best_sigma_ = range.sigma;
      }
    }
  }
  const Range usual = norms_.empty() ? Range{} : range_of(norms_);
  const bool out = norms_.size() >= kFewest && grad_norm > kNormFactor * usual.middle &&
                   grad_norm > usual.middle + kNormDeviations * usual.sigma;
  keep(norms_, grad_norm);  // a norm that stays elsewhere becomes the usual one
  if (out && !norm_since_) norm_since_ = step;
  if (!out && above_.empty()) norm_since_.reset();  // while the loss is above its bound, what came first stays known
}

double DivergenceGuard::ceiling() const { return std::max(uniform_, first_.value_or(uniform_)) + kMargin; }

std::optional<double> DivergenceGuard::relapse() const {
  if (!best_ || !best_sigma_ || *best_ >= uniform_) return std::nullopt;
  return *best_ + std::max(kDeviations * *best_sigma_, kLost * (uniform_ - *best_));
}

double DivergenceGuard::bound() const { return std::min(ceiling(), relapse().value_or(ceiling())); }

std::optional<std::string> DivergenceGuard::alarm() const {
  if (above_.size() < kAbove) return std::nullopt;
  return fmt::format(
      "the loss is above {:.4g} in {} of the last {} steps, since step {}{}", bound(), above_.size(), kLast,
      above_.front(),
      norm_since_ ? fmt::format("; the gradient's norm is out of its range since step {}", *norm_since_) : "");
}

nlohmann::json DivergenceGuard::evidence() const {
  return {{"bound", bound()},
          {"ceiling", ceiling()},
          {"relapse", or_null(relapse())},
          {"best_median", or_null(best_)},
          {"steps_above", above_.size()},
          {"since_step", above_.empty() ? nlohmann::json() : nlohmann::json(above_.front())},
          {"grad_norm_since_step", or_null(norm_since_)},
          {"grad_norm_median", norms_.empty() ? nlohmann::json() : nlohmann::json(range_of(norms_).middle)}};
}

nlohmann::json DivergenceGuard::state() const {
  return {{"first", or_null(first_)},
          {"losses", losses_},
          {"norms", norms_},
          {"best", or_null(best_)},
          {"best_sigma", or_null(best_sigma_)},
          {"above", above_},
          {"norm_since", or_null(norm_since_)}};
}

void DivergenceGuard::restore(const nlohmann::json& state) {
  if (state.is_null()) {
    const double uniform = uniform_;
    *this = DivergenceGuard(1);
    uniform_ = uniform;
    return;
  }
  first_ = optional_at<double>(state, "first");
  losses_ = state.at("losses").get<std::deque<double>>();
  norms_ = state.at("norms").get<std::deque<double>>();
  best_ = optional_at<double>(state, "best");
  best_sigma_ = optional_at<double>(state, "best_sigma");
  above_ = state.at("above").get<std::deque<std::int64_t>>();
  norm_since_ = optional_at<std::int64_t>(state, "norm_since");
  if (above_.size() >= kAbove) above_.clear();
}

}  // namespace nsa::train
