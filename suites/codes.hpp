// Names for the finding codes of codes.cpp, so that no suite spells one out.
#pragma once

#include <string_view>
#include <vector>

namespace harness {
struct Code;
}

namespace suites {
// All finding codes of the suites (codes.cpp); include harness/codes.hpp to look at one.
[[nodiscard]] std::vector<harness::Code> finding_codes();
}  // namespace suites

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
inline constexpr std::string_view kRunFolder = "NSA-E020";
inline constexpr std::string_view kHostResources = "NSA-E021";
inline constexpr std::string_view kGpuHeldBack = "NSA-E022";
inline constexpr std::string_view kGpuFault = "NSA-E023";
inline constexpr std::string_view kDoesNotFit = "NSA-E024";
inline constexpr std::string_view kHarmfulVariable = "NSA-E025";
inline constexpr std::string_view kThreadSettings = "NSA-E026";
inline constexpr std::string_view kAllocatorSettings = "NSA-E027";
inline constexpr std::string_view kUnexpectedFlags = "NSA-E028";
inline constexpr std::string_view kFixMissing = "NSA-E029";
inline constexpr std::string_view kNoKernels = "NSA-E030";
inline constexpr std::string_view kMachineLoad = "NSA-E031";
// I: initial values
inline constexpr std::string_view kParameterLaw = "NSA-I001";
inline constexpr std::string_view kGateZeroInit = "NSA-I002";
inline constexpr std::string_view kGateUniform = "NSA-I003";
inline constexpr std::string_view kParameterSet = "NSA-I004";
inline constexpr std::string_view kParameterPlacement = "NSA-I005";
inline constexpr std::string_view kActivationScale = "NSA-I010";
inline constexpr std::string_view kGradientScale = "NSA-I011";
inline constexpr std::string_view kGateEntropy = "NSA-I012";
inline constexpr std::string_view kStreamReused = "NSA-I013";
// D: determinism
inline constexpr std::string_view kSeedBits = "NSA-D001";
inline constexpr std::string_view kProcessBits = "NSA-D010";
inline constexpr std::string_view kResumeWeights = "NSA-D015";
inline constexpr std::string_view kResumeOptimizer = "NSA-D016";
inline constexpr std::string_view kResumeRandom = "NSA-D017";
inline constexpr std::string_view kResumeData = "NSA-D018";
inline constexpr std::string_view kTrainingRepeats = "NSA-D019";
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
inline constexpr std::string_view kWaysDiffer = "NSA-N020";
inline constexpr std::string_view kDecodeChoice = "NSA-N021";
inline constexpr std::string_view kReadsLaw = "NSA-N022";
inline constexpr std::string_view kBackendsDiffer = "NSA-N023";
inline constexpr std::string_view kRelativeShift = "NSA-N024";
inline constexpr std::string_view kModelIdentity = "NSA-N025";
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
inline constexpr std::string_view kHiddenNonFinite = "NSA-A020";
inline constexpr std::string_view kWatchOverhead = "NSA-A021";
inline constexpr std::string_view kPoisonLeak = "NSA-A022";
inline constexpr std::string_view kOverflowHidden = "NSA-A023";
inline constexpr std::string_view kLengthOutOfMemory = "NSA-A024";
inline constexpr std::string_view kNonFiniteOnce = "NSA-A025";
inline constexpr std::string_view kUninitialisedRead = "NSA-A026";
inline constexpr std::string_view kSweepPattern = "NSA-A027";
inline constexpr std::string_view kSweepHole = "NSA-A028";
inline constexpr std::string_view kSuspiciousFall = "NSA-A030";
inline constexpr std::string_view kTrainingDtype = "NSA-A031";
inline constexpr std::string_view kStepTimeGrows = "NSA-A032";
inline constexpr std::string_view kStepStalls = "NSA-A033";
inline constexpr std::string_view kAccumulation = "NSA-A034";
inline constexpr std::string_view kWrongUpdate = "NSA-A035";
inline constexpr std::string_view kValidationLoss = "NSA-A036";
inline constexpr std::string_view kHaltRecord = "NSA-A037";
inline constexpr std::string_view kNotResumable = "NSA-A038";
inline constexpr std::string_view kSplitOverlap = "NSA-A039";
inline constexpr std::string_view kCapturedStep = "NSA-A040";
// G: gradients
inline constexpr std::string_view kNoGradient = "NSA-G001";
inline constexpr std::string_view kGradcheck = "NSA-G002";
inline constexpr std::string_view kInplaceWrite = "NSA-G003";
inline constexpr std::string_view kGraphBreak = "NSA-G004";
inline constexpr std::string_view kCompressedKeysDetached = "NSA-G005";
inline constexpr std::string_view kInsensitive = "NSA-G010";
inline constexpr std::string_view kNotSilenced = "NSA-G011";
inline constexpr std::string_view kGradientArrivals = "NSA-G012";
inline constexpr std::string_view kRecomputeDiffers = "NSA-G013";
inline constexpr std::string_view kAccumulationDiffers = "NSA-G014";
inline constexpr std::string_view kSecondBackward = "NSA-G015";
inline constexpr std::string_view kDoubleBackward = "NSA-G016";
inline constexpr std::string_view kForeignKey = "NSA-G017";
// F: flags and routes
inline constexpr std::string_view kEffectiveFlags = "NSA-F001";
inline constexpr std::string_view kFlagIgnored = "NSA-F002";
inline constexpr std::string_view kIllegalFlagAccepted = "NSA-F003";
inline constexpr std::string_view kStrictFallback = "NSA-F004";
inline constexpr std::string_view kRefusalWithoutReason = "NSA-F010";
inline constexpr std::string_view kRouteRecord = "NSA-F011";
inline constexpr std::string_view kContractNotEnforced = "NSA-F012";
inline constexpr std::string_view kFlagOrigin = "NSA-F013";
inline constexpr std::string_view kFlagsMovedAfterConstruction = "NSA-F014";
inline constexpr std::string_view kPairsNotCovered = "NSA-F015";
inline constexpr std::string_view kFlagNotObeyed = "NSA-F016";
inline constexpr std::string_view kDebuggingFlag = "NSA-F017";
// M: memory
inline constexpr std::string_view kExpandedKv = "NSA-M001";
inline constexpr std::string_view kMemoryLaw = "NSA-M010";
inline constexpr std::string_view kStepBytes = "NSA-M011";
inline constexpr std::string_view kFragmented = "NSA-M012";
inline constexpr std::string_view kHostMemoryGrows = "NSA-M020";
inline constexpr std::string_view kDeviceMemoryGrows = "NSA-M021";
// P: performance
inline constexpr std::string_view kBelowGate = "NSA-P001";
inline constexpr std::string_view kFarBelowGate = "NSA-P002";
inline constexpr std::string_view kHostBound = "NSA-P003";
inline constexpr std::string_view kPackingOverhead = "NSA-P004";
inline constexpr std::string_view kLayerScaling = "NSA-P005";
inline constexpr std::string_view kWorkspaceNotReused = "NSA-P006";
inline constexpr std::string_view kTimingUnusable = "NSA-P007";
inline constexpr std::string_view kGpuIdle = "NSA-P010";
inline constexpr std::string_view kHostShare = "NSA-P011";
inline constexpr std::string_view kHostSyncs = "NSA-P012";
inline constexpr std::string_view kHostLoop = "NSA-P013";
inline constexpr std::string_view kSlower = "NSA-P014";
inline constexpr std::string_view kBaselineUnusable = "NSA-P015";
inline constexpr std::string_view kCannotTell = "NSA-P016";
inline constexpr std::string_view kFaster = "NSA-P017";
inline constexpr std::string_view kStepTimeGrowth = "NSA-P018";
inline constexpr std::string_view kTimeLaw = "NSA-P019";
inline constexpr std::string_view kDataLoading = "NSA-P020";
inline constexpr std::string_view kShapeSlow = "NSA-P021";
inline constexpr std::string_view kTraceUnavailable = "NSA-P022";
inline constexpr std::string_view kNotCaptured = "NSA-P023";

}  // namespace suites::codes
