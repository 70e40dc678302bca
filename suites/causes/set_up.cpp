#include "harness/codes.hpp"
#include "suites/causes/clues.hpp"
#include "suites/codes.hpp"

namespace suites::cause_table {

using namespace codes;
using harness::codes::kCrash;
using harness::codes::kException;
using harness::codes::kHang;
using harness::codes::kKilled;
using harness::codes::kVanished;

Rules set_up() {
  return {
      {.id = "stale-program",
       .what =
           "The program that ran is not what its sources say, so a fix may be missing in it; what else was found may "
           "be the old program's",
       .weight = 99,
       .clue = {{kBuildStale, kFixMissing}}},
      {.id = "implementation-died",
       .what = "The implementation's process does not survive a call: {said}",
       .weight = 98,
       .clue = {.codes = {kImplementationDied}, .evidence = {{"said", "*"}}}},
      {.id = "implementation-killed",
       .what = "The worker was ended while it waited for {waited_for}: by that implementation, or by somebody else",
       .weight = 98,
       .clue = {.codes = {kCrash, kKilled}, .evidence = {{"waited_for", "*"}}}},
      {.id = "implementation-writes",
       .what = "The implementation writes to tensors that it is given: {said}",
       .weight = 97,
       .clue = {.codes = {kImplementationWrites}, .evidence = {{"said", "*"}}},
       .explains = together({of_wrong_values(), of_wrong_gradients()})},
      {.id = "implementation-form",
       .what = "The implementation returns something of another form than it must: {said}",
       .weight = 96,
       .clue = {.codes = {kImplementationForm}, .evidence = {{"said", "*"}}}},
      {.id = "implementation-raised",
       .what = "The implementation raises an error in a call that it claims to serve: {said}",
       .weight = 95,
       .clue = {.codes = {kImplementationRaised}, .evidence = {{"said", "*"}}}},
      {.id = "implementation-bits",
       .what = "The implementation gives other bits for the same inputs in {op}, and claims to repeat itself",
       .weight = 85,
       .clue = {.codes = {kImplementationBits}, .evidence = {{"op", "*"}}},
       .explains = of_wrong_values()},
      {.id = "cu-seqlens",
       .what = "The offsets of packed documents (cu_seqlens) reach a kernel with values that they may not have: never "
               "filled, or overwritten",
       .weight = 97,
       .clue = {{kCuSeqlens}},
       .explains = {{.codes = {kException, kCrash, kPackedDiffers, kOutputBudget, kGradientBudget,
                               kNonFiniteForward}}}},
      {.id = "in-place-write",
       .what = "Something that autograd kept for the backward pass is overwritten in place",
       .weight = 86,
       .clue = {{kInplaceWrite}},
       .explains = together({of_wrong_gradients(), of_training(), {{.codes = {kException, kFlagIgnored}}}})},
      {.id = "seed",
       .weight = 93,
       .clue = {{kSeedBits}},
       .explains = {{.codes = {kFlagIgnored, kIdentity, kBackendsDiffer, kWaysDiffer, kModelIdentity, kToldOtherwise,
                               kNotResumable, kGradientNorm, kAccumulationDiffers}}}},
      {.id = "loaded-parameters",
       .what = "Weights that are loaded by name are not what arrives in the model: {first}",
       .weight = 60,
       .clue = {.codes = {kParameterSet}, .cases = "init_stats/loaded_parameters", .evidence = {{"first", "*"}}}},
      {.id = "parameter-set",
       .what = "The model's parameters are not those of the description: {difference}",
       .weight = 62,
       .clue = {.codes = {kParameterSet}, .evidence = {{"difference", "?*"}}},
       .explains = {{.codes = {kException, kParameterSet}}}},
      {.id = "route-of-another-call",
       .what = "A route that was chosen for another call is taken (kept without what tells calls apart: gradients, "
               "packing, "
               "length): {what}",
       .weight = 82,
       .clue = {.codes = {kException},
                .evidence = {{"type", "nsa::ContractError"}, {"what", "*was asked for with gradients needed*"}}},
       .explains = of_wrong_values()},
      {.id = "frozen-parameters",
       .what = "A step in which some parameters are {phase} is refused: whether gradients are needed is judged by "
               "something that need not learn (a layer's input), so another route is taken: {what}",
       .weight = 83,
       .clue = {.codes = {kException},
                .cases = "autograd/frozen*",
                .evidence = {{"phase", "frozen: *"}, {"what", "*"}}},
       .explains = {{.codes = {kException}}}},
      {.id = "weights-of-phi",
       .what = "Compression of keys or values gets weights that are not its own (those of the other one): {what}",
       .weight = 82,
       .clue = {.codes = {kException}, .evidence = {{"type", "nsa::ContractError"}, {"what", "compress: phi_*"}}},
       .explains = of_wrong_values()},
      {.id = "refused-by-a-contract",
       .what = "A part of the product gives another what its contract refuses: {what}",
       .weight = 81,
       .clue = {.codes = {kException}, .evidence = {{"type", "nsa::ContractError"}, {"what", "*"}}},
       .explains = of_wrong_values()},
      {.id = "configuration-key",
       .what = "A key of the configuration file does not do what it is named after: {said}",
       .weight = 83,
       .clue = {.codes = {kConfigKey}, .evidence = {{"said", "?*"}}},
       .explains = {{.codes = {kException, kFlagIgnored, kConfigDrift, kToldOtherwise, kRecomputeDiffers}}}},
      {.id = "flags-refused",
       .what = "Flags that may stand together are refused, or a value is read wrongly: {said}",
       .weight = 70,
       .clue = {.codes = {kException},
                .cases = "flag_matrix/*",
                .evidence = {{"type", "nsa::FlagInvalid"}, {"said", "*"}}},
       .explains = {{.codes = {kException, kFlagIgnored, kEffectiveFlags, kFlagOrigin}}}},
      {.id = "exception",
       .what = "{type} is thrown in the phase '{phase}': {said}",
       .weight = 15,
       .clue = {.codes = {kException}, .evidence = {{"type", "*"}, {"phase", "?*"}, {"said", "*"}}}},
      {.id = "expanded-keys-and-values",
       .what = "{op} copies keys and values to every query head: {ratio} times the bytes that it needs",
       .weight = 82,
       .clue = {.codes = {kExpandedKv}, .evidence = {{"op", "*"}, {"ratio", "*"}}},
       .explains = {{.codes = {kExpandedKv, kBelowGate, kFarBelowGate, kHostBound, kShapeSlow, kStepBytes}}}},
      {.id = "configuration-drift",
       .what =
           "The configuration in use is not the one that was expected, so what else was found holds for another run "
           "than the planned one",
       .weight = 81,
       .clue = {{kConfigDrift}}},
      {.id = "crash", .weight = 67, .clue = {{kCrash, kHang, kVanished}}, .explains = {{.codes = {kFarBelowGate}}}},
  };
}

Rules non_finite() {
  return {
      {.id = "nan-of-empty-rows",
       .what =
           "Rows that may attend to nothing ({allowed_keys} keys are allowed in row {row}) become {value} instead of "
           "0 in {stage}: a softmax over nothing",
       .weight = 95,
       .clue = {.codes = {kEmptyRowNan},
                .evidence = {{"allowed_keys", "*"}, {"row", "*"}, {"value", "*"}, {"stage", "*"}}},
       .explains = of_a_nan()},
      {.id = "nan-of-empty-rows-of-an-op",
       .what = "Rows of {op} that may attend to nothing ({rows}) give something else than exactly 0, or NaN, in the "
               "output or in the gradient of q: a softmax over nothing",
       .weight = 94,
       .clue = {.codes = {kEmptyRowNan}, .evidence = {{"op", "*"}, {"rows", "*"}}},
       .explains = together({of_a_nan(), of_wrong_values(), of_wrong_gradients()})},
      {.id = "unwritten-memory",
       .what = "A result depends on memory that nobody has written: the same case is finite at one time and not at "
               "another",
       .weight = 94,
       .clue = {{kUninitialisedRead, kNonFiniteOnce}},
       .explains = together({of_a_nan(), of_wrong_values(), {{.codes = {kSeedBits}}}}),
       .next = "look for an allocation without a fill (at::empty) in the branch of the evidence, and for rows that no "
               "kernel writes"},
      {.id = "nan-at-lengths",
       .what =
           "{stage} becomes {value} at some lengths only ({S} tokens is one): a kernel's edge, not the model's values",
       .weight = 92,
       .clue = {.codes = {kNonFiniteForward, kNonFiniteBackward},
                .cases = "s_sweep/length*",
                .evidence = {{"stage", "*"}, {"value", "*"}, {"S", "*"}}},
       .with = {{.codes = {kLengthPattern}}},
       .explains = of_a_nan()},
      {.id = "nan-forward",
       .what = "{value} begins in the forward pass at {stage}, row {row}, made by {operation}",
       .weight = 90,
       .clue = {.codes = {kNonFiniteForward},
                .evidence = {{"value", "*"}, {"stage", "*"}, {"row", "*"}, {"operation", "?*"}}},
       .explains = of_a_nan()},
      {.id = "nan-forward-in-one",
       .what =
           "{value} begins in the forward pass at {stage}, row {row}, within one operation that cannot be looked into",
       .weight = 89,
       .clue = {.codes = {kNonFiniteForward}, .evidence = {{"value", "*"}, {"stage", "*"}, {"row", "*"}}},
       .explains = of_a_nan()},
      {.id = "nan-backward",
       .what = "{value} begins in the backward pass at the gradient of {stage}, row {row}, made by {operation}; the "
               "forward pass is finite",
       .weight = 88,
       .clue = {.codes = {kNonFiniteBackward},
                .evidence = {{"value", "*"}, {"stage", "*"}, {"row", "*"}, {"operation", "*"}}},
       .explains = of_a_nan()},
      {.id = "nan-stage",
       .what = "{stage} is the first stage of the model that is not finite, where the oracle is",
       .weight = 87,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/whole_step*",
                .evidence = {{"stage", "*"}},
                .values = kNonFinite},
       .explains = of_a_nan()},
      {.id = "nan-of-a-capture",
       .what = "A training step that is captured as a CUDA graph is not finite (step {step}), where the same step made "
               "one operation after another is: a kernel that runs otherwise while it is captured, or memory that is "
               "used for something else at the replay",
       .weight = 80,
       .clue = {.codes = {kNonFiniteLoss, kNonFiniteGradientStep},
                .cases = "training/captured_step",
                .evidence = {{"captured", "alone"}, {"step", "*"}}},
       .explains = together({of_training(), {{.codes = {kCapturedStep}}}})},
      {.id = "nan-gradient-in-training",
       .what = "The gradient of {anomaly} is not finite in step {step}, where the loss still is",
       .weight = 79,
       .clue = {.codes = {kNonFiniteGradientStep}, .evidence = {{"anomaly", "*"}, {"step", "*"}}},
       .explains = of_training()},
      {.id = "nan-by-an-update",
       .what = "Training is not finite from step {step} on, and the model is finite at its initial values at every "
               "length: an update made weights non-finite (optimizer, learning rate)",
       .weight = 78,
       .clue = {.codes = {kNonFiniteLoss}, .evidence = {{"step", "!0"}}},
       .clean = {"s_sweep/length*", "parity/whole_step*"},
       .explains = of_training()},
  };
}

}  // namespace suites::cause_table
