#include "python/operators.hpp"

#include <ATen/ATen.h>

#include <limits>
#include <string>
#include <utility>

#include "nsa/cuda/attend_all.hpp"
#include "nsa/cuda/combine.hpp"
#include "nsa/cuda/compress.hpp"
#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "python/arguments.hpp"
#include "python/call.hpp"

namespace nsa::python {

namespace {

CallOptions options_of(const Tensor& k, const Tensor& v, const Geometry& g, const MaybeTensor& cu_seqlens) {
  return {.G = k.size(2), .Dv = v.size(3), .geometry = g, .packed = cu_seqlens.has_value()};
}

// Of sdpa, which has none: no row has these. (NaN would not equal itself where torch compares two ways to compute.)
Tensor no_stats(const Tensor& q) {
  return at::full({q.size(0), q.size(2), q.size(1), 2}, std::numeric_limits<double>::infinity(),
                  q.options().dtype(at::kFloat));
}

// By the mask: one branch.
struct Branch {
  Op op;
  kernels::Mask mask;
};
constexpr Branch kCompressed{Op::attend_compressed, kernels::Mask::compressed};
constexpr Branch kSelected{Op::attend_selected, kernels::Mask::selected};
constexpr Branch kWindow{Op::attend_window, kernels::Mask::window};

// Its output by sdpa; under autograd as well (`training`).
Tensor by_sdpa(const Branch& branch, const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& blocks,
               const MaybeTensor& cu_seqlens, const Geometry& g, bool training) {
  if (branch.op == Op::attend_compressed) return sdpa::attend_compressed({q, {k, v}, g, cu_seqlens}).o;
  if (branch.op == Op::attend_window) return sdpa::attend_window({q, k, v, g, cu_seqlens}).o;
  auto options = options_of(k, v, g, cu_seqlens);
  options.grad = training;
  return sdpa::attend_selected({q, k, v, *blocks, g, cu_seqlens}, selection_way(q, options)).o;
}

std::tuple<Tensor, Tensor> attend_branch(const Branch& branch, const Tensor& q, const Tensor& k, const Tensor& v,
                                         const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, const Geometry& g,
                                         std::string_view backend) {
  if (!by_kernels(call_of(q, options_of(k, v, g, cu_seqlens)), branch.op, backend))
    return {own(by_sdpa(branch, q, k, v, blocks, cu_seqlens, g, false)), no_stats(q)};
  const cuda::OnDeviceOf device(q);
  const auto table = blocks ? blocks->contiguous() : Tensor();
  const auto [o, stats] = cuda::attend_forward(cuda::aligned(q), cuda::aligned(k), cuda::aligned(v), table,
                                               cuda::problem_of(branch.mask, q, g, cu_seqlens));
  return {o, stats};
}

// What a forward pass gave, and the gradient that came for it.
void check_results(std::string_view op, const Tensor& q, const Tensor& v, const Tensor& dout,
                   std::initializer_list<std::pair<std::string_view, const Tensor&>> outputs,
                   std::initializer_list<std::pair<std::string_view, const Tensor&>> stats) {
  const std::array like_o = {q.size(0), q.size(1), q.size(2), v.size(3)};
  const std::array<std::int64_t, 4> like_stats = {q.size(0), q.size(2), q.size(1), 2};
  check_result(op, "dout", dout, like_o, q.scalar_type(), q);
  for (const auto& [name, o] : outputs) check_result(op, name, o, like_o, q.scalar_type(), q);
  for (const auto& [name, s] : stats) {
    check_result(op, name, s, like_stats, at::kFloat, q);
    if (!s.is_contiguous())
      throw ContractError(std::string(op) + "_backward: " + std::string(name) +
                          " has strides; allowed: contiguous, as the forward pass gave it");
  }
}

void keep(Gradients& to, const Tensor& gradient, const Tensor& of) {
  if (gradient.defined()) to.push_back(gradient.scalar_type() == of.scalar_type() ? gradient : gradient.to(of));
}

Gradients branch_backward(const Branch& branch, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                          const MaybeTensor& blocks, const Tensor& o, const Tensor& stats,
                          const MaybeTensor& cu_seqlens, const Geometry& g, const std::array<bool, 3>& wanted,
                          std::string_view backend) {
  if (!by_kernels(call_of(q, options_of(k, v, g, cu_seqlens)), branch.op, backend))
    return gradients_by_autograd({q, k, v}, wanted, dout, [&](const auto& in) {
      return by_sdpa(branch, in[0], in[1], in[2], blocks, cu_seqlens, g, true);
    });
  const cuda::OnDeviceOf device(q);
  const auto table = blocks ? blocks->contiguous() : Tensor();
  const auto [dq, dk, dv] =
      cuda::attend_backward({cuda::aligned(q), cuda::aligned(k), cuda::aligned(v), table, cuda::aligned(o), stats},
                            cuda::aligned(dout), cuda::problem_of(branch.mask, q, g, cu_seqlens), wanted);
  Gradients result;
  keep(result, dq, q);
  keep(result, dk, k);
  keep(result, dv, v);
  return result;
}

bool attend_by_kernels(const Tensor& q, const Tensor& k, const Tensor& v, const Geometry& g,
                       const MaybeTensor& cu_seqlens, std::string_view backend) {
  return by_kernels(call_of(q, options_of(k, v, g, cu_seqlens)), kAttendParts, backend);
}

cuda::AllInputs for_kernels(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp, const Tensor& k_sel,
                            const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates) {
  using cuda::aligned;
  return {aligned(q),     aligned(k_cmp), aligned(v_cmp), aligned(k_sel),
          aligned(v_sel), aligned(k_win), aligned(v_win), cuda::gates_for_kernels(gates, q.scalar_type())};
}

}  // namespace

std::tuple<Tensor, Tensor> compress(const Tensor& k, const Tensor& v, const MaybeTensor& cu_seqlens, std::int64_t l,
                                    std::int64_t d, std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                    std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(CompressArgs{k, v, g, cu_seqlens, {}, {}});
  return compress_checked(k, v, cu_seqlens, g, backend);
}

std::tuple<Tensor, Tensor> compress_checked(const Tensor& k, const Tensor& v, const MaybeTensor& cu_seqlens,
                                            const Geometry& g, std::string_view backend) {
  if (!by_kernels(call_of(k, options_of(k, v, g, cu_seqlens)), Op::compress, backend)) {
    const auto pooled = sdpa::compress({k, v, g, cu_seqlens, {}, {}});
    return {own(pooled.k), own(pooled.v)};
  }
  const cuda::OnDeviceOf device(k);
  const auto pooled = cuda::pool_forward(cuda::aligned(k), cuda::aligned(v), cuda::blocks_of(k, g, cu_seqlens));
  return {pooled.k, pooled.v};
}

std::tuple<Tensor, Tensor> compress_backward(const Tensor& dk_cmp, const Tensor& dv_cmp, std::int64_t S,
                                             const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                             std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                             std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check_geometry("compress", g);
  if (dk_cmp.dim() != 4 || dv_cmp.dim() != 4 || S < 1 || dk_cmp.size(1) != compressed_blocks(g, cu_seqlens, S))
    throw ContractError(
        "compress_backward: dk_cmp and dv_cmp are not [B,N_c,G,D] of S tokens; allowed: what compress gave");
  check_result("compress", "dv_cmp", dv_cmp, std::array{dk_cmp.size(0), dk_cmp.size(1), dk_cmp.size(2), dv_cmp.size(3)},
               dk_cmp.scalar_type(), dk_cmp);
  Call call = call_of(dk_cmp, options_of(dk_cmp, dv_cmp, g, cu_seqlens));
  call.S = S;
  const auto tokens = [&](const Tensor& dy) {
    return at::zeros({dy.size(0), S, dy.size(2), dy.size(3)}, dy.options());
  };
  if (!by_kernels(call, Op::compress, backend)) {  // a mean: its gradient does not depend on the values
    constexpr std::array kWanted = {true};
    const auto gradient = [&](const Tensor& dy) {
      return gradients_by_autograd({tokens(dy)}, kWanted, dy, [&](const auto& in) {
        return sdpa::compress({in[0], in[0], g, cu_seqlens, {}, {}}).k;
      })[0];
    };
    return {gradient(dk_cmp), gradient(dv_cmp)};
  }
  const cuda::OnDeviceOf device(dk_cmp);
  const cuda::Blocks blocks{g, cuda::pack(cu_seqlens, S, g, dk_cmp.device()), S, dk_cmp.size(1)};
  const auto [dk, dv] = cuda::pool_backward(cuda::aligned(dk_cmp), cuda::aligned(dv_cmp), blocks);
  return {dk, dv};
}

std::tuple<Tensor, Tensor> attend_compressed(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                                             const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                             std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                             std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendCompressedArgs{q, {k_cmp, v_cmp}, g, cu_seqlens});
  return attend_branch(kCompressed, q, k_cmp, v_cmp, {}, cu_seqlens, g, backend);
}

