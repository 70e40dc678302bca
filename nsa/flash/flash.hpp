// Backend `flash`: ATen's FlashAttention-2 (windowed, dense, varlen) for the window and for the compressed branch; the
// rest of the six comes from sdpa. CUDA only, bf16/fp16, sm_80 and newer, Dk = Dv. K and V are never copied per query
// head; both branches give their LSE.
#pragma once

#include "nsa/ops.hpp"

namespace nsa::flash {

enum class Entry { dense, varlen };

// Windowed causal attention over exactly w tokens. A packed batch takes the varlen entry whatever `entry` says.
// Throws Unsupported on the CPU, for fp32/fp64 and for widths that FlashAttention-2 does not serve; the reason
// is route.hpp's flash_refusal.
[[nodiscard]] Attended attend_window(const AttendWindowArgs& args, Entry entry);
// Compressed attention as plain causal attention between the N_c strides and the N_c blocks of a document, see
// Note [Strides as queries] in compressed.cpp; always the varlen entry. Throws Unsupported as above.
[[nodiscard]] Attended attend_compressed(const AttendCompressedArgs& args);

[[nodiscard]] Ops ops(Entry entry = Entry::dense);

}  // namespace nsa::flash
