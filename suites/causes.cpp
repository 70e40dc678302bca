#include "suites/causes.hpp"

#include "harness/codes.hpp"
#include "suites/codes.hpp"

namespace suites {

namespace {

using namespace codes;
using harness::codes::kCrash;
using harness::codes::kException;
using harness::codes::kHang;
using harness::codes::kVanished;
using reports::CauseRule;
using reports::Clue;
using Clues = std::vector<Clue>;
constexpr auto kFinite = Clue::Values::finite;
constexpr auto kNonFinite = Clue::Values::non_finite;

Clues together(std::initializer_list<Clues> parts) {
  Clues all;
  for (const Clues& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// ---- what follows from what

// A NaN spreads: every check that compares something with it fails, and training stops.
Clues of_a_nan() {
  return {{.codes = {kNonFiniteForward, kNonFiniteBackward, kLengthPattern, kNonFiniteLoss, kNonFiniteGradientStep,
                     kNonFiniteMask, kHiddenNonFinite, kNonFiniteOnce, kStrictFallback, kEmptyRowNan}},
          {.codes = {}, .values = kNonFinite},
          {.codes = {kGuardMissed, kFarBelowGate, kIdentity, kFutureLeak, kOutputBudget, kGradientBudget, kGradcheck,
                     kNoGradient, kPackedDiffers, kWaysDiffer, kModelIdentity, kSweepPattern, kLossBelowFloor}}};
}

// A wrong value goes on through everything that is computed from it.
Clues of_wrong_values() {
  return {{.codes = {kOutputBudget,   kFutureLeak,       kNonFiniteMask,   kGraphBreak,         kGradientBudget,
                     kIdentity,       kWaysDiffer,       kModelIdentity,   kPackedDiffers,      kGradcheck,
                     kBackendsDiffer, kSelectionDiffers, kDecodeChoice,    kRelativeShift,      kSuspiciousFall,
                     kLossBelowFloor, kLossDoesNotFall,  kInitialLoss,     kGradientArrivals,   kCapturedStep,
                     kFlagIgnored,    kRouteRecord,      kActivationScale, kGradientScale,      kInsensitive,
                     kForeignKey,     kGradientNorm,     kWrongUpdate,     kAccumulationDiffers}}};
}

Clues of_wrong_gradients() {
  return {{.codes = {kGradientBudget, kGradcheck, kGraphBreak, kNoGradient, kCompressedKeysDetached, kGradientArrivals,
                     kGradientNorm, kCapturedStep, kBackendsDiffer, kGradientScale, kAccumulationDiffers,
                     kRecomputeDiffers, kSecondBackward, kDoubleBackward}}};
}

Clues of_training() {
  return {{.codes = {kGuardMissed, kFarBelowGate, kNonFiniteLoss, kNonFiniteGradientStep, kGradientNorm, kWrongUpdate,
                     kLossDoesNotFall, kLossBelowFloor, kValidationLoss, kStepTimeGrows, kStepStalls, kHaltRecord,
                     kNotResumable, kToldOtherwise, kBatchOrder}}};
}

// ---- the stages of a model, as parity compares them with the oracle

// A stage is the first that is wrong, in a step or in decoding alike.
CauseRule stage(std::string_view id, std::string_view glob, std::string_view what, int weight = 60,
                std::vector<std::pair<std::string_view, std::string_view>> also = {}) {
  CauseRule rule{.id = id, .what = what, .weight = weight};
  rule.clue = {.codes = {kOutputBudget}, .cases = "parity/whole_step*", .evidence = {{"stage", glob}}};
  for (auto& one : also) rule.clue.evidence.push_back(one);
  rule.explains = of_wrong_values();
  return rule;
}

// Decoding is wrong where the pass at once is right.
CauseRule decoding(std::string_view id, std::string_view glob, std::string_view what) {
  return {.id = id,
          .what = what,
          .weight = 55,
          .clue = {.codes = {kWaysDiffer}, .cases = "parity/whole_decoding*", .evidence = {{"stage", glob}}},
          .clean = {"parity/whole_step*"},
          .explains = {{.codes = {kWaysDiffer, kDecodeChoice, kReadsLaw, kModelIdentity, kSelectionDiffers}}}};
}

std::vector<CauseRule> set_up() {
  return {
      {.id = "stale-program",
       .what =
           "The program that ran is not what its sources say, so a fix may be missing in it; what else was found may "
           "be the old program's",
       .weight = 99,
       .clue = {{kBuildStale, kFixMissing}}},
      {.id = "cu-seqlens",
       .what = "The offsets of packed documents (cu_seqlens) reach a kernel with values that they may not have: never "
               "filled, or overwritten",
       .weight = 97,
       .clue = {{kCuSeqlens}},
       .explains = {{.codes = {kException, kCrash, kPackedDiffers, kOutputBudget, kGradientBudget,
                               kNonFiniteForward}}}},
      {.id = "in-place-write",
       .what = "Something that autograd kept for the backward pass is overwritten in place",
       .weight = 96,
       .clue = {{kInplaceWrite}},
       .explains = together({of_wrong_gradients(), of_training(), {{.codes = {kException, kFlagIgnored}}}})},
      {.id = "seed",
       .weight = 93,
       .clue = {{kSeedBits}},
       .explains = {{.codes = {kFlagIgnored, kIdentity, kBackendsDiffer, kWaysDiffer, kModelIdentity, kToldOtherwise,
                               kNotResumable, kGradientNorm, kAccumulationDiffers}}}},
      {.id = "refused-by-a-contract",
       .what = "A part of the product gives another what its contract refuses: {what}",
       .weight = 81,
       .clue = {.codes = {kException}, .evidence = {{"type", "nsa::ContractError"}, {"what", "*"}}},
       .explains = of_wrong_values()},
      {.id = "crash", .weight = 80, .clue = {{kCrash, kHang, kVanished}}, .explains = {{.codes = {kFarBelowGate}}}},
  };
}

std::vector<CauseRule> non_finite() {
  return {
      {.id = "nan-of-empty-rows",
       .what =
           "Rows that may attend to nothing ({allowed_keys} keys are allowed in row {row}) become {value} instead of "
           "0 in {stage}: a softmax over nothing",
       .weight = 95,
       .clue = {.codes = {kEmptyRowNan},
                .evidence = {{"allowed_keys", "*"}, {"row", "*"}, {"value", "*"}, {"stage", "*"}}},
       .explains = of_a_nan()},
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
                .evidence = {{"value", "*"}, {"stage", "*"}, {"row", "*"}, {"operation", "*"}}},
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

std::vector<CauseRule> operations() {
  return {
      {.id = "future-leak",
       .what = "{stage} reads tokens after its own: row {row} changes when only later tokens do",
       .weight = 86,
       .clue = {.codes = {kFutureLeak}, .evidence = {{"stage", "*"}, {"row", "*"}}},
       .explains = of_wrong_values()},
      {.id = "future-leak-of-an-op",
       .what = "{op} reads tokens after its own",
       .weight = 85,
       .clue = {.codes = {kFutureLeak}, .evidence = {{"op", "*"}}},
       .explains = of_wrong_values()},
      {.id = "documents-mixed",
       .what =
           "{op} lets the documents of a packed batch see each other, or takes their ends wrongly; one document alone "
           "is right",
       .weight = 84,
       .clue = {.codes = {kPackedDiffers}, .cases = "parity/packed*", .evidence = {{"op", "*"}}, .values = kFinite},
       .clean = {"parity/op*"},
       .excluded_by = {{.codes = {kOutputBudget}, .cases = "parity/attention*"}},
       .explains = of_wrong_values()},
      {.id = "choice-of-decoding-as-if",
       .what = "Decoding chooses blocks as if {as_if}; the pass at once chooses rightly",
       .weight = 84,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/whole_decoding*", .evidence = {{"as_if", "*"}}},
       .clean = {"parity/op\\[*", "parity/whole_step*"},
       .explains = {{.codes = {kWaysDiffer, kDecodeChoice, kReadsLaw, kModelIdentity, kSelectionDiffers}}}},
      {.id = "choice-of-blocks-as-if",
       .what = "select chooses blocks as if {as_if}",
       .weight = 84,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/*", .evidence = {{"as_if", "*"}}},
       .explains = of_wrong_values()},
      {.id = "choice-of-decoding",
       .what = "Decoding chooses blocks that the scores do not justify; the pass at once chooses rightly",
       .weight = 84,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/whole_decoding*"},
       .clean = {"parity/op\\[*", "parity/whole_step*"},
       .explains = {{.codes = {kWaysDiffer, kDecodeChoice, kModelIdentity}}}},
      {.id = "choice-of-blocks",
       .what = "select chooses blocks that the scores do not justify",
       .weight = 83,
       .clue = {.codes = {kSelectionDiffers}, .cases = "parity/*"},
       .explains = of_wrong_values()},
      {.id = "op-values",
       .what = "{op} computes wrong values",
       .weight = 82,
       .clue = {.codes = {kOutputBudget}, .cases = "parity/op*", .evidence = {{"op", "!attend"}}, .values = kFinite},
       .explains = of_wrong_values()},
      {.id = "attend-values",
       .what = "{op} computes wrong values in {output}",
       .weight = 81,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/*",
                .evidence = {{"op", "attend*"}, {"output", "*"}},
                .values = kFinite},
       .explains = of_wrong_values()},
      {.id = "detached-keys",
       .what = "The compressed branch's keys are cut from the graph: {parameters} get no gradient",
       .weight = 77,
       .clue = {.codes = {kCompressedKeysDetached}, .evidence = {{"parameters", "*"}}},
       .explains = of_wrong_gradients()},
      {.id = "op-cut-from-graph",
       .what = "No gradient reaches {input} of {op}, although its output depends on it",
       .weight = 76,
       .clue = {.codes = {kGraphBreak}, .evidence = {{"op", "*"}, {"input", "*"}}},
       .explains = of_wrong_gradients()},
      {.id = "op-gradient",
       .what = "The backward pass of {op} gives a wrong gradient of {gradient}; its forward pass is right",
       .weight = 74,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/op*",
                .evidence = {{"op", "!attend"}, {"gradient", "*"}},
                .values = kFinite},
       .explains = of_wrong_gradients()},
      {.id = "attend-gradient",
       .what = "The backward pass of {op} gives a wrong gradient of {gradient}; its forward pass is right",
       .weight = 73,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/*",
                .evidence = {{"op", "*"}, {"gradient", "*"}},
                .values = kFinite},
       .explains = of_wrong_gradients()},
      {.id = "op-derivative",
       .what = "The backward pass of {op} does not match its forward pass: the derivative by {input} is another",
       .weight = 72,
       .clue = {.codes = {kGradcheck}, .evidence = {{"op", "*"}, {"input", "*"}}},
       .explains = of_wrong_gradients()},
  };
}

// A mistake that was made in the oracle on purpose gives what the product gave (parity/mistakes): nothing is surer.
std::vector<CauseRule> mistakes() {
  return {
      {.id = "mistake-of-a-stage",
       .what = "{stage} is what it would be if {as_if}",
       .weight = 89,
       .clue = {.codes = {kOutputBudget}, .cases = "parity/whole_step*", .evidence = {{"stage", "*"}, {"as_if", "*"}}},
       .explains = of_wrong_values()},
      {.id = "mistake-with-a-setting",
       .what = "With {model} {stage} is what it would be if {as_if}; with the configuration in use it is right",
       .weight = 73,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/whole_constants",
                .evidence = {{"model", "*"}, {"stage", "*"}, {"as_if", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kFlagIgnored, kWaysDiffer, kModelIdentity, kRouteRecord}}}},
      {.id = "mistake-of-decoding",
       .what =
           "Decoding parts from the pass at once: {stage} is what it would be if {as_if}; the pass at once is right",
       .weight = 85,
       .clue = {.codes = {kWaysDiffer},
                .cases = "parity/whole_decoding*",
                .evidence = {{"stage", "*"}, {"as_if", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kWaysDiffer, kDecodeChoice, kReadsLaw, kModelIdentity, kSelectionDiffers}}}},
      {.id = "branch-alone",
       .what =
           "Decoding parts from the pass at once under NSA_FORCE_BRANCH={branch} with two rows in the batch; with all "
           "branches and one row it does not: what a step keeps or reads hangs on the branch or on the row",
       .weight = 80,
       .clue = {.codes = {kModelIdentity}, .cases = "parity/model_identity*", .evidence = {{"branch", "*"}}},
       .clean = {"parity/whole_decoding*"},
       .explains = {{.codes = {kModelIdentity}}}},
      {.id = "great-gate-logits",
       .what = "The softmax of the gates changes when one number is added to all its logits: exp without the maximum "
               "taken off overflows",
       .weight = 80,
       .clue = {.codes = {kModelIdentity},
                .cases = "parity/model_identity*",
                .evidence = {{"identity", "*gate logits, forward"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kModelIdentity}}}},
      {.id = "recomputation",
       .what = "Recomputed activations (train.gradient_checkpointing) give another gradient of {parameter} ({model}); "
               "without them it is right",
       .weight = 79,
       .clue = {.codes = {kGradientBudget, kGraphBreak},
                .cases = "parity/whole_step*",
                .evidence = {{"parameter", "*"}, {"model", "*recomputed*"}},
                .values = kFinite},
       .explains = of_wrong_gradients()},
      {.id = "mistake-of-a-gradient",
       .what = "The gradient of {parameter} is what it would be if {as_if}; all values are right",
       .weight = 78,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/whole_step*",
                .evidence = {{"parameter", "*"}, {"as_if", "*"}}},
       .explains = of_wrong_gradients()},
  };
}

std::vector<CauseRule> stages() {
  std::vector<CauseRule> rules = {
      {.id = "setting-not-in-force",
       .what = "{named} does not come into force in the effective flags: it is read wrongly, or another flag or a "
               "default wins over it",
       .weight = 72,
       .clue = {.codes = {kEffectiveFlags}, .evidence = {{"named", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kEffectiveFlags, kFlagIgnored, kRouteRecord, kFlagOrigin, kOutputBudget,
                               kRefusalWithoutReason}}}},
      {.id = "flag-read-wrongly",
       .weight = 71,
       .clue = {{kEffectiveFlags}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kFlagIgnored, kRouteRecord, kFlagOrigin, kOutputBudget, kRefusalWithoutReason}}}},
      {.id = "anomaly-mode",
       .what =
           "NSA_DETECT_ANOMALY does not hold for a step: autograd's anomaly mode is on in the forward pass: {forward}, "
           "in the backward pass: {backward}, after the step: {after}",
       .weight = 71,
       .clue = {.codes = {kFlagIgnored},
                .cases = "training/guards",
                .evidence = {{"forward", "*"}, {"backward", "*"}, {"after", "*"}}},
       .explains = {{.codes = {kFlagIgnored}}}},
      {.id = "flag-otherwise",
       .what = "A flag is not followed as it says: {first}",
       .weight = 70,
       .clue = {.codes = {kFlagIgnored}, .cases = "flag_matrix/*", .evidence = {{"first", "*?*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kFlagIgnored, kRouteRecord, kFlagOrigin, kOutputBudget, kEffectiveFlags,
                               kRefusalWithoutReason}}}},
      {.id = "flag-without-effect",
       .weight = 69,
       .clue = {{kFlagIgnored}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kRouteRecord, kFlagOrigin, kOutputBudget, kEffectiveFlags, kRefusalWithoutReason}}}},
      stage("loss", "loss",
            "The loss is not the mean cross-entropy of the predictions that count; the logits that it is made of are "
            "right",
            66),
      stage("documents-in-the-model", "*",
            "{stage} is wrong in packed batches alone: positions, blocks or offsets of documents in the model", 65),
      stage("embedding", "embedding", "The embedding of the tokens is wrong: its lookup or a scale"),
      stage("norm-before-attention", "*.attention.gates",
            "{stage}, queries and keys are all wrong ({beside}): what they share, the norm before attention or its "
            "input",
            63, {{"beside", "*\"q\"*cmp.k*"}}),
      stage("query-projection", "*.attention.gates",
            "{stage} and the queries are wrong and the keys are not ({beside}): the query projection", 62,
            {{"beside", "*\"q\"*"}}),
      stage("gate", "*.attention.gates",
            "{stage} is wrong and the queries and keys are right: the gate (its layers, activation, temperature, input "
            "or order)",
            61, {{"beside", "\\[\\]"}}),
      stage(
          "rope", "*.attention.q",
          "{stage} and the keys are wrong ({beside}) and the gates, which see the queries before RoPE, are right: RoPE "
          "(base, pairs, sense, positions, scale)",
          62, {{"beside", "*cmp.k*"}}),
      stage("queries", "*.attention.q",
            "{stage} is wrong and the keys are right: RoPE of the queries, or what lies between them and attention", 61,
            {{"beside", "\\[\\]"}}),
      stage(
          "compression-of-keys", "*.attention.cmp.k",
          "{stage} is wrong: the keys' projection or RoPE before compression, or compression (blocks, phi, positions)"),
      stage("compression-of-values", "*.attention.cmp.v",
            "{stage} is wrong: the values' projection or their compression"),
      stage("compressed-branch", "*.attention.cmp.o",
            "{stage} is wrong and its queries, compressed keys and values are right: attention over compressed blocks "
            "(mask, scale)"),
      stage("selected-branch", "*.attention.sel.o",
            "{stage} is wrong and the choice of blocks is the given one: the selected branch, its keys or its values"),
      stage("window", "*.attention.win.o", "{stage} is wrong: the window (its edge, its keys or its values)"),
      stage("sum-of-branches", "*.attention.o",
            "{stage} is wrong and every branch is right: the sum of the branches by their gates"),
      stage("output-projection", "layers.*.attention",
            "{stage} is wrong and the sum of the branches is right: the output projection", 59),
      stage("mlp", "*.mlp", "{stage} is wrong and attention is right: the MLP, its norm or its activation"),
      stage("residual", "layers.[0-9]", "{stage} is wrong and what is added to it is right: the residual stream"),
      stage("final-norm", "norm", "The final norm is wrong and the stream is right"),
      stage("head", "logits", "The logits are wrong and the final norm is right: the head"),
      stage("stage", "*", "{stage} is the first stage of the model that is wrong; the stages before it are right", 58),
      {.id = "another-way-of-decoding",
       .what = "{way} parts from the pass at once in {stage}; prefill and steps are right",
       .weight = 56,
       .clue = {.codes = {kWaysDiffer}, .cases = "parity/whole_decoding*", .evidence = {{"way", "*"}, {"stage", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kWaysDiffer, kModelIdentity}}}},
      decoding("decoding-window", "*.win.o",
               "Decoding parts from the pass at once in {stage}: the window's cache (its rows, their order, their "
               "positions); the pass at once is right"),
      decoding(
          "decoding-compression", "*.cmp.o",
          "Decoding parts from the pass at once in {stage}: when and from what blocks are compressed, or their cache; "
          "the pass at once is right"),
      decoding(
          "decoding-selection", "*.sel.o",
          "Decoding parts from the pass at once in {stage}: the selected branch's cache or its blocks; the pass at "
          "once is right"),
      decoding("decoding-positions", "*.q",
               "Decoding parts from the pass at once in {stage}: positions of the tokens; the pass at once is right"),
      decoding("decoding", "*", "Decoding parts from the pass at once, first in {stage}; the pass at once is right"),
      {.id = "configuration",
       .what = "{model} is not followed: {stage} is the first stage that is wrong with it, and with the configuration "
               "in use none is",
       .weight = 54,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/whole_constants",
                .evidence = {{"model", "*"}, {"stage", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kFlagIgnored}}}},
      {.id = "gradient-of-a-parameter",
       .what =
           "The gradient of {parameter} is wrong and the values and the operations are right: on the way back to it "
           "something is cut off, lost, scaled or counted twice",
       .weight = 52,
       .clue = {.codes = {kGradientBudget, kGraphBreak},
                .cases = "parity/whole_step*",
                .evidence = {{"parameter", "*"}, {"model", "*"}}},
       .explains = of_wrong_gradients()},
  };
  // A batch of documents is wrong and one document alone is right.
  for (CauseRule& rule : rules)
    if (rule.id == "documents-in-the-model") {
      rule.clue.cases = "parity/whole_step\\[S=documents*";
      rule.clean = {"parity/whole_step\\[S=2w+lsel+3*"};
    } else if (rule.id == "loss") {
      rule.next = "compare the positions that are predicted with the documents' ends, and the divisor with their count";
    }
  return rules;
}

std::vector<CauseRule> initial_values() {
  return {
      {.id = "zero-gate",
       .what =
           "The gate's last layer is initialised to zero ({parameters}): every branch is mixed by exactly 1/3 and the "
           "layer before gets no gradient",
       .weight = 50,
       .clue = {.codes = {kGateZeroInit}, .evidence = {{"parameters", "*"}}},
       .explains = {{.codes = {kGateUniform, kNoGradient, kInsensitive, kParameterLaw}}}},
      {.id = "initial-law",
       .what = "{parameter} does not follow its initial law ({law}): {violated}",
       .weight = 48,
       .clue = {.codes = {kParameterLaw}, .evidence = {{"parameter", "*"}, {"law", "*"}, {"violated", "*"}}},
       .explains = {{.codes = {kActivationScale, kGradientScale, kGateEntropy, kInitialLoss, kGateUniform,
                               kLossDoesNotFall}}}},
  };
}

std::vector<CauseRule> training_and_speed() {
  return {
      {.id = "guard",
       .what =
           "The guard {guard} does not do its work: it fires late, falsely or not at all, or weights change before it",
       .weight = 31,
       .clue = {.codes = {kGuardMissed}, .evidence = {{"guard", "*"}}},
       .explains = {{.codes = {kFarBelowGate, kGuardMissed}}}},
      {.id = "guards", .weight = 30, .clue = {{kGuardMissed}}, .explains = {{.codes = {kFarBelowGate}}}},
      {.id = "update-as-if",
       .what = "The weights are updated as if {as_if}",
       .weight = 31,
       .clue = {.codes = {kWrongUpdate}, .evidence = {{"as_if", "*"}}},
       .explains = {{.codes = {kLossDoesNotFall, kValidationLoss, kGradientNorm, kWrongUpdate, kSuspiciousFall}}}},
      {.id = "told-as-if",
       .what = "The {what} that a run tells ({file}, {where}) is what it would be if {as_if}",
       .weight = 36,
       .clue = {.codes = {kToldOtherwise}, .evidence = {{"file", "*"}, {"where", "*"}, {"what", "*"}, {"as_if", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kAccumulationDiffers, kGradientNorm}}}},
      {.id = "masters-of-a-checkpoint",
       .what =
           "Checkpoints hold no fp32 copies of 16-bit weights ({where}): a run that is resumed goes on from rounded "
           "weights and is another one",
       .weight = 35,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"what", "has a wide copy"}, {"told", "false"}, {"where", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kNotResumable}}}},
      {.id = "updates-of-a-checkpoint",
       .what = "Adam's step counters are not those of the run ({where}: {told}, where {seen} updates were made): they "
               "are lost or changed by a save, a load or a step, and its bias correction with them",
       .weight = 35,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"what", "updates"}, {"told", "*"}, {"seen", "*"}, {"where", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kNotResumable}}}},
      {.id = "validation-batches",
       .what = "Validation does not read the first batches of its own split each time ({where}, {what})",
       .weight = 37,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"file", "batches of validation"}, {"where", "*"}, {"what", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kValidationLoss}}}},
      {.id = "predictions-counted",
       .what =
           "A training step counts {told} predictions where its batches hold {seen} ({where}): what they are divided "
           "by, and the tokens that are told, are wrong",
       .weight = 36,
       .clue = {.codes = {kDocuments, kToldOtherwise},
                .evidence = {{"what", "predictions*"}, {"told", "*"}, {"seen", "*"}, {"where", "*"}}},
       .explains = {{.codes = {kDocuments, kToldOtherwise, kGradientNorm, kLossBelowFloor, kAccumulationDiffers,
                               kWrongUpdate, kSuspiciousFall}}}},
      {.id = "gradients-of-a-step",
       .what =
           "What the optimizer gets is not the gradient of the step's batches ({file}, {where}; {what} {told}): lost, "
           "scaled, clipped otherwise, or kept from another batch; the losses are right",
       .weight = 30,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"file", "*"}, {"where", "*"}, {"what", "exp_avg*"}, {"told", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kGradientNorm, kAccumulationDiffers}}}},
      {.id = "exit-code-of-training",
       .what = "nsa-train does not go through a short run and its continuation: {where} ends with exit code {told}",
       .weight = 35,
       .clue = {.codes = {kToldOtherwise}, .evidence = {{"what", "exit code"}, {"told", "*"}, {"where", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kBatchOrder, kDocuments}}}},
      // Every file tells the same number, and the same batch with the same weights gives another one.
      {.id = "loss-by-history",
       .what =
           "The loss of a training step is not that of its batch and its weights ({told}; computed anew: {seen}): it "
           "depends on what was computed before (a cache whose key lacks something), or on how batches are accumulated",
       .weight = 34,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"file", "checkpoints"}, {"what", "loss"}, {"told", "*"}, {"seen", "*"}}},
       .with = {{.codes = {kToldOtherwise}, .evidence = {{"file", "metrics.csv"}, {"what", "loss"}}},
                {.codes = {kToldOtherwise}, .evidence = {{"file", "heartbeat.jsonl"}, {"what", "*loss"}}}},
       .explains = {{.codes = {kToldOtherwise}}}},
      {.id = "told-otherwise",
       .what = "A training run tells a wrong {what} ({file}, {where}): {told}, where {seen} was seen",
       .weight = 27,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"file", "*"}, {"where", "*"}, {"what", "*"}, {"told", "*"}, {"seen", "*"}}},
       .explains = {{.codes = {kToldOtherwise}}}},
      {.id = "order-of-a-pass",
       .what = "A shuffled pass has the wrong order: it should be {told}, it is {seen} ({where})",
       .weight = 34,
       .clue = {.codes = {kBatchOrder},
                .evidence = {{"what", "order of the pass"}, {"told", "*"}, {"seen", "*"}, {"where", "*"}}},
       .explains = {{.codes = {kBatchOrder, kNotResumable}}}},
      {.id = "batch-twice",
       .weight = 33,
       .clue = {{kBatchTwice}},
       .explains = {{.codes = {kBatchOrder, kSuspiciousFall, kLossBelowFloor}}}},
      {.id = "documents-of-training",
       .weight = 32,
       .clue = {{kDocuments}},
       .clean = {"parity/packed*"},
       .explains = {{.codes = {kToldOtherwise}}}},
      {.id = "update",
       .weight = 29,
       .clue = {{kWrongUpdate}},
       .explains = {{.codes = {kLossDoesNotFall, kValidationLoss}}}},
      {.id = "expanded-keys",
       .what = "{op} expands keys and values to every query head: {ratio} times the bytes that it needs",
       .weight = 28,
       .clue = {.codes = {kExpandedKv}, .evidence = {{"op", "*"}, {"ratio", "*"}}},
       .explains = {{.codes = {kMemoryLaw, kStepBytes, kBelowGate, kFarBelowGate, kHostLoop, kHostSyncs, kGpuIdle,
                               kHostShare}}}},
  };
}

}  // namespace

std::vector<CauseRule> causes() {
  std::vector<CauseRule> all;
  for (auto part : {set_up(), non_finite(), operations(), mistakes(), stages(), initial_values(), training_and_speed()})
    std::move(part.begin(), part.end(), std::back_inserter(all));
  return all;
}

}  // namespace suites
