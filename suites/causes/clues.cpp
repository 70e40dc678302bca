#include "suites/causes/clues.hpp"

#include "suites/codes.hpp"

namespace suites::cause_table {

using namespace codes;

Clues together(std::initializer_list<Clues> parts) {
  Clues all;
  for (const Clues& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Clues of_a_nan() {
  return {{.codes = {kNonFiniteForward, kNonFiniteBackward, kLengthPattern, kNonFiniteLoss, kNonFiniteGradientStep,
                     kNonFiniteMask, kHiddenNonFinite, kNonFiniteOnce, kStrictFallback, kEmptyRowNan}},
          {.codes = {}, .values = kNonFinite},
          {.codes = {kGuardMissed, kFarBelowGate, kIdentity, kFutureLeak, kOutputBudget, kGradientBudget, kGradcheck,
                     kNoGradient, kPackedDiffers, kWaysDiffer, kModelIdentity, kSweepPattern, kLossBelowFloor}}};
}

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

Clues of_decoding() { return {{.codes = {kWaysDiffer, kDecodeChoice, kReadsLaw, kModelIdentity, kSelectionDiffers}}}; }

}  // namespace suites::cause_table
