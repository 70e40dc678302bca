#include "suites/causes/clues.hpp"
#include "suites/codes.hpp"

namespace suites::cause_table {

using namespace codes;

Rules training() {
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
      {.id = "rate-as-if",
       .what = "The learning rate is what it would be if {as_if}",
       .weight = 38,
       .clue = {.codes = {kLearningRate}, .evidence = {{"as_if", "*"}}},
       .explains = {{.codes = {kLearningRate, kToldOtherwise, kWrongUpdate, kLossDoesNotFall, kNotResumable}}}},
      {.id = "rate",
       .what = "The learning rate leaves its schedule at step {step} (from 0): {lr}, where {wanted} is due",
       .weight = 37,
       .clue = {.codes = {kLearningRate}, .evidence = {{"step", "*"}, {"lr", "*"}, {"wanted", "*"}}},
       .explains = {{.codes = {kLearningRate, kToldOtherwise, kWrongUpdate, kLossDoesNotFall, kNotResumable}}}},
      {.id = "told-as-if",
       .what = "The {what} that a run tells ({file}, {where}) is what it would be if {as_if}",
       .weight = 36,
       .clue = {.codes = {kToldOtherwise}, .evidence = {{"file", "*"}, {"where", "*"}, {"what", "*"}, {"as_if", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kAccumulationDiffers, kGradientNorm}}}},
      {.id = "optimizer-after-a-resume",
       .what =
           "What the optimizer holds is right in the checkpoint before a resume and wrong in the next one ({where}; "
           "{what} {told}): the resume lost or changed it, or a step after it",
       .weight = 37,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"file", "checkpoints"},
                             {"right_before", "the resume"},
                             {"where", "*"},
                             {"what", "*"},
                             {"told", "*"}}},
       .explains = {{.codes = {kToldOtherwise, kNotResumable, kWrongUpdate, kResumeWeights, kResumeOptimizer}}}},
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
      {.id = "documents-begin-elsewhere",
       .what =
           "The documents of a packed row begin elsewhere than in the data ({where}: at {seen}, where {told} is right)",
       .weight = 39,
       .clue = {.codes = {kDocuments},
                .evidence = {{"what", "*borders"}, {"told", "*,*"}, {"seen", "*"}, {"where", "*"}}},
       .explains = {{.codes = {kDocuments, kToldOtherwise, kPackedDiffers}}}},
      {.id = "order-as-if",
       .what = "A run reads its data as if {as_if}",
       .weight = 38,
       .clue = {.codes = {kBatchOrder}, .evidence = {{"as_if", "*"}}},
       .explains = {{.codes = {kBatchOrder, kBatchTwice, kToldOtherwise, kNotResumable, kSuspiciousFall,
                               kLossBelowFloor}}}},
      {.id = "validation-batches",
       .what = "Validation does not read the first batches of its own split each time ({where}, {what})",
       .weight = 37,
       .clue = {.codes = {kToldOtherwise},
                .evidence = {{"file", "batches of validation"}, {"where", "*"}, {"what", "*"}}},
       .excluded_by = {{.codes = {kBatchOrder, kDocuments}, .cases = "training/written_down*"}},
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
  };
}

Rules speed() {
  return {
      {.id = "work-of-an-op",
       .what =
           "{op} allocates {grown} times as much for twice the tokens, where it needs twice: it computes what it then "
           "hides",
       .weight = 28,
       .clue = {.codes = {kMemoryLaw}, .cases = "throughput/work_law", .evidence = {{"op", "*"}, {"grown", "*"}}},
       .explains = {{.codes = {kMemoryLaw, kStepBytes, kBelowGate, kFarBelowGate}}}},
      {.id = "bytes-of-a-part",
       .what = "{part} allocates {ratio} times {what}",
       .weight = 28,
       .clue = {.codes = {kStepBytes},
                .cases = "training/trainer_parts",
                .evidence = {{"part", "*"}, {"ratio", "*"}, {"what", "*"}}},
       .explains = {{.codes = {kStepBytes, kMemoryLaw}}}},
      {.id = "expanded-keys",
       .what = "{op} expands keys and values to every query head: {ratio} times the bytes that it needs",
       .weight = 28,
       .clue = {.codes = {kExpandedKv}, .evidence = {{"op", "*"}, {"ratio", "*"}}},
       .explains = {{.codes = {kMemoryLaw, kStepBytes, kBelowGate, kFarBelowGate, kHostLoop, kHostSyncs, kGpuIdle,
                               kHostShare}}}},
  };
}

}  // namespace suites::cause_table