Gradients attend_compressed_backward(const Tensor& dout, const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                                     const Tensor& o, const Tensor& stats, const MaybeTensor& cu_seqlens,
                                     std::int64_t l, std::int64_t d, std::int64_t l_sel, std::int64_t n_sel,
                                     std::int64_t w, std::array<bool, 3> wanted, std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendCompressedArgs{q, {k_cmp, v_cmp}, g, cu_seqlens});
  check_results("attend_compressed", q, v_cmp, dout, {{"o", o}}, {{"stats", stats}});
  return branch_backward(kCompressed, dout, q, k_cmp, v_cmp, {}, o, stats, cu_seqlens, g, wanted, backend);
}

Tensor select(const Tensor& q, const Tensor& k_cmp, const MaybeTensor& stats, const MaybeTensor& cu_seqlens,
              std::int64_t l, std::int64_t d, std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
              std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  SelectArgs args{q, k_cmp, g, cu_seqlens, stats};
  check(args);
  constexpr std::int64_t kWidestValue = 128;  // the function takes no values: those that q's width goes with
  CallOptions options = options_of(k_cmp, k_cmp, g, cu_seqlens);
  options.Dv = std::min(options.Dv, kWidestValue);
  return by_kernels(call_of(q, options), Op::select, backend) ? cuda::select(args) : own(sdpa::select(args));
}

