// Which backend serves which of the seven functions, and why: a pure function of flags, shape, dtype, device
// and mode. The choice is recorded by whoever executes it (dispatch.hpp), so that a report shows what was
// asked, what ran and why.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nsa/config.hpp"
#include "nsa/flags.hpp"

namespace nsa {

enum class Backend { reference, sdpa, flash, cuda };
inline constexpr std::array kAllBackends = {Backend::cuda, Backend::sdpa, Backend::flash, Backend::reference};
enum class Op { compress, attend_compressed, select, attend_selected, attend_window, combine, attend };
inline constexpr std::array kAllOps = {Op::compress,      Op::attend_compressed, Op::select, Op::attend_selected,
                                       Op::attend_window, Op::combine,           Op::attend};
// The parts of `attend`.
inline constexpr std::array kAttendParts = {Op::attend_compressed, Op::select, Op::attend_selected, Op::attend_window,
                                            Op::combine};
[[nodiscard]] std::string_view to_string(Backend backend);
[[nodiscard]] std::string_view to_string(Op op);

// The call that is to be routed. `cuda_major` / `cuda_minor`: compute capability, 0.0 on the CPU.
struct Call {
  std::int64_t B = 1, S = 1, Hq = 1, G = 1, Dk = 64, Dv = 64;
  Geometry geometry;
  Precision precision = Precision::fp32;
  bool cuda = false;
  int cuda_major = 0, cuda_minor = 0;
  bool packed = false;    // cu_seqlens given
  bool training = false;  // gradients are needed
  Phi phi = Phi::avg;
};

// A backend that was asked for and does not serve a call of this function.
struct Refused {
  Op op = Op::compress;
  Backend backend = Backend::sdpa;
  std::string why;  // its own reason alone: "device is cpu"
  auto operator<=>(const Refused&) const = default;
};

// Which way inside a backend: of attend_selected in sdpa packed, packed_safe or masked; of attend_window and
// attend_compressed in flash dense or varlen; of attend in_one or in_parts; else none.
enum class RouteVariant { none, packed, packed_safe, masked, dense, varlen, in_one, in_parts };
[[nodiscard]] std::string_view to_string(RouteVariant variant);  // its name; "" for none

struct Choice {
  Backend backend = Backend::sdpa;
  RouteVariant variant = RouteVariant::none;
  std::string why;  // in words, for people; names the refused alternative too ("flash refused: device is cpu")
  std::vector<Refused> refused = {};  // the same as fields; of attend, its parts'
  auto operator<=>(const Choice&) const = default;
};
[[nodiscard]] std::string to_string(const Choice& choice);  // "flash/varlen", "sdpa": without the reason
// Of attend_selected: whether it gathers the chosen blocks (packed, packed_safe).
[[nodiscard]] bool gathers(const Choice& choice);

// A kernel that a function launched.
struct Launched {
  std::string branch = {};  // of attention in one: "cmp", "sel", "win"; else ""
  bool backward = false;    // by a backward pass
  std::string kernel = {};  // as its plan calls it (kernels/plan/attention_plan.hpp): "joint", "merged parts"
  auto operator<=>(const Launched&) const = default;
};
template <typename Json>
void to_json(Json& json, const Launched& launched) {
  json = {
      {"branch", launched.branch}, {"pass", launched.backward ? "backward" : "forward"}, {"kernel", launched.kernel}};
}
// Is told which kernels a function launches, when it does; those of a backward pass on the thread that runs it.
using OnLaunch = std::function<void(Op, const Launched&)>;

struct Route {
  std::array<Choice, kAllOps.size()> choices;  // by Op
  [[nodiscard]] const Choice& operator[](Op op) const { return choices[static_cast<std::size_t>(op)]; }
  [[nodiscard]] Choice& operator[](Op op) { return choices[static_cast<std::size_t>(op)]; }
};

// What ran, and how often (Dispatcher::routes_taken).
struct Taken {
  Op op = Op::compress;
  Choice choice;
  std::int64_t calls = 0;
  // Which of its kernels the backend launched, each once, in the order in which they first ran (OnLaunch). Of cuda's
  // attention and choice of blocks alone, else none.
  std::vector<Launched> kernels = {};
};
// Its fields as JSON, of whichever library type: {"op", "backend", "variant", "why", "calls", "kernels"}.
template <typename Json>
void to_json(Json& json, const Taken& taken) {
  json = {{"op", to_string(taken.op)},
          {"backend", to_string(taken.choice.backend)},
          {"variant", to_string(taken.choice.variant)},
          {"why", taken.choice.why},
          {"calls", taken.calls},
          {"kernels", taken.kernels}};
}

// sdpa gathers the chosen blocks of at most this many rows at a time; a row is one (batch, token, group).
inline constexpr std::int64_t kGatherChunkRows = 4096;
// Bytes that a gathered selection holds at its peak (K and V of every chosen block of every row that is in flight, and
// of all rows when gradients are needed), and the budget beyond which it is refused and the masked way taken.
[[nodiscard]] std::int64_t gathered_selection_bytes(const Call& call);
inline constexpr std::int64_t kGatherBudgetBytes = std::int64_t{2} << 30;

// The capability of ATen's FlashAttention-2: "" when it serves the call, else the reason in words. Flags play no part.
[[nodiscard]] std::string flash_refusal(const Call& call, Op op);
// The same of any backend: flash_refusal, cuda_refusal (cuda/features.hpp); "" of reference and sdpa, which serve all.
[[nodiscard]] std::string refusal(Backend backend, const Call& call, Op op);

// A branch takes flash when its own effective flag asks for it (fa2_win, fa2_cmp; fa2_all has gone into both), S is not
// below its minimal length, and flash_refusal is empty. What was asked for by name keeps its way: such a branch, and a
// masked selection. Every other op takes cuda when use_cuda asks for it and cuda_refusal (cuda/features.hpp) is empty,
// otherwise sdpa, with the reason. NSA_FORCE_PARITY: reference. `attend` goes in one where cuda serves all of its parts
// and no flag wants to see them one by one (NSA_FORCE_BRANCH, NSA_STRICT_ASSERTS), else in parts; its backend is then
// theirs, or sdpa where they differ.
[[nodiscard]] Route route(const EffectiveFlags& flags, const Call& call);

// Why a layer makes what attention is given by ATen's functions one by one; "" where it is one product, with RoPE and
// gate in a kernel each (cuda/project.hpp). So they go where a flag leaves out what that has (NSA_FORCE_BRANCH the
// other branches' projections, NSA_FORCE_UNIFORM_GATE the gate), without our own kernels, and under NSA_FORCE_PARITY.
[[nodiscard]] std::string project_refusal(const EffectiveFlags& flags, const Call& call);

// The flag that keeps a decoding step's attention from our own kernels (cuda/decode.hpp), as it was set; "" where none
// does: NSA_FUSED_DECODE=0, NSA_USE_CUDA=0, NSA_FORCE_PARITY, one branch alone, and NSA_STRICT_ASSERTS, which looks at
// every part.
[[nodiscard]] std::string decode_refusal(const EffectiveFlags& flags);

// What a variable asks for by name, and whether the route takes it: a default asks for nothing, and NSA_FORCE_PARITY
// wins over everything by its own meaning.
struct Asked {
  std::string by;  // "NSA_USE_FA2=1"
  Op op = Op::attend;
  std::string wanted;  // "flash", "a gathered selection"
  bool obeyed = false;
};
[[nodiscard]] std::vector<Asked> asked_by_name(const EffectiveFlags& flags, const Route& route);
// "NSA_USE_FA2=1 asks for flash in attend_window, which sdpa does: flash refused: device is cpu"
[[nodiscard]] std::string describe(const Asked& asked, const Route& route);

}  // namespace nsa
