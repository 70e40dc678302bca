#include "suites/causes/clues.hpp"
#include "suites/codes.hpp"

namespace suites::cause_table {

using namespace codes;

namespace {

// A stage is the first that is wrong, in a step or in decoding alike.
CauseRule stage(std::string_view id, std::string_view glob, std::string_view what, int weight = 60,
                const std::vector<std::pair<std::string_view, std::string_view>>& also = {}) {
  CauseRule rule{.id = id, .what = what, .weight = weight};
  rule.clue = {.codes = {kOutputBudget}, .cases = "parity/whole_step*", .evidence = {{"stage", glob}, {"where", "*"}}};
  for (const auto& one : also) rule.clue.evidence.push_back(one);
  rule.explains = of_wrong_values();
  return rule;
}

// Decoding is wrong where the pass at once is right.
CauseRule decoding(std::string_view id, std::string_view glob, std::string_view what) {
  return {.id = id,
          .what = what,
          .weight = 55,
          .clue = {.codes = {kWaysDiffer},
                   .cases = "parity/whole_decoding*",
                   .evidence = {{"stage", glob}, {"where", "*"}}},
          .clean = {"parity/whole_step*"},
          .explains = of_decoding()};
}

}  // namespace

// A mistake that was made in the oracle on purpose gives what the product gave (parity/mistakes): nothing is surer.
Rules mistakes() {
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
       .explains = of_decoding()},
      {.id = "rounded-more-than-once",
       .what =
           "{rounded} rounds to 16 bits on its way, where it must compute in fp32 and round its result: it is off by "
           "{ratio} times what one rounding costs",
       .weight = 75,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/rounded_once",
                .evidence = {{"rounded", "*"}, {"ratio", "*"}}},
       .explains = of_wrong_values()},
      {.id = "part-cut-off",
       .what = "{cut_off} does not arrive, where it is computed alone: it is cut off from the graph",
       .weight = 77,
       .clue = {.codes = {kGraphBreak}, .cases = "parity/rounded_once", .evidence = {{"cut_off", "*"}}},
       .explains = of_wrong_gradients()},
      {.id = "part-in-fp32",
       .what = "{in_fp32}, computed alone, is wrong: it is off by {error} of its RMS, where fp32 is meant",
       .weight = 74,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/rounded_once",
                .evidence = {{"in_fp32", "*"}, {"error", "*"}}},
       .explains = of_wrong_values()},
      {.id = "part-alone",
       .what = "{wrong}, computed alone in bf16, is wrong: it is off by {ratio} times what one rounding costs",
       .weight = 74,
       .clue = {.codes = {kOutputBudget}, .cases = "parity/rounded_once", .evidence = {{"wrong", "*"}, {"ratio", "*"}}},
       .explains = of_wrong_values()},
      {.id = "loss-as-if",
       .what = "The model's loss is not that of its own logits: it is what it would be if {as_if}",
       .weight = 75,
       .clue = {.codes = {kIdentity}, .cases = "forward/*", .evidence = {{"as_if", "*"}}},
       .explains = {{.codes = {kIdentity, kToldOtherwise, kOutputBudget, kInitialLoss}}}},
      {.id = "branch-alone",
       .what = "Decoding parts from the pass at once under NSA_FORCE_BRANCH={branch}; with all branches it does not: "
               "what a "
               "step keeps or reads hangs on the branch",
       .weight = 80,
       .clue = {.codes = {kModelIdentity}, .cases = "parity/model_identity*", .evidence = {{"branch", "*"}}},
       .clean = {"parity/whole_decoding*", "parity/whole_step*"},
       .explains = {{.codes = {kModelIdentity}}}},
      {.id = "stage-of-another-type",
       .what = "{stage} is {type} where the storage type asks for {wanted_type} ({model}): it is computed in another "
               "precision",
       .weight = 79,
       .clue = {.codes = {kOutputContract},
                .cases = "parity/whole_step*",
                .evidence = {{"stage", "*"}, {"type", "*"}, {"wanted_type", "*"}, {"model", "*"}}},
       .explains = of_wrong_values()},
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

