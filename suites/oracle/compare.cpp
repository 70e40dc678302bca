#include "suites/oracle/compare.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "harness/compare.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/extent.hpp"

namespace suites::oracle {

namespace {

at::Tensor plain(const at::Tensor& t) { return t.detach().to(at::kDouble); }

double epsilon(at::ScalarType dtype) {
  if (dtype == at::kDouble) return std::numeric_limits<double>::epsilon();
  if (dtype == at::kFloat) return std::numeric_limits<float>::epsilon();
  return std::ldexp(1.0, -7);  // bf16, and for fp16 a generous one
}

// 0 finite, 1 NaN, 2 +inf, 3 -inf
at::Tensor kinds(const at::Tensor& t) {
  return t.isnan().to(at::kByte) + t.isposinf().to(at::kByte) * 2 + t.isneginf().to(at::kByte) * 3;
}

// Largest |value| among the finite ones; 0 when there is none.
double magnitude(const at::Tensor& t) {
  return t.numel() == 0 ? 0 : at::where(t.isfinite(), t.abs(), at::zeros({}, t.options())).max().item<double>();
}

at::Tensor finite_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor both = a.isfinite().logical_and_(b.isfinite());
  return at::where(both, (a - b).abs(), at::zeros({}, a.options()));
}

void point_at(Verdict& verdict, std::int64_t flat, const at::Tensor& value, const at::Tensor& wanted) {
  verdict.index = unravel(flat, value.sizes());
  verdict.value = value.flatten()[flat].item<double>();
  verdict.wanted = wanted.flatten()[flat].item<double>();
}

// Error and kinds of `value` against `wanted`, without a bound.
Verdict measure(const at::Tensor& value, const at::Tensor& wanted) {
  Verdict verdict;
  if (!value.defined() || !wanted.defined() || value.sizes() != wanted.sizes()) {
    verdict.shapes_agree = false;
    verdict.missing = !value.defined();
    verdict.error = std::numeric_limits<double>::quiet_NaN();
    return verdict;
  }
  if (value.numel() == 0) return verdict;
  const at::Tensor a = plain(value), b = plain(wanted);
  const at::Tensor differ = kinds(a).ne(kinds(b)).flatten();
  if (differ.any().item<bool>()) {
    verdict.masks_agree = false;
    point_at(verdict, differ.to(at::kByte).argmax().item<std::int64_t>(), a, b);
  }
  const at::Tensor error = finite_error(a, b).flatten();
  const std::int64_t worst = error.argmax().item<std::int64_t>();
  verdict.error = error[worst].item<double>();
  if (verdict.masks_agree) point_at(verdict, worst, a, b);
  return verdict;
}

}  // namespace

std::vector<std::int64_t> unravel(std::int64_t flat, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (std::size_t i = sizes.size(); i-- > 0;) {
    index[i] = flat % sizes[i];
    flat /= sizes[i];
  }
  return index;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bytes = [](const at::Tensor& t) { return t.detach().to(at::kCPU).contiguous().flatten().view(at::kByte); };
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(bytes(a), bytes(b));
}

Budget budget(at::ScalarType dtype, double factor) {
  Budget b;
  b.factor = factor;
  b.ceiling = dtype == at::kDouble ? 1e-9 : dtype == at::kFloat ? 1e-3 : 8e-2;
  return b;
}

bool Verdict::within_budget() const { return harness::at_most(error, bound); }
double Verdict::headroom() const { return bound > 0 ? error / bound : error > 0 ? INFINITY : error; }

harness::Json Verdict::evidence() const {
  return {{"index", index},
          {"value", reports::number(value)},
          {"reference", reports::number(wanted)},
          {"error", reports::number(error)},
          {"naive_error", reports::number(naive_error)},
          {"bound", reports::number(bound)},
          {"where", where}};
}

Verdict judge(const Candidate& candidate, const Budget& budget) {
  Verdict verdict = measure(candidate.value, candidate.reference);
  if (!verdict.shapes_agree) return verdict;
  const at::Tensor reference = plain(candidate.reference);
  const double scale = magnitude(reference);
  verdict.naive_error = magnitude(finite_error(plain(candidate.naive), reference));
  const double allowed =
      budget.factor * verdict.naive_error + budget.floor_ulps * epsilon(candidate.value.scalar_type()) * scale;
  verdict.bound = std::min(allowed, budget.ceiling * scale);
  if (!verdict.good()) verdict.where = extent_of_error(candidate.value, candidate.reference, verdict.bound);
  return verdict;
}

Verdict near(const at::Tensor& value, const at::Tensor& wanted, double ulps) {
  Verdict verdict = measure(value, wanted);
  if (verdict.shapes_agree) verdict.bound = ulps * epsilon(value.scalar_type()) * magnitude(plain(wanted));
  return verdict;
}

bool expect_good(harness::Context& context, const Verdict& verdict, const Subjects& what) {
  const std::string name = what.gradient ? "gradient of " + what.output : what.output;
  const harness::Json evidence = [&] {
    harness::Json json = verdict.evidence();
    json["op"] = what.op;
    json[what.gradient ? "gradient" : "output"] = what.output;
    return json;
  }();
  if (verdict.missing) {
    return context.expect(name + ": exists", false, fmt::format("{}: there is no {}", what.op, name),
                          what.gradient ? codes::kGraphBreak : codes::kOutputContract, evidence);
  }
  if (!context.expect(name + ": shape", verdict.shapes_agree,
                      fmt::format("{}: {} has another shape than the reference", what.op, name), codes::kOutputContract,
                      evidence)) {
    return false;
  }
  const bool masks = context.expect(name + ": places of NaN and infinity", verdict.masks_agree,
                                    fmt::format("{}: {} is {} at [{}] where the reference has {}", what.op, name,
                                                verdict.value, fmt::join(verdict.index, ", "), verdict.wanted),
                                    codes::kNonFiniteMask, evidence);
  if (verdict.bound > 0) context.metric(what.op + "." + name + " error/bound", verdict.headroom(), "");
  return context.expect_at_most(what.op + ": " + name + ": error", verdict.error, verdict.bound, "",
                                what.gradient ? codes::kGradientBudget : codes::kOutputBudget, evidence) &&
         masks;
}

}  // namespace suites::oracle
