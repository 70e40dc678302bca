#include "suites/probes/memory_law.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "base/yaml.hpp"
#include "suites/ways.hpp"

namespace suites::probes {

namespace {

// Least squares of y in the given powers of x; the coefficients in the order of `powers`.
std::vector<double> least_squares(const std::vector<double>& x, const std::vector<double>& y,
                                  const std::vector<int>& powers) {
  const auto rows = static_cast<std::int64_t>(x.size()), columns = static_cast<std::int64_t>(powers.size());
  at::Tensor matrix = at::empty({rows, columns}, at::kDouble), wanted = at::empty({rows, 1}, at::kDouble);
  auto m = matrix.accessor<double, 2>();
  auto w = wanted.accessor<double, 2>();
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto point = static_cast<std::size_t>(i);
    w[i][0] = y[point];
    for (std::int64_t j = 0; j < columns; ++j) m[i][j] = std::pow(x[point], powers[static_cast<std::size_t>(j)]);
  }
  const at::Tensor solution = std::get<0>(at::linalg_lstsq(matrix, wanted));
  std::vector<double> coefficients;
  for (std::int64_t j = 0; j < columns; ++j) coefficients.push_back(solution[j][0].item<double>());
  return coefficients;
}

double squared_error(const MemoryLaw& law, std::span<const MemoryPoint> points) {
  double sum = 0;
  for (const MemoryPoint& p : points) sum += std::pow(p.bytes - law.at(p.S), 2);
  return sum;
}

void check(std::span<const MemoryPoint> points) {
  std::set<double> distinct;
  for (const MemoryPoint& p : points) {
    if (!(p.S > 0) || !(p.bytes > 0) || !std::isfinite(p.S) || !std::isfinite(p.bytes))
      throw std::invalid_argument(
          fmt::format("memory law: a point of {} bytes at S = {}: both must be finite and "
                      "positive",
                      p.bytes, p.S));
    distinct.insert(p.S);
  }
  if (distinct.size() < 4)
    throw std::invalid_argument(
        fmt::format("memory law: {} distinct S; at least 4 are needed for 3 coefficients and one degree of freedom",
                    distinct.size()));
}

template <typename T>
T required(const YAML::Node& entry, const char* key, const std::string& where) {
  const YAML::Node value = entry[key];
  if (!value)
    throw std::runtime_error(fmt::format("{}:{}: the law lacks the key '{}'", where, entry.Mark().line + 1, key));
  try {
    return value.as<T>();
  } catch (const YAML::Exception&) {
    throw std::runtime_error(fmt::format("{}:{}: {} = '{}' is not a value of its type", where, value.Mark().line + 1,
                                         key, value.IsScalar() ? value.Scalar() : "..."));
  }
}

StoredLaw parse_law(const YAML::Node& entry, const std::string& where) {
  if (!entry.IsMap()) throw std::runtime_error(fmt::format("{}:{}: not a mapping", where, entry.Mark().line + 1));
  StoredLaw law;
  law.key = {required<std::string>(entry, "model", where), required<std::string>(entry, "backend", where),
             required<std::string>(entry, "precision", where), required<std::string>(entry, "gpu", where)};
  law.law = {required<double>(entry, "a_bytes", where), required<double>(entry, "b_bytes_per_token", where),
             required<double>(entry, "c_bytes_per_token2", where), required<double>(entry, "floor_bytes", where)};
  law.parameters = required<std::int64_t>(entry, "parameters", where);
  law.longest_S = required<double>(entry, "longest_S", where);
  law.origin = required<std::string>(entry, "origin", where);
  for (const double value : {law.law.a, law.law.b, law.law.c, law.law.floor}) {
    if (!(value >= 0) || !std::isfinite(value))
      throw std::runtime_error(fmt::format("{}:{}: a coefficient of {}: it must be finite and not negative", where,
                                           entry.Mark().line + 1, value));
  }
  return law;
}

}  // namespace

double MemoryLaw::at(double S, double B) const { return std::max(floor, a + B * (b * S + c * S * S)); }

double MemoryLaw::longest(double bytes, double B) const {
  const double room = (bytes - a) / B;
  if (!(room > 0) || bytes < floor) return 0;
  const double S = c > 0 ? (-b + std::sqrt(b * b + 4 * c * room)) / (2 * c) : room / b;
  return std::isfinite(S) ? std::floor(S) : 0;
}

double MemoryLaw::largest_batch(double bytes, double S) const {
  const double room = bytes - a, one = b * S + c * S * S;
  return room > 0 && one > 0 && bytes >= floor ? std::floor(room / one) : 0;
}