Rules stages() {
  Rules rules = {
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
      {.id = "reason-of-a-route",
       .what = "A route's reason does not fit the call that it was chosen for, so the call is read wrongly or the rule "
               "is: {first}",
       .weight = 69,
       .clue = {.codes = {kRefusalWithoutReason}, .evidence = {{"first", "*?*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kRouteRecord, kFlagOrigin, kEffectiveFlags}}}},
      {.id = "flag-field",
       .what = "A flag is read wrongly, or its record is: {first}",
       .weight = 69,
       .clue = {.codes = {kFlagOrigin}, .evidence = {{"first", "*?*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kFlagOrigin, kFlagIgnored, kRouteRecord, kEffectiveFlags, kRefusalWithoutReason}}}},
      {.id = "flag-without-effect",
       .weight = 68,
       .clue = {{kFlagIgnored}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kRouteRecord, kFlagOrigin, kOutputBudget, kEffectiveFlags, kRefusalWithoutReason}}}},
      stage("loss", "loss",
            "The loss is not the mean cross-entropy of the predictions that count; the logits that it is made of are "
            "right",
            66),
      stage(
          "documents-in-the-model", "*",
          "{stage} is wrong in packed batches alone ({where}): positions, blocks or offsets of documents in the model",
          65),
      stage("embedding", "embedding", "The embedding of the tokens is wrong ({where}): its lookup or a scale"),
      stage("norm-before-attention", "*.attention.gates",
            "{stage}, queries and keys are all wrong ({beside}): what they share, the norm before attention or its "
            "input",
            63, {{"beside", "*\"q\"*cmp.k*"}}),
      stage("query-projection", "*.attention.gates",
            "{stage} and the queries are wrong and the keys are not ({beside}): the query projection", 62,
            {{"beside", "*\"q\"*"}}),
      stage("gate", "*.attention.gates",
            "{stage} is wrong ({where}) and the queries and keys are right: the gate (its layers, activation, "
            "temperature, input "
            "or order)",
            61, {{"beside", "\\[\\]"}}),
      stage(
          "rope", "*.attention.q",
          "{stage} and the keys are wrong ({beside}) and the gates, which see the queries before RoPE, are right: RoPE "
          "(base, pairs, sense, positions, scale)",
          62, {{"beside", "*cmp.k*"}}),
      stage("queries", "*.attention.q",
            "{stage} is wrong ({where}) and the keys are right: RoPE of the queries, or what lies between them and "
            "attention",
            61, {{"beside", "\\[\\]"}}),
      stage("compression-of-keys", "*.attention.cmp.k",
            "{stage} is wrong ({where}): the keys' projection or RoPE before compression, or compression (blocks, phi, "
            "positions)"),
      stage("compression-of-values", "*.attention.cmp.v",
            "{stage} is wrong ({where}): the values' projection or their compression"),
      stage("compressed-branch", "*.attention.cmp.o",
            "{stage} is wrong ({where}) and its queries, compressed keys and values are right: attention over "
            "compressed blocks "
            "(mask, scale)"),
      stage("selected-branch", "*.attention.sel.o",
            "{stage} is wrong ({where}) and the choice of blocks is the given one: the selected branch, its keys or "
            "its values"),
      stage("window", "*.attention.win.o", "{stage} is wrong ({where}): the window (its edge, its keys or its values)"),
      stage("sum-of-branches", "*.attention.o",
            "{stage} is wrong ({where}) and every branch is right: the sum of the branches by their gates"),
      stage("output-projection", "layers.*.attention",
            "{stage} is wrong ({where}) and the sum of the branches is right: the output projection", 59),
      stage("mlp", "*.mlp", "{stage} is wrong ({where}) and attention is right: the MLP, its norm or its activation"),
      stage("residual", "layers.[0-9]",
            "{stage} is wrong ({where}) and what is added to it is right: the residual stream"),
      stage("final-norm", "norm", "The final norm is wrong ({where}) and the stream is right"),
      stage("head", "logits", "The logits are wrong ({where}) and the final norm is right: the head"),
      stage("stage", "*",
            "{stage} is the first stage of the model that is wrong ({where}); the stages before it are right", 58),
      {.id = "reset-of-a-decoder",
       .what =
           "Decoder::reset() leaves something of the text before it: {stage} is wrong after it ({how}), and right in "
           "a fresh decoder",
       .weight = 86,
       .clue = {.codes = {kWaysDiffer},
                .cases = "parity/whole_decoding*",
                .evidence = {{"after", "reset()"}, {"stage", "*"}, {"how", "*"}}},
       .explains = of_decoding()},
      {.id = "stage-in-16-bits",
       .what = "{stage} is wrong in bf16 ({where}; {model}), and right in fp32: what is computed, summed or kept in 16 "
               "bits",
       .weight = 67,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/whole_step*precision=bf16*",
                .evidence = {{"stage", "*"}, {"where", "*"}, {"model", "*bf16*"}}},
       .clean = {"parity/whole_step*precision=fp32*"},
       .explains = of_wrong_values()},
      {.id = "another-way-of-decoding",
       .what = "{way} parts from the pass at once in {stage}; prefill and steps are right",
       .weight = 56,
       .clue = {.codes = {kWaysDiffer}, .cases = "parity/whole_decoding*", .evidence = {{"way", "*"}, {"stage", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kWaysDiffer, kModelIdentity}}}},
      // The walk from nothing comes first, and was right.
      {.id = "decoding-after-a-prefill",
       .what =
           "Decoding after a prefill of {prefill} tokens parts from the pass at once in {stage} ({where}); token by "
           "token from nothing it is right: what a prefill leaves in a cache (rows of a ring, their order or places)",
       .weight = 57,
       .clue = {.codes = {kWaysDiffer},
                .cases = "parity/whole_decoding*",
                .evidence = {{"prefill", "*"}, {"stage", "*.???.o"}, {"where", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = of_decoding()},
      decoding(
          "decoding-window", "*.win.o",
          "Decoding parts from the pass at once in {stage} ({where}): the window's cache (its rows, their order, their "
          "positions); the pass at once is right"),
      decoding("decoding-compression", "*.cmp.o",
               "Decoding parts from the pass at once in {stage} ({where}): when and from what blocks are compressed, "
               "or their cache; "
               "the pass at once is right"),
      decoding("decoding-selection", "*.sel.o",
               "Decoding parts from the pass at once in {stage} ({where}): the selected branch's cache or its blocks; "
               "the pass at "
               "once is right"),
      decoding("decoding-positions", "*.q",
               "Decoding parts from the pass at once in {stage} ({where}): positions of the tokens; the pass at once "
               "is right"),
      decoding("decoding", "*",
               "Decoding parts from the pass at once, first in {stage} ({where}); the pass at once is right"),
      {.id = "configuration",
       .what = "{model} is not followed: {stage} is the first stage that is wrong with it ({where}), and with the "
               "configuration "
               "in use none is",
       .weight = 54,
       .clue = {.codes = {kOutputBudget},
                .cases = "parity/whole_constants",
                .evidence = {{"model", "*"}, {"stage", "*"}, {"where", "*"}}},
       .clean = {"parity/whole_step*"},
       .explains = {{.codes = {kFlagIgnored}}}},
      {.id = "no-gradient-in-a-way",
       .what = "In the way '{way}' no gradient reaches {parameters}; with the flags of this run one does",
       .weight = 53,
       .clue = {.codes = {kNoGradient},
                .cases = "autograd/parameter_gradients*",
                .evidence = {{"way", "?*"}, {"parameters", "*"}}},
       .clean = {"autograd/parameter_gradients"},
       .explains = of_wrong_gradients()},
      {.id = "gradient-in-16-bits",
       .what =
           "The gradient of {parameter} is wrong in bf16 ({where}; {model}), and right in fp32: what the backward pass "
           "does for 16-bit storage",
       .weight = 54,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/whole_step*precision=bf16*",
                .evidence = {{"parameter", "*"}, {"model", "*bf16*"}, {"where", "*"}}},
       .clean = {"parity/whole_step*precision=fp32*"},
       .explains = of_wrong_gradients()},
      {.id = "no-gradient-of-a-parameter",
       .what =
           "No gradient reaches {parameter} ({model}), and all values are right: it does not ask for one, or its way "
           "to the loss is cut",
       .weight = 53,
       .clue = {.codes = {kGraphBreak},
                .cases = "parity/whole_step*",
                .evidence = {{"parameter", "*"}, {"model", "*"}}},
       .explains = of_wrong_gradients()},
      {.id = "gradient-of-a-parameter",
       .what = "The gradient of {parameter} is wrong ({where}) and all values are right: on the way back to it "
               "something is "
               "cut off, lost, scaled or counted twice",
       .weight = 52,
       .clue = {.codes = {kGradientBudget},
                .cases = "parity/whole_step*",
                .evidence = {{"parameter", "*"}, {"model", "*"}, {"where", "*"}}},
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

Rules initial_values() {
  return {
      {.id = "zero-gate",
       .what =
           "The gate's last layer is initialised to zero ({parameters}): every branch is mixed by exactly 1/3 and the "
           "layer before gets no gradient",
       .weight = 98,
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

}  // namespace suites::cause_table
