// The ways in which attention is computed, one table for all suites: the flags that choose each, what it serves, and
// the record that proves that it was taken. A new backend is a row here.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nsa/route.hpp"

namespace suites {

// A backend and, where it is given, the way inside it ("masked").
struct Part {
  nsa::Backend backend = nsa::Backend::sdpa;
  std::optional<std::string> variant = {};  // none: any
  [[nodiscard]] bool holds(const nsa::Choice& choice) const;
};
[[nodiscard]] std::string to_string(const Part& part);  // "sdpa/masked", "cuda"

struct Way {
  // "reference", "sdpa", "sdpa_masked", "sdpa_packed", "flash", "flash_dense", "flash_varlen", "flash_masked", "cuda"
  std::string name;
  // Chooses the backend: every flag that does is set, and none of the others is touched.
  void (*set)(nsa::EffectiveFlags& flags) = nullptr;
  bool needs_cuda = false;
  // As a way of single functions (`ops` is empty where it is one of a whole model only): those that it computes
  // otherwise than plain sdpa does, in which dtypes, and whether with gradients.
  std::vector<nsa::Op> ops = {};
  std::vector<at::ScalarType> dtypes = {};
  bool gradients = true;

  // Flags of its own, never those of the process's environment; or others, with this way's backend.
  [[nodiscard]] nsa::EffectiveFlags flags(nsa::EffectiveFlags others = {}) const;
  // What computes `op` by it. `learned`: compression has its own weights, which is sdpa's by every way but `reference`.
  [[nodiscard]] Part part(nsa::Op op, bool learned = false) const;
};

[[nodiscard]] const std::vector<Way>& ways();
[[nodiscard]] const Way& way_named(const std::string& name);  // throws std::out_of_range

// Whether a pass with gradients through a model, whose record this is, went that way: it shows in the functions that
// only this way computes so. Attention that goes in one goes part by part where somebody has replaced a part.
[[nodiscard]] bool took(std::span<const nsa::Taken> record, const Way& way);

}  // namespace suites
