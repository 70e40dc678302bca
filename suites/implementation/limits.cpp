#include "suites/implementation/limits.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

namespace suites::implementation {

namespace {

constexpr const char* kForms = "a whole number, a list of them, or an object of min, max and multiple_of";

void require_name(const Fields& fields, const std::string& name) {
  if (!Sizes{}.by_name().contains(name))
    fields.refuse(name, "heads_per_group, d_k, d_v, l, d, l_sel, n_sel, w, tokens or equal");
}

std::optional<std::int64_t> bound(const Fields& limit, const char* key) {
  return limit.has(key) ? std::optional(limit.integer(key)) : std::nullopt;
}

Limit limit_from(const Fields& fields, const char* name) {
  const Json& value = fields.at(name);
  if (const auto one = as_integer(value)) return {{*one}, {}, {}, {}};
  if (value.is_array() && !value.empty()) return {fields.integers(name), {}, {}, {}};
  if (!value.is_object()) fields.refuse(name, kForms);
  const Fields bounds = fields.object(name);
  const Limit limit{{}, bound(bounds, "min"), bound(bounds, "max"), bound(bounds, "multiple_of")};
  if (limit.multiple_of && *limit.multiple_of < 1) bounds.refuse("multiple_of", "1 or more");
  return limit;
}

std::vector<std::vector<std::string>> equals_from(const Fields& fields) {
  std::vector<std::vector<std::string>> all;
  if (!fields.at("equal").is_array()) fields.refuse("equal", "a list of lists of names");
  for (const Json& names : fields.at("equal")) {
    const Json row = {{"names", names}};
    all.push_back(Fields(row, "limits: equal").texts("names"));
    for (const std::string& name : all.back()) require_name(fields, name);
  }
  return all;
}

bool breaks(std::int64_t size, const Limit& limit) {
  const auto& allowed = limit.allowed;
  return (!allowed.empty() && std::find(allowed.begin(), allowed.end(), size) == allowed.end()) ||
         (limit.min && size < *limit.min) || (limit.max && size > *limit.max) ||
         (limit.multiple_of && size % *limit.multiple_of != 0);
}

std::int64_t nearest(std::int64_t size, const Limit& limit) {
  if (!limit.allowed.empty())
    return *std::min_element(limit.allowed.begin(), limit.allowed.end(),
                             [&](std::int64_t a, std::int64_t b) { return std::abs(a - size) < std::abs(b - size); });
  const std::int64_t step = limit.multiple_of.value_or(1);
  size = std::max(size, limit.min.value_or(size));
  size = (size + step - 1) / step * step;
  if (limit.max && size > *limit.max) size = *limit.max / step * step;
  return size;
}

}  // namespace

std::map<std::string, std::int64_t> Sizes::by_name() const {
  const nsa::Geometry& g = geometry;
  return {{"heads_per_group", Hq / G}, {"d_k", Dk},        {"d_v", Dv}, {"l", g.l},   {"d", g.d},
          {"l_sel", g.l_sel},          {"n_sel", g.n_sel}, {"w", g.w},  {"tokens", S}};
}

std::string to_string(const Limit& limit) {
  if (!limit.allowed.empty()) return fmt::format("{}", fmt::join(limit.allowed, " or "));
  std::vector<std::string> bounds;
  if (limit.min) bounds.push_back(fmt::format("at least {}", *limit.min));
  if (limit.max) bounds.push_back(fmt::format("at most {}", *limit.max));
  if (limit.multiple_of) bounds.push_back(fmt::format("a multiple of {}", *limit.multiple_of));
  return fmt::format("{}", fmt::join(bounds, ", "));
}

std::vector<std::string> Limits::broken_by(const Sizes& sizes) const {
  const auto size_of = sizes.by_name();
  std::vector<std::string> reasons;
  for (const auto& [name, limit] : of)
    if (breaks(size_of.at(name), limit))
      reasons.push_back(fmt::format("{} is {}; allowed: {}", name, size_of.at(name), to_string(limit)));
  for (const auto& names : equal) {
    std::vector<std::string> values;
    for (const std::string& name : names) values.push_back(fmt::format("{} = {}", name, size_of.at(name)));
    const auto same = [&](const std::string& name) { return size_of.at(name) == size_of.at(names.front()); };
    if (!std::all_of(names.begin(), names.end(), same))
      reasons.push_back(fmt::format("{}; allowed: equal ones", fmt::join(values, ", ")));
  }
  return reasons;
}

Sizes Limits::fitted(Sizes sizes) const {
  std::int64_t heads = sizes.Hq / sizes.G;
  const std::map<std::string, std::int64_t*> places = {
      {"heads_per_group", &heads},      {"d_k", &sizes.Dk},       {"d_v", &sizes.Dv},
      {"l", &sizes.geometry.l},         {"d", &sizes.geometry.d}, {"l_sel", &sizes.geometry.l_sel},
      {"n_sel", &sizes.geometry.n_sel}, {"w", &sizes.geometry.w}};
  for (const auto& [name, limit] : of)
    if (const auto place = places.find(name); place != places.end()) *place->second = nearest(*place->second, limit);
  for (const auto& names : equal) {
    const auto chief = std::find_if(names.begin(), names.end(), [&](const auto& name) { return of.contains(name); });
    const std::string& decides = chief == names.end() ? names.front() : *chief;
    for (const std::string& name : names)
      if (places.contains(name) && places.contains(decides)) *places.at(name) = *places.at(decides);
  }
  sizes.Hq = heads * sizes.G;
  return sizes;
}

Limits limits_from(const Fields& fields) {
  Limits limits;
  for (const auto& [name, value] : fields.json().items()) {
    if (name == "equal") {
      limits.equal = equals_from(fields);
      continue;
    }
    require_name(fields, name);
    limits.of[name] = limit_from(fields, name.c_str());
  }
  return limits;
}

}  // namespace suites::implementation
