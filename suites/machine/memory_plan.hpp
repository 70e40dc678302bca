// Does the planned training step fit? Predicted bytes against free memory, and the largest batch and length that fit.
//
// The prediction is the law a + B*(b*S + c*S^2) that was fitted to this model on this GPU (probes/memory_law), where
// there is one. Else it is a lower count of what must be held: weights, gradients, optimizer state and the activations
// that autograd keeps. A lower count can prove that a step does not fit, never that it does; what is told says which of
// the two it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"
#include "suites/machine/inspection.hpp"

namespace suites::machine {

struct StepBytes {
  double weights = 0, gradients = 0, optimizer = 0;  // parameters; their gradients; moments and fp32 copies
  double activations = 0;                            // kept for the backward pass
  // Gradients come as activations go, but with accumulation they are there from the second batch on.
  double total = 0;
};
// The lower count for B sequences of S tokens. `cuda`: routes differ (nsa/route.hpp).
struct PlannedStep {
  nsa::Config config;
  nsa::EffectiveFlags flags;
  bool cuda = false;
};
[[nodiscard]] StepBytes lower_count(const PlannedStep& step, std::int64_t S, std::int64_t B);

// Whether the step's selected branch goes by mask: because the flags ask for it, or because gathering would hold too
// much (nsa/route.hpp). A law that was fitted to one way says nothing about the other.
[[nodiscard]] bool selects_by_mask(const PlannedStep& step, std::int64_t S, std::int64_t B);

// What the checkpoints of a run take on disk: those that are kept and the one that is being written; weights and
// optimizer state each.
[[nodiscard]] std::uintmax_t checkpoint_bytes(const nsa::Config& config);

struct DeviceMemory {
  std::string device;  // "NVIDIA H200", "cpu"
  double free_bytes = 0, total_bytes = 0;
  bool expandable_segments = false;  // of torch's allocator; on the CPU it means nothing
};
// A law that was fitted to this step on this device (preflight/memory.cpp finds it).
struct FittedLaw {
  std::function<double(double S, double B)> bytes;
  double longest_S = 0;  // measured up to here
  std::string origin;
};
[[nodiscard]] Inspection judge_memory(const PlannedStep& step, const DeviceMemory& memory,
                                      const std::optional<FittedLaw>& law);

}  // namespace suites::machine
