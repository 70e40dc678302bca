// The ops seam: Native Sparse Attention as a table of seven functions: six parts, and `attend`, which is all of them
// but `compress`. Model code calls `compress` and `attend`; a backend fills the table (reference/, sdpa/, flash/,
// cuda/), route.hpp decides which backend serves which function, and anything may wrap them.
//
// Shapes (B batch, S tokens, Hq query heads, G groups, h = Hq/G, Dk/Dv widths, N_c compressed blocks):
//   q [B,S,Hq,Dk], k [B,S,G,Dk], v [B,S,G,Dv], head j belongs to group j / h; one floating dtype, one device.
//   lse natural log, fp32 (fp64 for fp64 inputs), [B,Hq,S]; -inf for a row that sees nothing (its output is exactly 0
//   and its gradients are exactly 0, never NaN). A backend that has no LSE leaves it undefined.
// Softmax, LSE, scores and gates are computed in fp32 (fp64 for fp64) whatever the storage dtype; scale 1/sqrt(Dk).
// Every function checks shapes, dtypes and the contract of cu_seqlens before it computes, and throws ContractError.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"

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

// Throws ContractError unless d divides l and l', l <= l', n >= 3 and all are positive. `op` begins the message.
void check_geometry(std::string_view op, const Geometry& g);

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

// The three branches, the choice of blocks and their gated sum (Eq 5): what attention is between its projections.
struct AttendArgs {
  at::Tensor q;  // [B,S,Hq,Dk]
  Compressed kv;
  at::Tensor k_sel, v_sel, k_win, v_win;  // [B,S,G,Dk], [B,S,G,Dv]
  at::Tensor gates;                       // [B,S,G,3] in the order cmp, sel, win
  Geometry geometry;
  CuSeqlens cu_seqlens;
  std::optional<at::Tensor> blocks = std::nullopt;  // [B,S,G,n] as `select` gives them; absent: chosen by q and kv.k

  // The branch that runs alone: the result is its output, and what only the others need may be undefined.
  ForcedBranch only = ForcedBranch::none;
  // Called, when set, with the stages "cmp.o", "blocks", "sel.o", "win.o" as they are computed. Where gradients are
  // needed their gradients arrive at hooks on these tensors, whichever way attention goes; what a hook returns counts
  // only part by part. Costs nothing when unset.
  std::function<void(std::string_view stage, const at::Tensor& value)> observe = {};
  bool nvtx = false;  // ranges round the parts (NSA_NVTX)
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
  // maximum); (-inf, 0) for a row that sees nothing. Not differentiable.
  at::Tensor stats = {};
};

// One function of the table. It is called like a function; to replace it, say Ops::replace, because `attend` may have
// to change with it.
template <typename Result, typename Args>
class OpFunction {
 public:
  OpFunction() = default;
  template <typename Call>
  requires(!std::same_as<std::remove_cvref_t<Call>, OpFunction> && std::is_invocable_r_v<Result, Call&, const Args&>)
      // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): `requires` rules copies out
      OpFunction(Call&& call)  // implicit: a table is written as a list of functions
      : call_(std::forward<Call>(call)) {}
  OpFunction(const OpFunction&) = default;
  OpFunction(OpFunction&&) noexcept = default;
  ~OpFunction() = default;

  Result operator()(const Args& args) const { return call_(args); }
  explicit operator bool() const { return static_cast<bool>(call_); }

 private:
  friend struct Ops;
  OpFunction& operator=(const OpFunction&) = default;
  OpFunction& operator=(OpFunction&&) noexcept = default;

  std::function<Result(const Args&)> call_;
};

// How a table computes `attend`.
enum class AttendWay {
  in_parts,  // one function of the table after the other (nsa/attend.hpp)
  in_one     // by a function of its own, one node of autograd
};

struct Ops {
  OpFunction<Compressed, CompressArgs> compress;
  OpFunction<Attended, AttendCompressedArgs> attend_compressed;
  OpFunction<at::Tensor, SelectArgs> select;
  OpFunction<Attended, AttendSelectedArgs> attend_selected;
  OpFunction<Attended, AttendWindowArgs> attend_window;
  OpFunction<at::Tensor, CombineArgs> combine;
  OpFunction<at::Tensor, AttendArgs> attend;  // [B,S,Hq,Dv]
  AttendWay way = AttendWay::in_parts;        // of `attend`

  Ops() = default;
  // The parts in the order above; `attend` goes part by part.
  Ops(OpFunction<Compressed, CompressArgs> pool, OpFunction<Attended, AttendCompressedArgs> cmp,
      OpFunction<at::Tensor, SelectArgs> choose, OpFunction<Attended, AttendSelectedArgs> sel,
      OpFunction<Attended, AttendWindowArgs> win, OpFunction<at::Tensor, CombineArgs> sum);
  // The same parts with an `attend` of its own, which computes what they would.
  [[nodiscard]] Ops in_one(OpFunction<at::Tensor, AttendArgs> function) const;
  // The same parts, and `attend` by them.
  [[nodiscard]] Ops in_parts() const;

  // Puts a function in the place of another. After a part was replaced `attend` goes part by part, whatever it was
  // before, so that nobody's part is passed over; `compress` is no part of it. To be asked without changing the way
  // that attention takes, replace `attend` itself.
  template <typename Result, typename Args>
  void replace(OpFunction<Result, Args> Ops::*member, std::type_identity_t<OpFunction<Result, Args>> by) {
    this->*member = std::move(by);
    if constexpr (!std::same_as<Args, AttendArgs> && !std::same_as<Args, CompressArgs>) attend_by_parts();
  }

 private:
  void attend_by_parts();
};

}  // namespace nsa
