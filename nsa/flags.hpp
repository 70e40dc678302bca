// The NSA_* environment variables: ONE table, the only place that reads the environment, and pure functions from what
// was read to what it means. No torch call.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace nsa {

using Environment = std::map<std::string, std::string>;  // name -> value, only names that start with NSA_

// The NSA_* variables of this process.
[[nodiscard]] Environment read_environment();

// Threads of OpenMP that wait for work sleep instead of spinning, unless the user has said how they wait
// (OMP_WAIT_POLICY, GOMP_SPINCOUNT): on a busy machine spinning takes the processor from the thread that is waited for,
// and a step takes ten times as long. libgomp reads that before main(), so the program is started once more with it, by
// the arguments `argv`; where that cannot be done it goes on as it is.
void wait_without_spinning(char* const* argv);

struct FlagSpec {
  std::string_view name;           // "NSA_USE_FA2"
  std::string_view type;           // "bool", "int", "real", "branch"
  std::string_view default_value;  // "unset", "0", "1", ...
  std::string_view allowed;        // in words
  std::string_view meaning;
};
[[nodiscard]] std::span<const FlagSpec> flag_table();

enum class ForcedBranch { none, cmp, sel, win };

// Whether our own kernels serve what they can where NSA_USE_CUDA says nothing. The one place to turn them on.
inline constexpr bool kCudaByDefault = true;

// Where the value of a field comes from.
struct FlagOrigin {
  // For records: "default", "NSA_USE_FA2=1", "default (NSA_USE_SEL_MASK counts only with NSA_USE_SEL_PACK=0)".
  std::string text = "default";
  bool is_variable = false;  // `text` is the environment variable that decided, as it was set
};

// What the flags mean together, after all rules (nsa/README.md, "Flags"). The FlashAttention-2 rule is the seeds':
// NSA_USE_FA2=0 disables all three, =1 enables all three, NSA_USE_FA2_WIN / _CMP refine one branch.
struct EffectiveFlags {
  bool fa2_all = false, fa2_win = false, fa2_cmp = false;
  std::int64_t fa2_min_len_win = 16, fa2_min_len_cmp = 16;  // <= 0: never
  bool fa2_force_dense = false, fa2_force_varlen = false;   // which FlashAttention-2 entry point the window takes
  bool use_cuda = kCudaByDefault;  // NSA_USE_CUDA: our own kernels where they serve the call and nothing else was asked
  bool fused_project = true;       // NSA_FUSED_PROJECT: one product, RoPE and gate in a kernel each
  bool sel_pack = true;            // NSA_USE_SEL_PACK as set: gathered selection, unless sel_mask
  bool sel_mask = false;           // effective: NSA_FORCE_SEL_MASK, or NSA_USE_SEL_MASK with NSA_USE_SEL_PACK=0
  bool force_parity = false;       // NSA_FORCE_PARITY: every branch by `reference`
  bool train_safe_pack = false;    // NSA_TRAIN_SAFE_PACK: no reused workspace even without gradients
  bool strict_asserts = false;     // non-finite branch output -> counted fallback to `reference`
  bool uniform_gate = false;       // NSA_FORCE_UNIFORM_GATE: 1/3 each
  bool stopgrad_gates = false;
  bool fused_norm = true;       // NSA_FUSED_NORM: the residual's addition and RMSNorm in one of our own kernels
  bool fused_mlp = true;        // NSA_FUSED_MLP: the MLP as one node, its residual added by the next norm
  bool fused_silu = true;       // NSA_FUSED_SILU: the joined MLP's SiLU in the products before it
  bool fused_embedding = true;  // NSA_FUSED_EMBEDDING: the embedding's gradient as one product
  bool fused_update = true;     // NSA_FUSED_UPDATE: the gradients' norm, clipping, casts and AdamW by our own kernels
  ForcedBranch forced_branch = ForcedBranch::none;
  double rope_scale = 1.0;
  bool nvtx = false;
  bool detect_anomaly = false;
  bool fused_decode = true;                  // NSA_FUSED_DECODE: attention of a decoding step in a few launches
  bool graph_calls = true;                   // NSA_GRAPH_CALLS: the kernels of a call as one CUDA graph
  std::map<std::string, FlagOrigin> origin;  // by field name; empty in flags that nobody resolved
};

// The origin of a field; the default where the flags have none for it.
[[nodiscard]] FlagOrigin origin_of(const EffectiveFlags& flags, const std::string& field);

// Which flag keeps a part beside attention from our own kernels, as it was set: the part's own switch `field`
// ("fused_norm"), NSA_USE_CUDA or NSA_FORCE_PARITY. "" where none does.
[[nodiscard]] std::string flag_against(const EffectiveFlags& flags, bool on, const std::string& field);

// Field name -> canonical text ("fa2_win" -> "false"), for records.
[[nodiscard]] std::map<std::string, std::string> flatten(const EffectiveFlags& flags);

// A variable that is not in the table, with the nearest name (or "" ) or the remark "retired, no effect".
struct UnknownFlag {
  std::string name, nearest, remark;
};
[[nodiscard]] std::vector<UnknownFlag> unknown_flags(const Environment& environment);

class FlagInvalid : public std::runtime_error {  // names variable, value, allowed; contradictory settings too
 public:
  using std::runtime_error::runtime_error;
};

// Booleans: 0/1, false/true, no/yes, off/on, in any case. Names that are not in the table are not looked at
// (unknown_flags reports them). Throws FlagInvalid for a value outside its type and for settings that
// contradict one another (NSA_FA2_FORCE_DENSE with NSA_FA2_FORCE_VARLEN; NSA_FORCE_BRANCH with
// NSA_FORCE_UNIFORM_GATE; NSA_USE_SEL_PACK=0 with neither mask flag set).
[[nodiscard]] EffectiveFlags resolve(const Environment& environment);

}  // namespace nsa