std::tuple<Tensor, Tensor> attend_selected(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                                           const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                           std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                           std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendSelectedArgs{q, k, v, blocks, g, cu_seqlens});
  return attend_branch(kSelected, q, k, v, blocks, cu_seqlens, g, backend);
}

Gradients attend_selected_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& blocks, const Tensor& o, const Tensor& stats,
                                   const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d, std::int64_t l_sel,
                                   std::int64_t n_sel, std::int64_t w, std::array<bool, 3> wanted,
                                   std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendSelectedArgs{q, k, v, blocks, g, cu_seqlens});
  check_results("attend_selected", q, v, dout, {{"o", o}}, {{"stats", stats}});
  return branch_backward(kSelected, dout, q, k, v, blocks, o, stats, cu_seqlens, g, wanted, backend);
}

std::tuple<Tensor, Tensor> attend_window(const Tensor& q, const Tensor& k, const Tensor& v,
                                         const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                         std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                         std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendWindowArgs{q, k, v, g, cu_seqlens});
  return attend_branch(kWindow, q, k, v, {}, cu_seqlens, g, backend);
}

Gradients attend_window_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                 const Tensor& stats, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                                 std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::array<bool, 3> wanted,
                                 std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendWindowArgs{q, k, v, g, cu_seqlens});
  check_results("attend_window", q, v, dout, {{"o", o}}, {{"stats", stats}});
  return branch_backward(kWindow, dout, q, k, v, {}, o, stats, cu_seqlens, g, wanted, backend);
}

