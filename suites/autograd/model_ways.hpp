// The ways through a whole model, each a set of flags of its own (never those of the process's environment), so that
// what holds for one training step is shown for every backend and under every flag that changes the graph.
#pragma once

#include <string>
#include <vector>

#include "nsa/flags.hpp"
#include "suites/subject.hpp"
#include "suites/ways.hpp"

namespace suites::autograd_cases {

struct ModelWay {
  // As in suites/ways.hpp, but "masked" for "sdpa_masked"; "strict", "recompute", "forced_cmp", "uniform_gate", ...
  std::string name;
  nsa::EffectiveFlags flags;
  bool recompute = false;
  bool needs_cuda = false;
  const Way* backend = nullptr;  // that the dispatcher's record must show after a pass; null: any
};
// Those that compute the same function: a step by each of them must be sound.
[[nodiscard]] const std::vector<ModelWay>& model_ways();
// Those under which parts of the model are silent on purpose.
[[nodiscard]] const std::vector<ModelWay>& silencing_ways();
[[nodiscard]] const ModelWay& model_way(const std::string& name);  // of both; throws std::out_of_range

// Throws std::logic_error unless the passes of `instance` went the way that they claim.
void require_route(const Instance& instance, const ModelWay& way);

// Parameters whose redrawing cannot move the output under these flags while the choice of blocks is held.
[[nodiscard]] bool output_is_cut(const std::string& parameter, const nsa::EffectiveFlags& flags);
// Parameters that get no gradient under these flags.
[[nodiscard]] bool gradient_is_cut(const std::string& parameter, const nsa::EffectiveFlags& flags);

}  // namespace suites::autograd_cases
