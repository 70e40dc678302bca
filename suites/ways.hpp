// The ways in which attention is computed, one table for all suites: the flags that choose each, what computes each
// function by it, what it serves, and where it shows. A new backend is a row of it; CONTRIBUTING.md has the rest.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/settings.hpp"
#include "nsa/route.hpp"

namespace suites {

// A backend and, where it is given, the way inside it (masked).
struct Part {
  nsa::Backend backend = nsa::Backend::sdpa;
  std::optional<nsa::RouteVariant> variant = {};  // none: any
  [[nodiscard]] bool holds(const nsa::Choice& choice) const;
};
[[nodiscard]] std::string to_string(const Part& part);  // "sdpa/masked", "cuda"

struct Way {
  std::string name;  // "cuda", "sdpa_masked": in the names of cases
  // Sets the flags that ask for this way, or takes them back; no other is touched. Null: it is what is left when
  // nothing is asked for.
  void (*ask)(nsa::EffectiveFlags& flags, bool on) = nullptr;
  std::map<nsa::Op, Part> parts;  // what computes each function
  // The functions in which it shows that a pass with gradients went this way: one of them ran as `parts` says.
  // (Attention that goes in one goes part by part where somebody has replaced a part.)
  std::vector<nsa::Op> shown_by;
  bool needs_cuda = false;
  // As a way of single functions (`ops` is empty where it is one of a whole model only): those that it computes
  // otherwise than plain sdpa does, in which dtypes, and whether with gradients.
  std::vector<nsa::Op> ops = {};
  std::vector<at::ScalarType> dtypes = {};
  bool gradients = true;
  bool packed = true;  // whether it serves a packed batch
  // The fewest tokens of a call that goes this way; null: one.
  std::int64_t (*fewest_tokens)(const nsa::Geometry& geometry) = nullptr;
  // Whether tokens of two documents may share a tile of its attention: there a NaN of one reaches the other's rows, as
  // a weight of 0 times a NaN is a NaN (nsa/kernels/README.md).
  bool shares_tiles = false;
  bool makes_masks = true;  // whether it holds masks, whose bytes grow with the pairs of tokens
  // As a way of a whole model: what people call it ("our own kernels"), and what goes through it.
  enum class OfModel { nothing, measured, checked };  // rates and memory; these and every check of a model
  OfModel of_model = OfModel::nothing;
  std::string title = {};
  // Whether flags ask for this way's backend, whatever they say beside it; null where `sdpa` is what is left.
  bool (*asked_by)(const nsa::EffectiveFlags& flags) = nullptr;

  // Flags of its own, never those of the process's environment; or others, by which this way is asked for and no other.
  [[nodiscard]] nsa::EffectiveFlags flags(nsa::EffectiveFlags others = {}) const;
  // Why a model whose calls are like this one does not go this way, in the feature table's words; "" when it does.
  [[nodiscard]] std::string refusal(const nsa::Call& call) const;
};

[[nodiscard]] const std::vector<Way>& ways();
// Of ways() those of whole models: what is checked, or all that is measured.
[[nodiscard]] std::vector<const Way*> model_ways(Way::OfModel at_least);
// The way of an implementation that is not ours (judged.hpp): by plain sdpa, but for the functions that it claims.
inline constexpr const char* kImplementation = "implementation";
// Those that a run with these settings judges: ways(), or kImplementation alone.
[[nodiscard]] std::vector<Way> ways_of(const harness::Settings& settings);
// The first of ways() whose backend the flags ask for, `sdpa` where there is none. On a CPU none that needs a GPU.
[[nodiscard]] const Way& asked_for(const nsa::EffectiveFlags& flags, bool cuda);
// Of ways(), or kImplementation. Throws std::out_of_range.
[[nodiscard]] const Way& way_named(const std::string& name);

// Whether the pass through a model whose record this is went that way (Way::shown_by).
[[nodiscard]] bool took(std::span<const nsa::Taken> record, const Way& way);

}  // namespace suites
