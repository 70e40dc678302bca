// The finding codes of the suites. Append-only: a code is never renumbered and never reused.
#include "suites/codes.hpp"

#include "harness/codes.hpp"
#include "suites/program.hpp"

namespace suites {

using harness::Code;
using enum reports::Severity;

std::vector<Code> finding_codes() {
  namespace c = codes;
  return {
      // -- environment
      {c::kTorchVersion, "LibTorch is not the version that the program was built for", "environment", block,
       "the loader found another torch than the build used (another virtual environment first on the path)",
       "run `nsa-validate doctor` and start the program through its launcher, or rebuild against this torch"},
      {c::kCudaUnusable, "CUDA does not work on this machine's GPU", "environment", isolate,
       "driver too old for the CUDA runtime, GPU lost, no memory left, or a broken container set-up",
       "read the error text in the evidence; check nvidia-smi and the driver version against the CUDA runtime"},
      {c::kDriver, "The NVIDIA driver is older than the CUDA runtime needs", "environment", block,
       "the driver was not updated together with the toolkit", "update the driver, or build against an older CUDA"},
      {c::kForeignProcess, "Another process holds memory of the GPU", "environment", degrade,
       "an earlier run is stuck, or somebody else works on this GPU",
       "end the listed processes (pid, name, bytes) or take another GPU; times and memory of this run are not to be "
       "trusted before"},
      {c::kStaleHalt, "A HALT file of an earlier run lies in the run's folder", "environment", block,
       "an earlier run stopped itself after an anomaly and its control file was never removed",
       "read the file (it names the run and the anomaly), then remove it: training would stop at its first step"},
      {c::kConfigDrift, "The configuration in use is not the one that was expected", "environment", degrade,
       "the configuration was edited where it runs and never brought back, or an old checkout is deployed",
       "compare the listed keys; commit the intended values and deploy that commit"},
      {c::kBuildStale, "The program was not built from the sources beside it", "environment", degrade,
       "the sources changed (or another commit was checked out) after the build, so a fix may be missing in the binary",
       "rebuild through the launcher, which does it by itself, and run again"},
      {c::kFlashUnavailable, "FlashAttention-2 was asked for and does not work here", "environment", degrade,
       "this GPU, dtype or build of torch lacks the kernel",
       "unset the NSA_USE_FA2 flags, or use a GPU of sm_80 or newer"},
      {c::kFirstBatch, "The first batch of training data did not come in time", "environment", block,
       "the data file is missing, unreadable, too short, or its storage stalls",
       "check the path and its storage; a loader that stalls here looks like a hang in training"},
      {c::kUnknownFlag, "An NSA_* variable is set that means nothing", "environment", warn,
       "a misspelt name: the setting that was meant is not in force", "use the nearest known name, or unset it"},
      {c::kRetiredFlag, "An NSA_* variable of the past is set and has no effect", "environment", info,
       "scripts written for the earlier system still set it", "remove it from the scripts"},

      // -- initial values
      {c::kParameterLaw, "A parameter does not follow its initial law", "init", block,
       "a changed or missing reset_parameters, a wrong fan-in, a layer initialised twice, a wrong checkpoint loaded",
       "compare the measured mean, deviation and range with the law in the evidence and mend the initialisation"},
      {c::kGateZeroInit, "The gate's last layer is all zero: every branch is mixed by exactly 1/3", "init", block,
       "the gate's fc2 was initialised to zero; fc1 then gets an exactly zero gradient and the gates start uniform",
       "initialise fc2.weight Xavier-uniform with gain 0.1 (bias 0) in the gate's reset_parameters"},
      {c::kGateUniform, "The gates do not depend on the token", "init", block,
       "the gate's weights are (nearly) zero, its input is constant, or a flag forces uniform gates",
       "check the gate's weights and NSA_FORCE_UNIFORM_GATE; a gate that cannot tell tokens apart never learns"},
      {c::kParameterSet, "The model's parameters are not the expected set", "init", block,
       "a layer is missing, shared by accident, registered twice or of another shape",
       "compare the listed names and shapes with the model's description"},
      {c::kParameterPlacement, "A parameter has another dtype or device than asked for", "init", block,
       "a module was created after the model was cast or moved",
       "cast and move the whole model once, after construction"},
      {c::kSeedBits, "The same seed gives other bits", "determinism", block,
       "initialisation draws from a generator that is not seeded, or in an order that varies",
       "seed every generator, and construct parameters in a fixed order"},

      // -- numerics
      {c::kOutputBudget, "An output is farther from the fp64 reference than its rounding budget", "numerics", block,
       "a wrong mask, scale, index or accumulation type in the backend that computed it",
       "the evidence names op, output and the worst index; compare that row's stages with nsa::reference::stages"},
      {c::kNonFiniteMask, "Non-finite values stand in other places than in the reference", "numerics", block,
       "a mask that hides or spreads NaN or infinity (0 * NaN, nan_to_num, a missing guard)",
       "look at the first differing index in the evidence"},
      {c::kSelectionDiffers, "Blocks were chosen that the scores do not justify", "numerics", block,
       "forced blocks lost, future blocks in the normalisation, wrong overlap weights, or a broken tie rule",
       "the evidence has the query, both choices and their scores; a tie within rounding is already excused"},
      {c::kIdentity, "An identity that must hold does not", "numerics", block,
       "the backend computes another function than the one described; the identity's name says which part",
       "repeat the case; no oracle is involved, so the backend alone is wrong"},
      {c::kFutureLeak, "An output depends on tokens after it", "numerics", block,
       "a value or key of a later token is read: a window shifted by one, a mask of wrong polarity or alignment, "
       "scores "
       "normalised over the future",
       "the evidence names the branch and the first row that moved; losses of such a model are worthless however low"},
      {c::kGradientBudget, "A gradient is farther from the fp64 reference than its rounding budget", "gradient", block,
       "a wrong term in the backward pass, or a lost reduction over the heads of a group",
       "the evidence names op, gradient and the worst index"},
      {c::kPackedDiffers, "A packed batch differs from its documents run one by one", "numerics", block,
       "attention or blocks cross a document boundary, or offsets are off by one",
       "the evidence names the first document and row that differ"},
      {c::kOutputContract, "An output has the wrong shape, dtype or device", "numerics", block,
       "a stage promotes, transposes or drops a dimension", "compare with the shapes written at the op in nsa/ops.hpp"},
      {c::kCuSeqlens, "cu_seqlens breaks its contract before a kernel is launched", "numerics", block,
       "the offsets were allocated but never filled (or are off by one): on a GPU this is the illegal memory access of "
       "the window's varlen route",
       "fill cu_seqlens (int32, starts at 0, does not decrease, ends at the total) before the call; the evidence shows "
       "the values that came"},
      {c::kBadInputAccepted, "Bad input was accepted", "numerics", block, "a contract check is missing or too weak",
       "add the check in nsa/ops.cpp: the evidence names the argument that should have been refused"},

      // -- anomalies
      {c::kNonFiniteForward, "A non-finite value appears in the forward pass", "anomaly", block,
       "the first operation that made it from finite inputs is in the evidence, with layer, branch and row",
       "repeat the case and look at that operation's inputs for that row"},
      {c::kNonFiniteBackward, "A non-finite value appears in the backward pass", "anomaly", block,
       "the forward pass is finite; the evidence names the first backward operation and the stage it belongs to",
       "look for 0 * inf in that operation: a masked row without the double-where guard, an underflown denominator"},
      {c::kEmptyRowNan, "Rows that may attend to nothing become NaN", "anomaly", block,
       "softmax over a row that is all -inf: the guard for rows without an allowed key is missing",
       "rows with no allowed key must give exactly 0 output and 0 gradient, LSE -inf"},
      {c::kLengthPattern, "Only some sequence lengths give non-finite values", "anomaly", block,
       "a block or tile boundary is handled wrongly: the tail of the last tile is read or written past its end",
       "the evidence lists good and bad lengths and their remainders by every block size; test lengths that are no "
       "powers of two"},
      {c::kNonFiniteLoss, "The loss is not finite in training", "anomaly", block,
       "see the findings of s_sweep for the first operation; the step and learning rate are in the evidence",
       "repeat with --suite s_sweep to locate the layer, branch and row"},
      {c::kNonFiniteGradientStep, "A gradient is not finite: training stopped before the update", "anomaly", block,
       "an overflow or a 0/0 in one operation's backward; the evidence names the parameter and the step",
       "repeat with --suite autograd and s_sweep; the weights are still those of the last good step"},
      {c::kGuardMissed, "Weights were updated although the loss or a gradient was not finite", "anomaly", isolate,
       "the training loop checks too late, or only the loss", "check loss and gradients before optimizer.step()"},
      {c::kLossBelowFloor, "The loss on random tokens is below ln V: the model sees the answer", "anomaly", block,
       "future tokens leak into the prediction (window, selection scores, targets not shifted)",
       "see finding NSA-N005 (parity) for the branch; no model can beat ln V on random tokens"},
      {c::kLossDoesNotFall, "The loss does not fall on real text", "anomaly", block,
       "gradients do not reach the weights, the learning rate is (nearly) zero, or data and targets do not match",
       "look at gradient norms and the learning-rate trace in the evidence"},
      {c::kInitialLoss, "The loss at initialisation is not near ln V", "anomaly", block,
       "wrong initial laws, wrong scale of the logits, or a leak",
       "see init_stats; the expected value is in the evidence"},
      {c::kAnomalyModeSilent, "Anomaly mode does not see what the locator sees", "anomaly", warn,
       "the two witnesses disagree: one of them is blind here", "report it: a diagnosis needs both"},
      {c::kLearningRate, "The learning rate is not that of its schedule", "anomaly", block,
       "a schedule stepped in the wrong unit or with the wrong total, or a rate that is reported and not applied",
       "compare the trace in the evidence with train.lr, train.lr_min, train.warmup_steps and train.steps"},
      {c::kGradientNorm, "The reported gradient norm is not that of the gradients", "anomaly", block,
       "the norm is read after the gradients were cleared or clipped, or over some of the parameters only",
       "compute it once between backward and clipping; the evidence has the reported and the recomputed value"},

      // -- gradients
      {c::kNoGradient, "A parameter gets no gradient, or one that is exactly zero", "gradient", block,
       "the path from this parameter to the loss is cut (detach, integer index, no_grad) or multiplied by zero",
       "the evidence lists the parameters; look at the stage that they feed"},
      {c::kGradcheck, "The backward pass of an op does not match its forward pass", "gradient", block,
       "a wrong or missing term in the derivative", "the evidence has op, input, numeric and analytic values"},
      {c::kInplaceWrite, "Something that autograd kept for the backward pass was overwritten in place", "gradient",
       block, "a reused workspace or a view is written after it was saved; forward-only runs never see it",
       "pack into fresh tensors while gradients are needed (safe packing); the evidence names the operation"},
      {c::kGraphBreak, "An output that should carry gradients does not", "gradient", block,
       "the op detaches, copies through an integer or runs under no_grad", "the evidence names op and input"},
      {c::kCompressedKeysDetached, "The compressed branch's keys are cut from the graph", "gradient", block,
       "K of the compressed branch is detached before attention: its projection never learns, yet nothing crashes",
       "remove the detach between the compression and the compressed attention"},

      // -- flags and routes
      {c::kEffectiveFlags, "Effective flags differ from the rule", "routing", block,
       "a flag is combined with a default instead of overriding it", "compare with the truth table in the evidence"},
      {c::kFlagIgnored, "A flag has no effect on what is executed", "routing", block,
       "the flag is read in one place and ignored in another: the operations that ran are not those of the route that "
       "the flag asks for",
       "the evidence lists the operations that must (not) have run; follow the flag through nsa/route.cpp and "
       "dispatch"},
      {c::kIllegalFlagAccepted, "An illegal setting was accepted, or refused with the wrong message", "routing", block,
       "a conflict or range is not checked", "the message must name variable, value and what is allowed"},
      {c::kStrictFallback, "A branch fell back to the reference", "routing", degrade,
       "NSA_STRICT_ASSERTS found a non-finite branch output and computed it again",
       "the counts are in the evidence; look for the branch's non-finite value with s_sweep"},

      // -- memory and performance
      {c::kExpandedKv, "Keys and values are expanded to every query head", "memory", block,
       "an expand and reshape copies K and V once per head of a group before attention",
       "attend with unexpanded keys (enable_gqa, or a batch of groups); expected gain: the ratio of bytes in the "
       "evidence"},
      {c::kBelowGate, "Throughput is below its gate", "performance", degrade,
       "see the other findings of this suite for where the time goes", "compare the stage shares in the evidence"},
      {c::kFarBelowGate, "Throughput is below half of its gate, or nothing moves", "performance", block,
       "host-bound loops, copies of K and V, or a stall; see the other findings of this suite",
       "compare the stage shares in the evidence; do not start a long run"},
      {c::kHostBound, "The host, not the GPU, sets the pace", "performance", warn,
       "many small launches or host synchronisation: CPU busy, GPU waiting",
       "fewer launches (larger batch, fused or graph-captured steps); the figures are in the evidence"},
      {c::kPackingOverhead, "Safe packing costs more than it should", "performance", warn,
       "allocation dominates: the gathered selection is large against its arithmetic",
       "use the masked selection for this shape (NSA_FORCE_SEL_MASK=1)"},
      {c::kLayerScaling, "Time does not grow in proportion to the layers", "performance", warn,
       "a cost that grows with depth (allocator pressure, retained tensors) or a large fixed one",
       "see the times per layer count in the evidence"},
      {c::kWorkspaceNotReused, "The path without gradients does not write the reused workspace", "memory", block,
       "packing always allocates, or the route record says packed while another way ran",
       "check the route of attend_selected when gradients are off"},
      {c::kTimingUnusable, "Times scatter too much to be judged", "performance", warn,
       "another load on the machine, or a clock that moves", "repeat on a quiet machine"},
  };
}

}  // namespace suites
