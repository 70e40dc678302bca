// The ops seam: the six functions of Native Sparse Attention as a table. Model code calls only this; a backend fills
// it (reference/, sdpa/, flash/, cuda/), route.hpp decides which backend serves which function, and anything may wrap
// it.
//
// Shapes (B batch, S tokens, Hq query heads, G groups, h = Hq/G, Dk/Dv widths, N_c compressed blocks):
//   q [B,S,Hq,Dk], k [B,S,G,Dk], v [B,S,G,Dv], head j belongs to group j / h; one floating dtype, one device.
//   lse natural log, fp32 (fp64 for fp64 inputs), [B,Hq,S]; -inf for a row that sees nothing (its output is exactly 0
//   and its gradients are exactly 0, never NaN). A backend that has no LSE leaves it undefined.
// Softmax, LSE, scores and gates are computed in fp32 (fp64 for fp64) whatever the storage dtype; scale 1/sqrt(Dk).
// Every function checks shapes, dtypes and the contract of cu_seqlens before it computes, and throws ContractError.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "nsa/config.hpp"

namespace nsa {

// An argument breaks a contract: names the tensor, what came and what is allowed. Thrown before anything is launched.
class ContractError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};
// The backend does not serve this call (device, dtype, width, budget): says what was asked, what is supported and which
// backend to use. Routing asks before (route.hpp), so it surfaces only when a backend is called directly.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A packed batch: B = 1, documents laid end to end. int32, on the CPU, [documents + 1], starts at 0, does not decrease,
// ends at S; empty documents are allowed. Blocks are counted from each document's start and never cross it; no query
// sees another document.
using CuSeqlens = std::optional<at::Tensor>;
// Throws ContractError with index and values. Every op calls it first.
void check_cu_seqlens(const at::Tensor& cu_seqlens, std::int64_t total);
// [(begin, end)) of every document; one pair (0, S) without cu_seqlens.
[[nodiscard]] std::vector<std::pair<std::int64_t, std::int64_t>> documents(const CuSeqlens& cu_seqlens, std::int64_t S);

[[nodiscard]] std::int64_t compressed_blocks(const Geometry& g, std::int64_t S);  // floor((S-l)/d)+1, 0 for S < l
// The blocks of all documents together: what a packed batch has in `Compressed`.
[[nodiscard]] std::int64_t compressed_blocks(const Geometry& g, const CuSeqlens& cu_seqlens, std::int64_t S);
[[nodiscard]] std::int64_t selection_blocks(const Geometry& g, std::int64_t S);  // ceil(S / l')

// fp64 for fp64, else fp32: the type of softmax, LSE, scores and gates.
[[nodiscard]] at::ScalarType accumulation_type(at::ScalarType storage);

// Learned compression (phi = mlp): vec(block + position) -> Linear(l*D, D) -> SiLU -> Linear(D, D), no biases.
struct PhiWeights {
  at::Tensor position;  // [l, D]
  at::Tensor fc1;       // [D, l*D]
  at::Tensor fc2;       // [D, D]
};

struct CompressArgs {
  at::Tensor k;  // [B,S,G,Dk], RoPE applied at token positions
  at::Tensor v;  // [B,S,G,Dv]
  Geometry geometry;
  CuSeqlens cu_seqlens;
  std::optional<PhiWeights> phi_k, phi_v;  // absent: mean over the block
};
// Packed: the documents' blocks one after another; document i has compressed_blocks(its length) of them.
struct Compressed {
  at::Tensor k;  // [B,N_c,G,Dk]
  at::Tensor v;  // [B,N_c,G,Dv]
};

struct AttendCompressedArgs {
  at::Tensor q;  // [B,S,Hq,Dk]
  Compressed kv;
  Geometry geometry;
  CuSeqlens cu_seqlens;
};
struct SelectArgs {  // not differentiated
  at::Tensor q;      // [B,S,Hq,Dk]
  at::Tensor k_cmp;  // [B,N_c,G,Dk]
  Geometry geometry;
  CuSeqlens cu_seqlens;
  // Attended::stats of attend_compressed on the same q and k_cmp; absent: computed again. Only cuda looks at it.
  std::optional<at::Tensor> stats = std::nullopt;
};
// blocks [B,S,G,n] int32, ascending, tail padded with -1; numbered from the start of the query's document.
struct AttendSelectedArgs {
  at::Tensor q, k, v;
  at::Tensor blocks;
  Geometry geometry;
  CuSeqlens cu_seqlens;
};
struct AttendWindowArgs {
  at::Tensor q, k, v;
  Geometry geometry;
  CuSeqlens cu_seqlens;
};
struct CombineArgs {
  at::Tensor gates;                // [B,S,G,3] in the order cmp, sel, win
  at::Tensor o_cmp, o_sel, o_win;  // [B,S,Hq,Dv]
};

// What attention gives to all of these but compress together (attend.hpp).
struct AttendArgs {
  at::Tensor q;  // [B,S,Hq,Dk]
  Compressed kv;
  at::Tensor k_sel, v_sel, k_win, v_win;  // [B,S,G,Dk], [B,S,G,Dv]
  at::Tensor gates;                       // [B,S,G,3] in the order cmp, sel, win
  Geometry geometry;
  CuSeqlens cu_seqlens;
  std::optional<at::Tensor> blocks = std::nullopt;  // [B,S,G,n] as `select` gives them; absent: chosen by q and kv.k
};

// What every function of every backend calls first: defined tensors, shapes that fit one another, one floating dtype
// and device, a geometry that can work, a sound cu_seqlens. Throws ContractError; reads no device memory (block numbers
// are looked at on the CPU only, where one that starts after its token is refused as well. On a GPU nobody looks: a
// number outside the document counts as padding, one that stands twice counts once, and of a block that starts after
// the token no key is seen). Sizes that fit if heads came before tokens are called so; with one key head for every
// query head they cannot be told apart.
void check(const CompressArgs& args);
void check(const AttendCompressedArgs& args);
void check(const SelectArgs& args);
void check(const AttendSelectedArgs& args);
void check(const AttendWindowArgs& args);
void check(const CombineArgs& args);
void check(const AttendArgs& args);

struct Attended {
  at::Tensor o;    // [B,S,Hq,Dv]
  at::Tensor lse;  // [B,Hq,S], or undefined
  // cuda only, else undefined: [B,Hq,S,2] fp32, the maximum of log2(e)/sqrt(Dk) * q.k and the sum of 2^(that -
  // maximum);
  // (-inf, 0) for a row that sees nothing. Not differentiable.
  at::Tensor stats = {};
};

struct Ops {
  std::function<Compressed(const CompressArgs&)> compress;
  std::function<Attended(const AttendCompressedArgs&)> attend_compressed;
  std::function<at::Tensor(const SelectArgs&)> select;
  std::function<Attended(const AttendSelectedArgs&)> attend_selected;
  std::function<Attended(const AttendWindowArgs&)> attend_window;
  std::function<at::Tensor(const CombineArgs&)> combine;
};

}  // namespace nsa
