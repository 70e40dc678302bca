// Names for the finding codes of codes.cpp, so that no suite spells one out.
#pragma once

#include <string_view>

namespace suites::codes {

// E: environment
inline constexpr std::string_view kTorchVersion = "NSA-E001";
inline constexpr std::string_view kCudaUnusable = "NSA-E002";
inline constexpr std::string_view kDriver = "NSA-E003";
inline constexpr std::string_view kForeignProcess = "NSA-E004";
inline constexpr std::string_view kStaleHalt = "NSA-E005";
inline constexpr std::string_view kConfigDrift = "NSA-E006";
inline constexpr std::string_view kBuildStale = "NSA-E007";
inline constexpr std::string_view kFlashUnavailable = "NSA-E008";
inline constexpr std::string_view kFirstBatch = "NSA-E009";
inline constexpr std::string_view kUnknownFlag = "NSA-E010";
inline constexpr std::string_view kRetiredFlag = "NSA-E011";
// I: initial values
inline constexpr std::string_view kParameterLaw = "NSA-I001";
inline constexpr std::string_view kGateZeroInit = "NSA-I002";
inline constexpr std::string_view kGateUniform = "NSA-I003";
inline constexpr std::string_view kParameterSet = "NSA-I004";
inline constexpr std::string_view kParameterPlacement = "NSA-I005";
// D: determinism
inline constexpr std::string_view kSeedBits = "NSA-D001";
// N: numerics
inline constexpr std::string_view kOutputBudget = "NSA-N001";
inline constexpr std::string_view kNonFiniteMask = "NSA-N002";
inline constexpr std::string_view kSelectionDiffers = "NSA-N003";
inline constexpr std::string_view kIdentity = "NSA-N004";
inline constexpr std::string_view kFutureLeak = "NSA-N005";
inline constexpr std::string_view kGradientBudget = "NSA-N006";
inline constexpr std::string_view kPackedDiffers = "NSA-N007";
inline constexpr std::string_view kOutputContract = "NSA-N008";
inline constexpr std::string_view kCuSeqlens = "NSA-N009";
inline constexpr std::string_view kBadInputAccepted = "NSA-N010";
// A: anomalies
inline constexpr std::string_view kNonFiniteForward = "NSA-A001";
inline constexpr std::string_view kNonFiniteBackward = "NSA-A002";
inline constexpr std::string_view kEmptyRowNan = "NSA-A003";
inline constexpr std::string_view kLengthPattern = "NSA-A004";
inline constexpr std::string_view kNonFiniteLoss = "NSA-A005";
inline constexpr std::string_view kNonFiniteGradientStep = "NSA-A006";
inline constexpr std::string_view kGuardMissed = "NSA-A007";
inline constexpr std::string_view kLossBelowFloor = "NSA-A008";
inline constexpr std::string_view kLossDoesNotFall = "NSA-A009";
inline constexpr std::string_view kInitialLoss = "NSA-A010";
inline constexpr std::string_view kAnomalyModeSilent = "NSA-A011";
inline constexpr std::string_view kLearningRate = "NSA-A012";
inline constexpr std::string_view kGradientNorm = "NSA-A013";
// G: gradients
inline constexpr std::string_view kNoGradient = "NSA-G001";
inline constexpr std::string_view kGradcheck = "NSA-G002";
inline constexpr std::string_view kInplaceWrite = "NSA-G003";
inline constexpr std::string_view kGraphBreak = "NSA-G004";
inline constexpr std::string_view kCompressedKeysDetached = "NSA-G005";
// F: flags and routes
inline constexpr std::string_view kEffectiveFlags = "NSA-F001";
inline constexpr std::string_view kFlagIgnored = "NSA-F002";
inline constexpr std::string_view kIllegalFlagAccepted = "NSA-F003";
inline constexpr std::string_view kStrictFallback = "NSA-F004";
// M: memory
inline constexpr std::string_view kExpandedKv = "NSA-M001";
// P: performance
inline constexpr std::string_view kBelowGate = "NSA-P001";
inline constexpr std::string_view kFarBelowGate = "NSA-P002";
inline constexpr std::string_view kHostBound = "NSA-P003";
inline constexpr std::string_view kPackingOverhead = "NSA-P004";
inline constexpr std::string_view kLayerScaling = "NSA-P005";
inline constexpr std::string_view kWorkspaceNotReused = "NSA-P006";
inline constexpr std::string_view kTimingUnusable = "NSA-P007";

}  // namespace suites::codes
