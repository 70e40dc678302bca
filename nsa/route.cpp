#include "nsa/route.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "nsa/cuda/features.hpp"

namespace nsa {

namespace {

std::int64_t bytes_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return 8;
    case Precision::fp32:
      return 4;
    case Precision::bf16:
      return 2;
  }
  return 8;
}

// Products of sizes that a caller made up may leave int64: then the largest number, which no budget admits.
std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const auto factor : factors)
    if (__builtin_mul_overflow(result, factor, &result)) return std::numeric_limits<std::int64_t>::max();
  return result;
}

// What the window and the compressed branch differ in.
struct FlashRequest {
  Op op;
  bool asked;
  std::int64_t min_len;
  std::string flag, min_len_flag;
};

FlashRequest request(const EffectiveFlags& flags, Op op) {
  if (op == Op::attend_window) return {op, flags.fa2_win, flags.fa2_min_len_win, "fa2_win", "NSA_FA2_MIN_LEN_WIN"};
  return {op, flags.fa2_cmp, flags.fa2_min_len_cmp, "fa2_cmp", "NSA_FA2_MIN_LEN_CMP"};
}

// Why a branch that asked for flash does not get it; "" when it does.
std::string request_refusal(const EffectiveFlags& flags, const Call& call, const FlashRequest& request) {
  if (request.min_len <= 0) return fmt::format("{}={} disables it", request.min_len_flag, request.min_len);
  if (call.S < request.min_len)
    return fmt::format("length {} is below {}={}", call.S, request.min_len_flag, request.min_len);
  if (request.op == Op::attend_window && call.packed && flags.fa2_force_dense)
    return "a packed batch needs the varlen entry and NSA_FA2_FORCE_DENSE forbids it";
  return flash_refusal(call, request.op);
}

Choice choose_attention(const EffectiveFlags& flags, const Call& call, Op op) {
  const FlashRequest wanted = request(flags, op);
  const std::string origin = origin_of(flags, wanted.flag).text;
  if (!wanted.asked) return {Backend::sdpa, RouteVariant::none, fmt::format("flash not asked for ({})", origin)};
  if (const auto reason = request_refusal(flags, call, wanted); !reason.empty())
    return {Backend::sdpa, RouteVariant::none, "flash refused: " + reason, {{op, Backend::flash, reason}}};
  // Compressed attention is always varlen: a document's strides against its blocks (flash/compressed.cpp).
  if (op == Op::attend_compressed) return {Backend::flash, RouteVariant::varlen, origin};
  if (call.packed) return {Backend::flash, RouteVariant::varlen, origin + "; packed batch"};
  if (flags.fa2_force_varlen) return {Backend::flash, RouteVariant::varlen, origin + "; NSA_FA2_FORCE_VARLEN"};
  return {Backend::flash, RouteVariant::dense, origin};
}

Choice choose_selected(const EffectiveFlags& flags, const Call& call) {
  if (flags.sel_mask) return {Backend::sdpa, RouteVariant::masked, origin_of(flags, "sel_mask").text};
  const std::int64_t bytes = gathered_selection_bytes(call);
  if (bytes > kGatherBudgetBytes)
    return {Backend::sdpa, RouteVariant::masked,
            fmt::format("gathering refused: it would hold {} bytes, the budget is {}", bytes, kGatherBudgetBytes)};
  if (call.training) return {Backend::sdpa, RouteVariant::packed_safe, "gradients are needed"};
  if (flags.train_safe_pack) return {Backend::sdpa, RouteVariant::packed_safe, "NSA_TRAIN_SAFE_PACK"};
  return {Backend::sdpa, RouteVariant::packed, "no gradients: the workspace is reused"};
}

// The choice without our own kernels.
Choice choose(const EffectiveFlags& flags, const Call& call, Op op) {
  if (op == Op::attend_window || op == Op::attend_compressed) return choose_attention(flags, call, op);
  if (op == Op::attend_selected) return choose_selected(flags, call);
  return {Backend::sdpa, RouteVariant::none, "the default"};
}

