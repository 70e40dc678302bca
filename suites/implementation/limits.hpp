// Which sizes an implementation takes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nsa/config.hpp"
#include "suites/implementation/fields.hpp"

namespace suites::implementation {

// The sizes of a call, by the names that limits have for them.
struct Sizes {
  std::int64_t B = 1, S = 1, Hq = 1, G = 1, Dk = 1, Dv = 1;
  nsa::Geometry geometry;
  // heads_per_group, d_k, d_v, l, d, l_sel, n_sel, w, tokens
  [[nodiscard]] std::map<std::string, std::int64_t> by_name() const;
};

// Of one size: a number or several of which it must be one, or bounds.
struct Limit {
  std::vector<std::int64_t> allowed;  // empty: bounds only
  std::optional<std::int64_t> min, max, multiple_of;
};
[[nodiscard]] std::string to_string(const Limit& limit);  // "16 or 32", "at least 16, at most 256, a multiple of 8"

struct Limits {
  std::map<std::string, Limit> of;              // by name
  std::vector<std::vector<std::string>> equal;  // names of sizes that must be the same

  // One reason for each limit that `sizes` break: "d_k is 48; allowed: 64 or 128".
  [[nodiscard]] std::vector<std::string> broken_by(const Sizes& sizes) const;
  // Sizes near these that no limit forbids, where there are some: each becomes the nearest that is allowed, those that
  // must be equal become the first of them that has a limit, and heads follow from G. `tokens` is left alone.
  [[nodiscard]] Sizes fitted(Sizes sizes) const;
};
// Throws ImplementationError "protocol" for a name that no size has, or a limit of no known form.
[[nodiscard]] Limits limits_from(const Fields& fields);

}  // namespace suites::implementation
