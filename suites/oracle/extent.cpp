#include "suites/oracle/extent.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

namespace suites::oracle {

namespace {

using Indices = std::vector<std::int64_t>;

// The name of one index along a dimension; empty: nobody would look for it.
std::string_view axis_name(std::int64_t rank, std::int64_t dim) {
  constexpr std::string_view kFour[] = {"sequence", "row", "head", "component"},
                             kThree[] = {"sequence", "row", "channel"}, kTwo[] = {"row", "column"};
  const auto i = static_cast<std::size_t>(dim);
  return rank == 4 ? kFour[i] : rank == 3 ? kThree[i] : rank == 2 ? kTwo[i] : "value";
}

// By index along a dimension: [count, values].
at::Tensor slices(const at::Tensor& t, std::int64_t dim) { return t.transpose(0, dim).reshape({t.size(dim), -1}); }

Indices indices_of(const at::Tensor& mask) {
  const at::Tensor found = mask.nonzero().flatten().cpu();
  return {found.const_data_ptr<std::int64_t>(), found.const_data_ptr<std::int64_t>() + found.numel()};
}

// "in row 3 alone", "in rows from 64 on", "in every 2nd head from 1 on", "in 7 of 40 rows, of which 5 is the first"; ""
// where it is nearly everywhere, without an order.
std::string tell(std::string_view name, const Indices& bad, std::int64_t count) {
  const std::int64_t first = bad.front(), last = bad.back();
  const auto n = static_cast<std::int64_t>(bad.size());
  if (n == 1) return fmt::format("in {} {} alone", name, first);
  const std::int64_t step = bad[1] - first;
  const bool even =
      std::adjacent_find(bad.begin(), bad.end(), [&](auto a, auto b) { return b - a != step; }) == bad.end();
  if (even && step == 1 && last == count - 1) return fmt::format("in {}s from {} on", name, first);
  if (even && step == 1) return fmt::format("in {}s {} to {}", name, first, last);
  if (even && n > 2 && first - step < 0 && last + step >= count)
    return fmt::format("in every {}{} {} from {} on", step, step == 2 ? "nd" : step == 3 ? "rd" : "th", name, first);
  constexpr std::int64_t kListed = 6;
  constexpr double kNearlyAll = 0.7;
  if (static_cast<double>(n) >= kNearlyAll * static_cast<double>(count) && n > kListed) return "";
  if (n <= kListed) return fmt::format("in {}s {}", name, fmt::join(bad, ", "));
  return fmt::format("in {} of {} {}s, of which {} is the first", n, count, name, first);
}

// Another index along `dim` whose wanted slice is what slice `index` came out as.
std::optional<std::int64_t> taken_from(const at::Tensor& value, const at::Tensor& wanted, std::int64_t dim,
                                       std::int64_t index, double allowed) {
  const at::Tensor off = slices((wanted - value.select(dim, index).unsqueeze(dim)).abs(), dim).amax(1);
  const Indices same = indices_of(off.le(allowed));
  if (same.size() != 1 || same[0] == index) return std::nullopt;  // several: slices that are all alike say nothing
  return same[0];
}

// What the bad part is, beside what it should be: "0", "-1 times what it should be"; "" where it is neither.
std::string multiple(const at::Tensor& value, const at::Tensor& wanted) {
  constexpr double kAlike = 0.02;  // of the error that is to be explained
  const double own = wanted.square().sum().item<double>();
  if (!(own > 0)) return "";
  const double factor = (value * wanted).sum().item<double>() / own,
               left = (value - factor * wanted).square().sum().sqrt().item<double>(),
               off = (value - wanted).square().sum().sqrt().item<double>();
  if (!(left <= kAlike * off)) return "";  // NaN too
  return std::abs(factor) < 1e-6 ? "0" : fmt::format("{:.4g} times what it should be", factor);
}

}  // namespace

std::string extent_of_error(const at::Tensor& value, const at::Tensor& wanted, double allowed) {
  if (!value.defined() || !wanted.defined() || value.sizes() != wanted.sizes() || value.numel() == 0) return "";
  if (value.dim() < 1 || value.dim() > 4) return "";
  at::Tensor a = value.detach().to(at::kDouble), b = wanted.detach().to(a.device(), at::kDouble);
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  const at::Tensor bad = (a - b).abs().le(allowed).logical_or(same).logical_not();
  if (!bad.any().item<bool>()) return "";

  std::vector<std::string> parts;
  std::string is;
  const bool non_finite = a.isfinite().logical_not().logical_and(bad).any().item<bool>();
  at::Tensor of_bad_a = a, of_bad_b = b;
  for (std::int64_t dim = 0; dim < a.dim(); ++dim) {
    const std::int64_t count = a.size(dim);
    const Indices where = indices_of(slices(bad, dim).any(1));
    const std::string_view name = axis_name(a.dim(), dim);
    if (static_cast<std::int64_t>(where.size()) < count) parts.push_back(tell(name, where, count));
    if (!parts.empty() && parts.back().empty()) parts.pop_back();
    const at::Tensor chosen = at::tensor(where, at::kLong).to(a.device());
    of_bad_a = of_bad_a.index_select(dim, chosen);
    of_bad_b = of_bad_b.index_select(dim, chosen);
    // Whole slices alone are looked for, and not among the numbers of a head.
    const bool looked_for = count > 1 && (dim < 2 || (dim == 2 && a.dim() == 4));
    if (is.empty() && looked_for)
      if (const auto other = taken_from(a, b, dim, where[0], allowed))
        is = fmt::format("{} {} is what {} {} should be", name, where[0], name, *other);
  }
  if (is.empty()) {
    const std::string times = multiple(of_bad_a, of_bad_b);
    if (!times.empty()) is = "it is " + times;
  }
  std::string all = parts.empty() ? "everywhere" : fmt::format("{}", fmt::join(parts, ", "));
  if (non_finite) return all + "; it is not finite there";
  return is.empty() ? all : all + "; " + is;
}

}  // namespace suites::oracle