// cuda instead of `otherwise`, unless that is what was asked for by name.
Choice prefer_cuda(const EffectiveFlags& flags, const Call& call, Op op, Choice otherwise) {
  const bool named = otherwise.backend == Backend::flash || (op == Op::attend_selected && flags.sel_mask);
  if (!flags.use_cuda || named) return otherwise;
  if (const auto reason = cuda_refusal(call, op); !reason.empty()) {
    otherwise.why = fmt::format("cuda refused: {}; {}", reason, otherwise.why);
    otherwise.refused.push_back({op, Backend::cuda, reason});
    return otherwise;
  }
  // What was asked for and refused keeps its reason.
  const std::string also = otherwise.refused.empty() ? "" : "; " + otherwise.why;
  return {Backend::cuda, RouteVariant::none, origin_of(flags, "use_cuda").text + also, otherwise.refused};
}

// After its parts were chosen; without what they were refused.
Choice choose_attend(const EffectiveFlags& flags, const Route& route) {
  const Backend first = route[kAttendParts.front()].backend;
  for (const Op part : kAttendParts)
    if (route[part].backend != first)
      return {Backend::sdpa, RouteVariant::in_parts,
              fmt::format("{} is {}'s, {} is {}'s", to_string(kAttendParts.front()), to_string(first), to_string(part),
                          to_string(route[part].backend))};
  if (flags.force_parity) return {first, RouteVariant::in_parts, route[kAttendParts.front()].why};
  if (first != Backend::cuda)
    return {first, RouteVariant::in_parts,
            fmt::format("{} has no function for all; {}", to_string(first), route[Op::combine].why)};
  if (flags.forced_branch != ForcedBranch::none)
    return {first, RouteVariant::in_parts, origin_of(flags, "forced_branch").text + ": one branch runs alone"};
  if (flags.strict_asserts)
    return {first, RouteVariant::in_parts,
            origin_of(flags, "strict_asserts").text + ": every part's output is looked at"};
  std::string why = route[kAttendParts.front()].why;  // the parts', each once
  for (const Op part : kAttendParts)
    if (why.find(route[part].why) == std::string::npos) why += "; " + route[part].why;
  return {first, RouteVariant::in_one, why};
}

}  // namespace

std::string_view to_string(RouteVariant variant) {
  switch (variant) {
    case RouteVariant::none:
      return "";
    case RouteVariant::packed:
      return "packed";
    case RouteVariant::packed_safe:
      return "packed_safe";
    case RouteVariant::masked:
      return "masked";
    case RouteVariant::dense:
      return "dense";
    case RouteVariant::varlen:
      return "varlen";
    case RouteVariant::in_one:
      return "in_one";
    case RouteVariant::in_parts:
      return "in_parts";
  }
  return "?";
}

bool gathers(const Choice& choice) {
  return choice.variant == RouteVariant::packed || choice.variant == RouteVariant::packed_safe;
}

std::string to_string(const Choice& choice) {
  const std::string_view variant = to_string(choice.variant);
  return fmt::format("{}{}{}", to_string(choice.backend), variant.empty() ? "" : "/", variant);
}

std::string_view to_string(Backend backend) {
  switch (backend) {
    case Backend::reference:
      return "reference";
    case Backend::sdpa:
      return "sdpa";
    case Backend::flash:
      return "flash";
    case Backend::cuda:
      return "cuda";
  }
  return "?";
}

std::string_view to_string(Op op) {
  switch (op) {
    case Op::compress:
      return "compress";
    case Op::attend_compressed:
      return "attend_compressed";
    case Op::select:
      return "select";
    case Op::attend_selected:
      return "attend_selected";
    case Op::attend_window:
      return "attend_window";
    case Op::combine:
      return "combine";
    case Op::attend:
      return "attend";
  }
  return "?";
}

std::int64_t gathered_selection_bytes(const Call& call) {
  const std::int64_t all_rows = product({call.B, call.S, call.G});
  const std::int64_t rows = call.training ? all_rows : std::min(all_rows, kGatherChunkRows);
  return product({call.Dk + call.Dv, bytes_of(call.precision), call.geometry.n_sel, call.geometry.l_sel, rows});
}

