#include "suites/oracle/rms.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/compare.hpp"
#include "suites/oracle/extent.hpp"

namespace suites::oracle {

namespace {

// By row: [rows, values] -> [rows].
at::Tensor row_rms(const at::Tensor& t) { return t.square().mean(1).sqrt(); }
double scatter(double values) { return 1 + 4 / std::sqrt(values); }
double whole_rms(const at::Tensor& t) { return t.square().mean().sqrt().item<double>(); }

}  // namespace

RmsLaw rms_law(at::ScalarType storage) {
  RmsLaw law;
  // A rounding to nearest costs 0.29 epsilon of a value at most and 0.2 on the average.
  if (storage == at::kDouble) {
    law.floor = 1e-12;
  } else if (storage == at::kFloat) {
    law.floor = 0.25 * std::numeric_limits<float>::epsilon();
  } else {
    law.floor = 0.25 / 128;
  }
  return law;
}

bool RmsVerdict::good() const { return !missing && shapes_agree && rows_good && harness::at_most(error, bound); }

double RmsVerdict::ratio() const {
  const auto part = [](double off, double allowed) { return allowed > 0 ? off / allowed : off > 0 ? INFINITY : off; };
  const double whole = part(error, bound), in_row = part(row_error, row_bound);
  return in_row > whole ? in_row : whole;  // NaN of the whole is kept
}

harness::Json RmsVerdict::evidence() const {
  return {{"rms_error", reports::number(error)},
          {"rms_naive_error", reports::number(naive_error)},
          {"rms_oracle", reports::number(scale)},
          {"bound", reports::number(bound)},
          {"row", row},
          {"row_rms_error", reports::number(row_error)},
          {"row_bound", reports::number(row_bound)},
          {"where", where}};
}

RmsVerdict judge_rms(const Candidate& candidate, const RmsLaw& law, std::int64_t row_dims) {
  RmsVerdict verdict;
  verdict.missing = !candidate.value.defined();
  verdict.shapes_agree = !verdict.missing && candidate.value.sizes() == candidate.reference.sizes();
  if (!verdict.shapes_agree) verdict.where = verdict.missing ? "there is none" : "it has another shape";
  if (!verdict.shapes_agree || candidate.value.numel() == 0) return verdict;
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i < row_dims; ++i) rows *= candidate.value.size(i);
  const auto plain = [&](const at::Tensor& t) { return t.detach().to(at::kDouble).reshape({rows, -1}); };
  const at::Tensor wanted = plain(candidate.reference), off = plain(candidate.value) - wanted,
                   naive = plain(candidate.naive) - wanted;
  verdict.error = whole_rms(off);
  verdict.naive_error = whole_rms(naive);
  verdict.scale = whole_rms(wanted);
  const auto independent = [&](std::int64_t values) { return std::min(law.independent, static_cast<double>(values)); };
  verdict.bound = law.factor * scatter(independent(wanted.numel())) * (verdict.naive_error + law.floor * verdict.scale);

  const at::Tensor by_row = row_rms(off);
  // A row is held to the larger of its own naive error and the whole's: its own may be small by luck.
  const at::Tensor bounds =
      law.row_factor * scatter(independent(wanted.size(1))) *
      (row_rms(naive).clamp_min(verdict.naive_error) + law.floor * row_rms(wanted).clamp_min(verdict.scale));
  const at::Tensor bad = by_row.le(bounds).logical_not();  // NaN is bad
  verdict.rows_good = !bad.any().item<bool>();
  const at::Tensor excess = at::nan_to_num(by_row / bounds.clamp_min(std::numeric_limits<double>::min()), 1e300);
  verdict.row = (verdict.rows_good ? excess : bad.to(at::kByte)).argmax().item<std::int64_t>();
  verdict.row_error = by_row[verdict.row].item<double>();
  verdict.row_bound = bounds[verdict.row].item<double>();
  if (!verdict.good()) {
    constexpr double kFarthest = 2;  // single values scatter more than their RMS; times a bound that is thrice its size
    verdict.where = extent_of_error(candidate.value, candidate.reference, kFarthest * verdict.bound);
    if (verdict.where.empty()) verdict.where = "by little, in no one place";
  }
  return verdict;
}

}  // namespace suites::oracle
