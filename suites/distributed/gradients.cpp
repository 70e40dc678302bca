#include "suites/distributed/gradients.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "suites/codes.hpp"

namespace suites::distributed_ranks {

namespace {

constexpr std::string_view kGradient = "gradient/";
constexpr double kEpsilon = 1e-8;  // AdamW's

double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

double unit_roundoff(nsa::Precision precision) {
  switch (precision) {
    case nsa::Precision::fp64:
      return std::numeric_limits<double>::epsilon() / 2;
    case nsa::Precision::fp32:
      return std::numeric_limits<float>::epsilon() / 2;
    case nsa::Precision::bf16:
      return 1.0 / 256;
  }
  return std::nan("");
}

// The sum over the ranks of the norms of their own shares, of each parameter's gradient in the first step.
std::map<std::string, double> sizes_of_shares(const Records& records) {
  std::map<std::string, double> sizes;
  for (const RankRecord& record : records)
    if (!record.steps.empty())
      for (const ParameterSeen& parameter : record.steps.front().parameters)
        sizes[parameter.name] += parameter.own_norm;
  return sizes;
}

Tensors gradients_in(const Tensors& tensors) {
  Tensors gradients;
  for (const auto& [name, value] : tensors)
    if (name.starts_with(kGradient)) gradients[name.substr(kGradient.size())] = value.to(at::kDouble);
  return gradients;
}

// Least squares over all elements: seen = factor * wanted.
double common_factor(const Tensors& seen, const Tensors& wanted) {
  double product = 0, square = 0;
  for (const auto& [name, right] : wanted) {
    const auto found = seen.find(name);
    if (found == seen.end() || found->second.sizes() != right.sizes()) return std::nan("");
    product += (found->second * right).sum().item<double>();
    square += right.square().sum().item<double>();
  }
  return product / square;
}

std::string in_words(double factor, int size) {
  const auto is = [factor](double value) { return std::abs(factor / value - 1) <= 1e-3; };
  if (is(size)) return "the loss were multiplied by the number of ranks";
  if (is(1.0 / size)) return "the gradients were divided by the number of ranks once too often";
  return fmt::format("all gradients were multiplied by {:.6g}", factor);
}

// The worst of all gradients, `factor` taken out of them.
Measured worst_of(const Tensors& seen, const Tensors& wanted, const std::map<std::string, double>& sizes, double tol,
                  double factor) {
  Measured measured;
  for (const auto& [name, right] : wanted) {
    const auto found = seen.find(name);
    const auto size = sizes.find(name);
    double error = std::numeric_limits<double>::infinity();
    if (found != seen.end() && found->second.sizes() == right.sizes()) error = norm_of(found->second / factor - right);
    const double allowed = size == sizes.end() ? 0 : tol * size->second;
    const double ratio = error == 0 ? 0 : error / allowed;  // nothing is allowed where nothing arrived
    if (ratio <= measured.worst) continue;                  // NaN is the worst
    measured = {ratio, error / norm_of(right), name};
    if (std::isnan(ratio)) break;
  }
  return measured;
}

}  // namespace

double tolerance(const nsa::Config& config, std::int64_t rows) {
  const double terms = static_cast<double>(std::max(rows * config.train.seq_len, config.model.dim));
  const double stages = 2.0 * (10.0 * static_cast<double>(config.model.n_layers) + 4);
  return unit_roundoff(config.train.precision) * terms * stages;
}

double tolerance_of_a_run(const nsa::Config& config, const StepSeen& first, std::int64_t elements, double tol) {
  double shares = 0;
  for (const ParameterSeen& parameter : first.parameters) shares = std::max(shares, parameter.own_norm);
  constexpr double kLaterGradients = 100;
  const double of_an_element = static_cast<double>(config.train.steps) * config.train.lr * tol * shares / 4;
  return tol + kLaterGradients * of_an_element * static_cast<double>(elements) / first.loss;
}

std::int64_t elements_of(const Tensors& tensors) {
  std::int64_t elements = 0;
  for (const auto& [name, value] : tensors)
    if (name.starts_with("before/")) elements += value.numel();
  return elements;
}

Disagreements gradients_agree(const Tensors& seen_tensors, const Tensors& wanted_tensors, const Records& records,
                              double tol, Measured& measured) {
  const Tensors seen = gradients_in(seen_tensors), wanted = gradients_in(wanted_tensors);
  if (wanted.empty() || seen.size() != wanted.size())
    return {{codes::kRankGradients,
             fmt::format("{} gradients were seen on {} ranks, {} on one", seen.size(), records.size(), wanted.size())}};
  const std::map<std::string, double> sizes = sizes_of_shares(records);
  measured = worst_of(seen, wanted, sizes, tol, 1);
  if (measured.worst <= 1) return {};
  Json evidence = {{"parameter", measured.parameter},
                   {"error_in_allowed", reports::number(measured.worst)},
                   {"relative_error", reports::number(measured.relative)}};
  const double factor = common_factor(seen, wanted);
  if (std::isfinite(factor) && worst_of(seen, wanted, sizes, tol, factor).worst <= 1) {
    evidence["as_if"] = in_words(factor, static_cast<int>(records.size()));
    evidence["factor"] = reports::number(factor);
  }
  return {{codes::kRankGradients,
           fmt::format("the gradient of {} differs by {:.2g} of its norm from one process's: {:.3g} times what sums in "
                       "another order explain{}",
                       measured.parameter, measured.relative, measured.worst,
                       evidence.contains("as_if") ? "; as if " + evidence["as_if"].get<std::string>() : ""),
           std::move(evidence)}};
}

Disagreements norm_of_the_sum(const Tensors& seen, const Records& records, double tol) {
  double square = 0, shares = 0;
  for (const auto& [name, gradient] : gradients_in(seen)) square += gradient.square().sum().item<double>();
  for (const auto& [name, size] : sizes_of_shares(records)) shares += size * size;
  const double right = std::sqrt(square), allowed = tol * std::sqrt(shares);
  for (const RankRecord& record : records) {
    const double told = record.steps.empty() ? std::nan("") : record.steps.front().norm;
    if (std::abs(told - right) <= allowed && right > 0) continue;
    double own = 0;
    if (!record.steps.empty())
      for (const ParameterSeen& parameter : record.steps.front().parameters)
        own += parameter.own_norm * parameter.own_norm;
    Json evidence = {{"ranks", Json::array({record.rank})},
                     {"norm", reports::number(told)},
                     {"wanted", reports::number(right)},
                     {"own_norm", reports::number(std::sqrt(own))}};
    const bool is_own = std::abs(told - std::sqrt(own)) <= allowed;
    if (is_own) evidence["as_if"] = "it were taken over the rank's own gradients, before they are summed";
    return {{codes::kRankNorm,
             fmt::format("rank {} tells a gradient norm of {:.9g}; that of the sum over all ranks is {:.9g}{}",
                         record.rank, told, right, is_own ? ", and that of its own share is what it tells" : ""),
             std::move(evidence)}};
  }
  return {};
}

Disagreements update_follows(const Tensors& seen, const nsa::TrainConfig& train, double lr, double tol,
                             Measured& measured) {
  const Tensors gradients = gradients_in(seen);
  double square = 0;
  for (const auto& [name, gradient] : gradients) square += gradient.square().sum().item<double>();
  const double norm = std::sqrt(square), clip = norm > train.grad_clip ? train.grad_clip / norm : 1;
  const double u = unit_roundoff(train.precision);
  std::size_t compared = 0;
  measured = {};
  for (const auto& [name, gradient] : gradients) {
    const auto before = seen.find("before/" + name), after = seen.find("after/" + name);
    if (before == seen.end() || after == seen.end()) continue;
    ++compared;
    const at::Tensor weight = before->second.to(at::kDouble), own = gradient * clip;
    const at::Tensor wanted = weight * (1 - lr * train.weight_decay) - lr * own / (own.abs() + kEpsilon);
    // Some roundings of a weight and of the step; and the clipping's factor, which rounding changes by `tol` at most.
    const at::Tensor allowed = 16 * u * (weight.abs() + lr) + lr * tol;
    const at::Tensor ratio = (after->second.to(at::kDouble) - wanted).abs() / allowed;
    const double worst = ratio.max().item<double>();
    if (worst <= measured.worst) continue;
    measured = {worst, worst * tol, name};
    if (std::isnan(worst)) break;
  }
  if (compared == 0 || compared != gradients.size())
    return {{codes::kRankUpdate, fmt::format("{} of {} updates were seen", compared, gradients.size())}};
  if (measured.worst <= 1) return {};
  return {{codes::kRankUpdate,
           fmt::format("the first update of {} is {:.3g} times what rounding explains away from AdamW's step with the "
                       "summed, clipped gradients",
                       measured.parameter, measured.worst),
           {{"parameter", measured.parameter}, {"error_in_allowed", reports::number(measured.worst)}}}};
}

Disagreements blocks_agree(const std::vector<Tensors>& seen, const Records& records, const Tensors& wanted,
                           const RankRecord& alone) {
  std::size_t compared = 0;
  const std::vector<std::string> rows = alone.steps.empty() ? std::vector<std::string>() : alone.steps.front().rows;
  for (const auto& [name, right] : wanted) {
    if (!name.starts_with("blocks/")) continue;
    for (std::size_t r = 0; r < records.size(); ++r) {
      const auto& own = records[r].steps.empty() ? rows : records[r].steps.front().rows;
      const auto found = seen[r].find(name);
      if (found == seen[r].end()) continue;
      for (std::size_t i = 0; i < own.size(); ++i) {
        const auto row = std::find(rows.begin(), rows.end(), own[i]);
        if (row == rows.end()) continue;  // rows_complete() tells it
        const at::Tensor mine = found->second[static_cast<std::int64_t>(i)], theirs = right[row - rows.begin()];
        ++compared;
        if (mine.sizes() == theirs.sizes() && at::equal(mine, theirs)) continue;
        return {{codes::kRankBlocks,
                 fmt::format("layer {}: rank {} chooses other blocks for row {} of its share than one process does",
                             name.substr(7), records[r].rank, i),
                 {{"ranks", Json::array({records[r].rank})}, {"layer", name.substr(7)}, {"row", i}}}};
      }
    }
  }
  if (compared == 0) return {{codes::kRankBlocks, "no choice of blocks was seen on any rank"}};
  return {};
}

}  // namespace suites::distributed_ranks