std::string flash_refusal(const Call& call, Op op) {
  if (op != Op::attend_window && op != Op::attend_compressed)
    return fmt::format("FlashAttention-2 does not serve {}", to_string(op));
  if (!call.cuda) return "device is cpu";
  if (call.cuda_major < 8)
    return fmt::format("compute capability {}.{} is below 8.0", call.cuda_major, call.cuda_minor);
  if (call.precision != Precision::bf16)
    return fmt::format("precision is {}, bf16 is needed", to_string(call.precision));
  // ATen takes one head width for Q, K and V.
  if (call.Dk != call.Dv) return fmt::format("d_k {} differs from d_v {}", call.Dk, call.Dv);
  if (call.Dk < 8 || call.Dk % 8 != 0 || call.Dk > 256)
    return fmt::format("head width {} is not a multiple of 8 from 8 to 256", call.Dk);
  // The backward kernel of these widths does not fit the shared memory of the smaller chips.
  const bool small_chip = (call.cuda_major == 8 && call.cuda_minor >= 6) || call.cuda_major == 12;
  if (call.training && small_chip && call.Dk > 192 && call.Dk <= 224)
    return fmt::format("no backward for head width {} on compute capability {}.{}", call.Dk, call.cuda_major,
                       call.cuda_minor);
  if (op == Op::attend_compressed && call.S < call.geometry.l)
    return fmt::format("no compressed block at length {} (l = {})", call.S, call.geometry.l);
  return "";
}

std::string refusal(Backend backend, const Call& call, Op op) {
  switch (backend) {
    case Backend::reference:
    case Backend::sdpa:
      return "";
    case Backend::flash:
      return flash_refusal(call, op);
    case Backend::cuda:
      return cuda_refusal(call, op);
  }
  return "no such backend";
}

Route route(const EffectiveFlags& flags, const Call& call) {
  Route route;
  for (const Op op : kAllOps) {
    if (op == Op::attend) continue;
    if (flags.force_parity)
      route[op] = {Backend::reference, RouteVariant::none, "NSA_FORCE_PARITY"};
    else
      route[op] = prefer_cuda(flags, call, op, choose(flags, call, op));
  }
  route[Op::attend] = choose_attend(flags, route);
  for (const Op part : kAttendParts)
    for (const Refused& refused : route[part].refused) route[Op::attend].refused.push_back(refused);
  return route;
}

std::string project_refusal(const EffectiveFlags& flags, const Call& call) {
  if (auto flag = flag_against(flags, flags.fused_project, "fused_project"); !flag.empty()) return flag;
  if (flags.forced_branch != ForcedBranch::none) return origin_of(flags, "forced_branch").text;
  if (flags.uniform_gate) return origin_of(flags, "uniform_gate").text;
  return project_refusal(call);
}

std::string decode_refusal(const EffectiveFlags& flags) {
  if (auto flag = flag_against(flags, flags.fused_decode, "fused_decode"); !flag.empty()) return flag;
  if (flags.forced_branch != ForcedBranch::none) return origin_of(flags, "forced_branch").text;
  return flags.strict_asserts ? origin_of(flags, "strict_asserts").text : "";
}

std::vector<Asked> asked_by_name(const EffectiveFlags& flags, const Route& route) {
  std::vector<Asked> all;
  if (flags.force_parity) return all;
  const auto ask = [&](const char* field, bool on, Op op, const char* wanted, auto obeys) {
    const FlagOrigin origin = origin_of(flags, field);
    if (on && origin.is_variable) all.push_back({origin.text, op, wanted, obeys(route[op])});
  };
  const auto is = [](Backend wanted) { return [=](const Choice& taken) { return taken.backend == wanted; }; };
  ask("fa2_win", flags.fa2_win, Op::attend_window, "flash", is(Backend::flash));
  ask("fa2_cmp", flags.fa2_cmp, Op::attend_compressed, "flash", is(Backend::flash));
  // Compression that is learned is nobody's but sdpa's; the selection shows whether the kernels serve the model. Where
  // a mask was asked for it is the mask's, by name as well.
  ask("use_cuda", flags.use_cuda && !flags.sel_mask, Op::attend_selected, "cuda", is(Backend::cuda));
  // Gathered or masked is a question to sdpa alone: where the kernels serve the call, they do neither.
  ask("sel_pack", flags.sel_pack && !flags.sel_mask, Op::attend_selected, "a gathered selection",
      [](const Choice& taken) { return taken.variant != RouteVariant::masked; });
  return all;
}

std::string describe(const Asked& asked, const Route& route) {
  const Choice& taken = route[asked.op];
  return fmt::format("{} asks for {} in {}, which {} does: {}", asked.by, asked.wanted, to_string(asked.op),
                     to_string(taken), taken.why);
}

}  // namespace nsa