MemoryFit fit(std::span<const MemoryPoint> points) {
  check(points);
  double longest = 0, mean = 0;
  for (const MemoryPoint& p : points) {
    longest = std::max(longest, p.S);
    mean += p.bytes / static_cast<double>(points.size());
  }
  std::vector<double> x, y;  // scaled: powers of thousands of tokens would spoil the condition
  for (const MemoryPoint& p : points) {
    x.push_back(p.S / longest);
    y.push_back(p.bytes / mean);
  }
  // Noise can make the best coefficients negative, which means nothing: the best law without negative ones is that of
  // some subset of the terms, and there are seven.
  static const std::vector<std::vector<int>> kTerms = {{0, 1, 2}, {0, 1}, {0, 2}, {1, 2}, {0}, {1}, {2}};
  MemoryFit best;
  double least = std::numeric_limits<double>::infinity();
  for (const std::vector<int>& powers : kTerms) {
    const std::vector<double> coefficients = least_squares(x, y, powers);
    if (std::any_of(coefficients.begin(), coefficients.end(), [](double value) { return !(value >= 0); })) continue;
    MemoryLaw law;
    for (std::size_t i = 0; i < powers.size(); ++i) {
      (powers[i] == 0 ? law.a : powers[i] == 1 ? law.b : law.c) = coefficients[i] * mean / std::pow(longest, powers[i]);
    }
    if (const double error = squared_error(law, points); error < least) {
      least = error;
      best.law = law;
    }
  }
  double around_mean = 0;
  for (const MemoryPoint& p : points) {
    around_mean += std::pow(p.bytes - mean, 2);
    best.worst_percent = std::max(best.worst_percent, 100 * std::abs(best.law.at(p.S) - p.bytes) / p.bytes);
  }
  best.r2 = around_mean > 0 ? 1 - least / around_mean : 1;
  const double linear = best.law.b * longest, quadratic = best.law.c * longest * longest;
  best.exponent = linear + quadratic > 0 ? (linear + 2 * quadratic) / (linear + quadratic) : 0;
  best.points.assign(points.begin(), points.end());
  return best;
}

std::string memory_backend(const nsa::EffectiveFlags& flags, bool cuda, bool recompute) {
  std::string name = asked_for(flags, cuda).name;
  if (flags.sel_mask && !flags.force_parity) name += "_masked";
  return recompute ? name + "_recompute" : name;
}

std::vector<StoredLaw> load_memory_laws(const std::filesystem::path& folder) {
  std::vector<StoredLaw> laws;
  if (!std::filesystem::is_directory(folder)) return laws;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") files.insert(entry.path());
  }
  for (const std::filesystem::path& file : files) {
    try {
      const std::vector<YAML::Node> documents = base::load_yaml_file(file);
      const YAML::Node list = documents.empty() || !documents[0].IsMap() ? YAML::Node() : documents[0]["laws"];
      if (!list || !list.IsSequence()) throw std::runtime_error(file.string() + ": no list 'laws'");
      for (const YAML::Node& entry : list) laws.push_back(parse_law(entry, file.string()));
    } catch (const YAML::Exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", file.string(), error.mark.line + 1, error.msg));
    }
  }
  return laws;
}

std::optional<StoredLaw> find_memory_law(const std::vector<StoredLaw>& laws, const MemoryKey& key,
                                         std::int64_t parameters) {
  const auto found = std::find_if(laws.rbegin(), laws.rend(),
                                  [&](const StoredLaw& law) { return law.key == key && law.parameters == parameters; });
  return found == laws.rend() ? std::nullopt : std::optional(*found);
}

std::string to_yaml(const StoredLaw& law, const MemoryFit& fit) {
  std::string points;
  for (const MemoryPoint& p : fit.points) points += fmt::format("{}{:.0f}", points.empty() ? "" : ", ", p.S);
  return fmt::format(
      "  - model: {}\n"
      "    backend: {}\n"
      "    precision: {}\n"
      "    gpu: {}\n"
      "    parameters: {}\n"
      "    a_bytes: {:.6g}\n"
      "    b_bytes_per_token: {:.6g}\n"
      "    c_bytes_per_token2: {:.6g}\n"
      "    floor_bytes: {:.6g}\n"
      "    longest_S: {:.0f}\n"
      "    origin: '{}; S = {}; R2 {:.5f}, worst point {:.1f} % off'\n",
      law.key.model, law.key.backend, law.key.precision, law.key.gpu, law.parameters, law.law.a, law.law.b, law.law.c,
      law.law.floor, law.longest_S, law.origin, points, fit.r2, fit.worst_percent);
}

}  // namespace suites::probes