Tensor combine(const Tensor& gates, const Tensor& o_cmp, const Tensor& o_sel, const Tensor& o_win,
               std::string_view backend) {
  const Alone state;
  const CombineArgs args{gates, o_cmp, o_sel, o_win};
  check(args);
  const CallOptions options{.G = gates.size(2), .Dv = o_cmp.size(3), .geometry = {}};
  if (!by_kernels(call_of(o_cmp, options), Op::combine, backend)) return own(sdpa::combine(args));
  const cuda::OnDeviceOf device(o_cmp);
  return cuda::combine_forward({cuda::gates_for_kernels(gates, o_cmp.scalar_type()), cuda::aligned(o_cmp),
                                cuda::aligned(o_sel), cuda::aligned(o_win)});
}

Gradients combine_backward(const Tensor& dout, const Tensor& gates, const Tensor& o_cmp, const Tensor& o_sel,
                           const Tensor& o_win, std::array<bool, 4> wanted, std::string_view backend) {
  const Alone state;
  check(CombineArgs{gates, o_cmp, o_sel, o_win});
  check_result("combine", "dout", dout, o_cmp.sizes(), o_cmp.scalar_type(), o_cmp);
  const CallOptions options{.G = gates.size(2), .Dv = o_cmp.size(3), .geometry = {}};
  if (!by_kernels(call_of(o_cmp, options), Op::combine, backend))
    return gradients_by_autograd({gates, o_cmp, o_sel, o_win}, wanted, dout, [](const auto& in) {
      return sdpa::combine({in[0], in[1], in[2], in[3]});
    });
  const cuda::OnDeviceOf device(o_cmp);
  const auto computed = cuda::combine_backward({cuda::gates_for_kernels(gates, o_cmp.scalar_type()),
                                                cuda::aligned(o_cmp), cuda::aligned(o_sel), cuda::aligned(o_win)},
                                               cuda::aligned(dout), wanted);
  Gradients result;
  keep(result, computed[0], gates);
  for (std::size_t i = 1; i < computed.size(); ++i) keep(result, computed[i], o_cmp);
  return result;
}

AttendOutputs attend(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp, const Tensor& k_sel,
                     const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates,
                     const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                     std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendArgs{q, {k_cmp, v_cmp}, k_sel, v_sel, k_win, v_win, gates, g, cu_seqlens, blocks});
  return attend_checked(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, g, backend);
}

AttendOutputs attend_checked(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp, const Tensor& k_sel,
                             const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates,
                             const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, const Geometry& g,
                             std::string_view backend) {
  MaybeTensor given;
  if (blocks) given = blocks->clone(at::MemoryFormat::Contiguous);
  if (attend_by_kernels(q, k_cmp, v_cmp, g, cu_seqlens, backend)) {
    const cuda::OnDeviceOf device(q);
    const auto [o, kept] =
        cuda::attend_all_forward(for_kernels(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates),
                                 cuda::problems_of(q, g, cu_seqlens, graph_calls()), cu_seqlens, {.blocks = given});
    return {o, kept.blocks, kept.o[0], kept.o[1], kept.o[2], kept.stats[0], kept.stats[1], kept.stats[2]};
  }
  const auto cmp = own(by_sdpa(kCompressed, q, k_cmp, v_cmp, {}, cu_seqlens, g, false));
  const auto chosen = given ? *given : own(sdpa::select({q, k_cmp, g, cu_seqlens}));
  const auto sel = own(by_sdpa(kSelected, q, k_sel, v_sel, chosen, cu_seqlens, g, false));
  const auto win = own(by_sdpa(kWindow, q, k_win, v_win, {}, cu_seqlens, g, false));
  return {own(sdpa::combine({gates, cmp, sel, win})), chosen, cmp, sel, win, no_stats(q), no_stats(q), no_stats(q)};
}

