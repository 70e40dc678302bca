#include "suites/probes/lengths.hpp"

#include <algorithm>
#include <numeric>
#include <set>

namespace suites {

std::vector<std::int64_t> boundary_lengths(const nsa::Geometry& g, const std::vector<std::int64_t>& others) {
  const std::int64_t selected = g.n_sel * g.l_sel;
  std::set<std::int64_t> lengths = {1,           2,       g.l - 1, g.l,     g.l + 1, g.l_sel - 1,  g.l_sel,
                                    g.l_sel + 1, g.w - 1, g.w,     g.w + 1, 2 * g.w, selected - 1, selected + 1};
  for (const std::int64_t S : others) lengths.erase(S);
  lengths.erase(lengths.begin(), lengths.lower_bound(1));  // l = 1 gives 0
  return {lengths.begin(), lengths.end()};
}

std::vector<std::int64_t> standard_lengths(const nsa::Geometry& g) {
  const std::vector<std::int64_t> edges = boundary_lengths(g, {});
  std::set<std::int64_t> lengths(edges.begin(), edges.end());
  for (const std::int64_t size : {g.d, std::int64_t{16}, std::int64_t{32}, std::int64_t{64}, std::int64_t{128},
                                  std::int64_t{256}, std::int64_t{1024}}) {
    lengths.insert({size - 1, size, size + 1});
    if (size <= 256) lengths.insert(size + size / 2);
  }
  lengths.erase(lengths.begin(), lengths.lower_bound(1));  // d = 1 gives 0
  return {lengths.begin(), lengths.end()};
}

std::vector<std::pair<std::string, std::int64_t>> block_sizes(const nsa::Geometry& g) {
  return {{"l", g.l}, {"d", g.d}, {"l'", g.l_sel}, {"w", g.w}, {"n*l'", g.n_sel * g.l_sel}};
}

std::optional<Congruence> separating_congruence(const std::vector<std::int64_t>& good,
                                                const std::vector<std::int64_t>& bad) {
  if (bad.size() < 2) return std::nullopt;
  std::int64_t common = 0;  // every modulus by which the bad ones agree divides their differences
  for (const std::int64_t S : bad) common = std::gcd(common, S - bad.front());
  for (std::int64_t modulus = 2; modulus <= common; ++modulus) {
    if (common % modulus != 0) continue;
    const std::int64_t remainder = bad.front() % modulus;
    const auto agrees = [&](std::int64_t S) { return S % modulus == remainder; };
    if (std::none_of(good.begin(), good.end(), agrees)) return Congruence{modulus, remainder};
  }
  return std::nullopt;
}

}  // namespace suites
