// The flags by name: those that mean something, and those that no longer do.
#include <algorithm>
#include <array>

#include "base/nearest.hpp"
#include "nsa/flags.hpp"

namespace nsa {

namespace {

constexpr std::string_view kBool = "0/1, false/true, no/yes, off/on";
constexpr std::string_view kLength = "an integer from -1 to 1048576; 0 and below: never";

constexpr std::array kFlags = {
    FlagSpec{"NSA_USE_FA2", "bool", "unset", kBool,
             "FlashAttention-2: 0 disables every branch, 1 enables both where NSA_USE_FA2_WIN / _CMP say nothing else"},
    FlagSpec{"NSA_USE_FA2_WIN", "bool", "unset", kBool, "FlashAttention-2 for the window (unless NSA_USE_FA2=0)"},
    FlagSpec{"NSA_USE_FA2_CMP", "bool", "unset", kBool,
             "FlashAttention-2 for the compressed branch (unless NSA_USE_FA2=0)"},
    FlagSpec{"NSA_FA2_MIN_LEN_WIN", "int", "16", kLength, "shortest sequence for FlashAttention-2 in the window"},
    FlagSpec{"NSA_FA2_MIN_LEN_CMP", "int", "16", kLength,
             "shortest sequence for FlashAttention-2 in the compressed branch"},
    FlagSpec{"NSA_FA2_FORCE_DENSE", "bool", "0", kBool, "the window takes FlashAttention-2's dense entry only"},
    FlagSpec{"NSA_FA2_FORCE_VARLEN", "bool", "0", kBool, "the window takes FlashAttention-2's varlen entry"},
    FlagSpec{"NSA_USE_CUDA", "bool", kCudaByDefault ? "1" : "0", kBool,
             "our own kernels, where they serve the call; a branch that asks for FlashAttention-2 or a mask keeps it"},
    FlagSpec{"NSA_GRAPH_CALLS", "bool", "1", kBool,
             "the kernels of an attention call as one CUDA graph, which takes the host less time than their launches"},
    FlagSpec{"NSA_FUSED_DECODE", "bool", "1", kBool,
             "attention of a decoding step over the caches in a few launches, where our own kernels serve it"},
    FlagSpec{"NSA_FUSED_NORM", "bool", "1", kBool,
             "the residual's addition and RMSNorm in one kernel each way, where our own kernels serve them"},
    FlagSpec{"NSA_FUSED_PROJECT", "bool", "1", kBool,
             "one product for all projections, RoPE and gate in a kernel each, where our own kernels serve the call"},
    FlagSpec{"NSA_FUSED_MLP", "bool", "1", kBool,
             "the MLP as one node of autograd, its residual added by the next norm, where our own kernels run"},
    FlagSpec{"NSA_FUSED_SILU", "bool", "1", kBool,
             "the SiLU of the MLP in one node, and its derivative, in the product before it, where our own kernels "
             "serve it"},
    FlagSpec{"NSA_FUSED_EMBEDDING", "bool", "1", kBool,
             "the embedding's gradient as one product, where our own kernels run and the vocabulary is small"},
    FlagSpec{"NSA_FUSED_UPDATE", "bool", "1", kBool,
             "the gradients' norm, clipping, casts and AdamW by our own kernels, where they serve the parameters"},
    FlagSpec{"NSA_USE_SEL_PACK", "bool", "1", kBool, "selection gathers the chosen blocks"},
    FlagSpec{"NSA_USE_SEL_MASK", "bool", "0", kBool, "selection by a mask when NSA_USE_SEL_PACK is 0"},
    FlagSpec{"NSA_FORCE_SEL_MASK", "bool", "0", kBool, "selection by a mask, whatever NSA_USE_SEL_PACK says"},
    FlagSpec{"NSA_FORCE_PARITY", "bool", "0", kBool, "every function by the reference"},
    FlagSpec{"NSA_TRAIN_SAFE_PACK", "bool", "0", kBool,
             "gathered selection never writes into a reused workspace (always so when gradients are needed)"},
    FlagSpec{"NSA_STRICT_ASSERTS", "bool", "0", kBool,
             "a branch output that is not finite is replaced by the reference's, counted and reported"},
    FlagSpec{"NSA_FORCE_UNIFORM_GATE", "bool", "0", kBool, "every gate is 1/3"},
    FlagSpec{"NSA_STOPGRAD_GATES", "bool", "0", kBool, "no gradient flows into the gates"},
    FlagSpec{"NSA_FORCE_BRANCH", "branch", "none", "none, cmp, sel, win", "the output is this branch alone"},
    FlagSpec{"NSA_ROPE_SCALE", "real", "1", "a number from 1e-06 to 1e+06",
             "RoPE's positions are divided by it: at 4, token 4000 turns as token 1000 does without; below 1 they are "
             "stretched"},
    FlagSpec{"NSA_NVTX", "bool", "0", kBool, "NVTX ranges round every stage"},
    FlagSpec{"NSA_DETECT_ANOMALY", "bool", "0", kBool, "autograd's anomaly mode in training steps"},
};

// What the Python system before this one read or documented, and this one does not; '*' ends a prefix. Named here so
// that an old launch script is told that its settings have no effect, instead of being told of typos.
constexpr auto kRetired = std::to_array<std::string_view>({"NSA_ACCUM",
                                                           "NSA_ALLOW_ADA",
                                                           "NSA_ALLOW_SINGLE_RANK",
                                                           "NSA_ALLOW_SLIDING_FA2",
                                                           "NSA_BATCH_SIZE",
                                                           "NSA_CHUNK_T",
                                                           "NSA_DATALOADER_*",
                                                           "NSA_DDP_*",
                                                           "NSA_DEBUG_BUILD",
                                                           "NSA_DEBUG_COMPARE",
                                                           "NSA_DEBUG_LOG",
                                                           "NSA_DEBUG_LOSS",
                                                           "NSA_DEBUG_SHAPES",
                                                           "NSA_DEBUG_TIMING",
                                                           "NSA_DEBUG_TRAIN",
                                                           "NSA_DISABLE_AUX_STATS",
                                                           "NSA_DISABLE_CSV_LOGS",
                                                           "NSA_DTYPE",
                                                           "NSA_ENABLE_FA2",
                                                           "NSA_ENV_STATIC",
                                                           "NSA_FA2_ALLOW_D_GT_128",
                                                           "NSA_FA2_ALLOW_FP32",
                                                           "NSA_FA2_ALLOW_LARGE_BATCH",
                                                           "NSA_FA2_AUDIT",
                                                           "NSA_FA2_FORCE",
                                                           "NSA_FA2_HARD_FAIL",
                                                           "NSA_FA2_PREF_FP16",
                                                           "NSA_FSDP_*",
                                                           "NSA_FWE_*",
                                                           "NSA_GATE_COMPILE",
                                                           "NSA_GC_RANGE",
                                                           "NSA_GC_REENTRANT",
                                                           "NSA_HEARTBEAT_EVERY",
                                                           "NSA_INTEGRATION_TESTS",
                                                           "NSA_LOG_GRAD_NORM",
                                                           "NSA_LOG_LIMIT",
                                                           "NSA_LR",
                                                           "NSA_MAX_SEQ_LEN",
                                                           "NSA_MEM_DUMP_EVERY",
                                                           "NSA_NO_GC",
                                                           "NSA_OPT_FUSED",
                                                           "NSA_PARITY_OK",
                                                           "NSA_PG_TIMEOUT_MIN",
                                                           "NSA_PREFILL_BATCHED",
                                                           "NSA_PREFILL_TILE",
                                                           "NSA_P_CMP_MIXED",
                                                           "NSA_P_GRP_FP32",
                                                           "NSA_P_SLC_MIXED",
                                                           "NSA_REQUIRE_VARLEN_SEMANTIC",
                                                           "NSA_SCALER_*",
                                                           "NSA_SDPA_AUDIT",
                                                           "NSA_SDPA_FLASH_ONLY",
                                                           "NSA_SDPA_NO_FLASH",
                                                           "NSA_SEL_CUDA",
                                                           "NSA_SEL_CUDA_BUILD",
                                                           "NSA_SEL_PACK_RESERVE_L",
                                                           "NSA_SEL_PACK_RESERVE_N",
                                                           "NSA_SEL_RANGES_V2*",
                                                           "NSA_SEL_TRITON_*",
                                                           "NSA_SEL_VARLEN_FORCE_PARITY",
                                                           "NSA_SEL_VARLEN_MIN_L",
                                                           "NSA_SEL_VARLEN_V2",
                                                           "NSA_SEQ_LEN",
                                                           "NSA_TB_DISABLE",
                                                           "NSA_TEST_*",
                                                           "NSA_TF32_MATMUL",
                                                           "NSA_TRACE_DDP_BUCKETS",
                                                           "NSA_TRACE_GRADS",
                                                           "NSA_TRACE_MODULE_BWD",
                                                           "NSA_TRAIN_BS",
                                                           "NSA_TRAIN_CLIP",
                                                           "NSA_TRAIN_LR",
                                                           "NSA_TRAIN_MAX_LEN",
                                                           "NSA_TRAIN_SEED",
                                                           "NSA_TRAIN_STEPS",
                                                           "NSA_TRAIN_WARMUP",
                                                           "NSA_TRITON_SEL*",
                                                           "NSA_USE_CMP_MASK",
                                                           "NSA_USE_FA2_SEL",
                                                           "NSA_USE_SEL_VARLEN",
                                                           "NSA_USE_TRITON_SEL",
                                                           "NSA_USE_WIN_MASK",
                                                           "NSA_VALIDATE_SELECTION_DETERMINISM",
                                                           "NSA_VARLEN_RESERVE_K",
                                                           "NSA_VARLEN_RESERVE_N",
                                                           "NSA_VERIFY_EQ9_MAPPING",
                                                           "NSA_WATCH_*",
                                                           "NSA_WIN_FORCE_DENSE"});

bool retired(std::string_view name) {
  return std::any_of(kRetired.begin(), kRetired.end(), [&](std::string_view pattern) {
    if (!pattern.ends_with('*')) return name == pattern;
    pattern.remove_suffix(1);
    return name.starts_with(pattern);
  });
}

}  // namespace

std::span<const FlagSpec> flag_table() { return kFlags; }

std::vector<UnknownFlag> unknown_flags(const Environment& environment) {
  constexpr std::string_view kPrefix = "NSA_";            // shared by all, so it says nothing about likeness
  constexpr std::string_view kAdapters = "NSA_ADAPTER_";  // read by somebody's adapter, in a process of its own
  std::vector<std::string_view> stems;
  stems.reserve(std::size(kFlags));
  for (const auto& flag : kFlags) stems.push_back(flag.name.substr(kPrefix.size()));

  std::vector<UnknownFlag> unknown;
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(kPrefix) || name.starts_with(kAdapters)) continue;
    const std::string stem = name.substr(kPrefix.size());
    if (std::find(stems.begin(), stems.end(), stem) != stems.end()) continue;
    if (retired(name)) {
      unknown.push_back({name, "", "retired, no effect"});
      continue;
    }
    const std::string near = base::nearest(stem, stems);
    unknown.push_back({name, near.empty() ? "" : std::string(kPrefix) + near, ""});
  }
  return unknown;
}

}  // namespace nsa