namespace {

// Part by part, so that one branch's graph is held at a time.
cuda::AllInputs attend_backward_by_sdpa(const Tensor& dout, const cuda::AllKept& kept, const MaybeTensor& cu_seqlens,
                                        const Geometry& g, const std::array<bool, cuda::kAllInputs>& wanted) {
  const auto& given = kept.given;
  const auto& gates = given[cuda::kGates];
  constexpr std::array kAll = {true, true, true, true};
  const auto sums = gradients_by_autograd({gates, kept.o[0], kept.o[1], kept.o[2]}, kAll, dout, [](const auto& in) {
    return sdpa::combine({in[0], in[1], in[2], in[3]});
  });
  cuda::AllInputs result;
  if (wanted[cuda::kGates]) result[cuda::kGates] = sums[0];
  constexpr std::array kBranchOf = {kCompressed, kSelected, kWindow};
  for (std::size_t i = 0; i < cuda::kBranches; ++i) {
    const std::size_t key = cuda::kKeys + 2 * i, value = key + 1;
    const std::array places = {static_cast<std::size_t>(cuda::kQ), key, value};
    const std::array own_wanted = {wanted[cuda::kQ], wanted[key], wanted[value]};
    const auto gradients =
        branch_backward(kBranchOf[i], sums[i + 1], given[cuda::kQ], given[key], given[value],
                        i == 1 ? MaybeTensor(kept.blocks) : std::nullopt, {}, {}, cu_seqlens, g, own_wanted, "sdpa");
    std::size_t next = 0;
    for (std::size_t part = 0; part < places.size(); ++part) {
      if (!own_wanted[part]) continue;
      auto& to = result[places[part]];
      to = to.defined() ? to + gradients[next] : gradients[next];
      ++next;
    }
  }
  return result;
}

}  // namespace

Gradients attend_backward(const Tensor& dout, const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp,
                          const Tensor& k_sel, const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win,
                          const Tensor& gates, const Tensor& blocks, const Tensor& o_cmp, const Tensor& o_sel,
                          const Tensor& o_win, const Tensor& stats_cmp, const Tensor& stats_sel,
                          const Tensor& stats_win, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                          std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::array<bool, 8> wanted,
                          std::string_view backend) {
  const Alone state;
  const Geometry g = geometry_of(l, d, l_sel, n_sel, w);
  check(AttendArgs{q, {k_cmp, v_cmp}, k_sel, v_sel, k_win, v_win, gates, g, cu_seqlens, blocks});
  check_results("attend", q, v_cmp, dout, {{"o_cmp", o_cmp}, {"o_sel", o_sel}, {"o_win", o_win}},
                {{"stats_cmp", stats_cmp}, {"stats_sel", stats_sel}, {"stats_win", stats_win}});
  const bool kernels = attend_by_kernels(q, k_cmp, v_cmp, g, cu_seqlens, backend);
  const cuda::OnDeviceOf device(q);
  const cuda::AllInputs given{q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates};
  cuda::AllKept kept{given, blocks.contiguous(), {o_cmp, o_sel, o_win}, {stats_cmp, stats_sel, stats_win}};
  cuda::AllInputs computed;
  if (kernels) {
    for (auto& o : kept.o) o = cuda::aligned(o);
    kept.given = for_kernels(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates);
    computed = cuda::attend_all_backward(kept, cuda::aligned(dout), cuda::problems_of(q, g, cu_seqlens, graph_calls()),
                                         wanted);
  } else {
    computed = attend_backward_by_sdpa(dout, kept, cu_seqlens, g, wanted);
  }
  Gradients result;
  for (std::size_t i = 0; i < computed.size(); ++i) keep(result, computed[i], given[i]);
  return result;
}

}  // namespace nsa::python
