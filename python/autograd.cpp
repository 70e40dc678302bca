// Gradients of torch.ops.nsa: each forward operator is a node of autograd whose passes are operators again, so that
// whoever traces them (torch.compile) sees plain calls. In C++, because a node that Python registers costs the host 40
// us of every forward pass. Backward operators have no gradient of their own.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "python/dispatcher.hpp"
#include "python/operators.hpp"

namespace nsa::python {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What is no tensor, as a node's context keeps it.
void keep_rest(AutogradContext& context, const Geometry& g, std::string_view backend) {
  context.saved_data["geometry"] = std::vector<std::int64_t>{g.l, g.d, g.l_sel, g.n_sel, g.w};
  context.saved_data["backend"] = std::string(backend);
  context.set_materialize_grads(false);
}
struct Rest {
  explicit Rest(AutogradContext& context)
      : g(context.saved_data.at("geometry").toIntVector()), backend(context.saved_data.at("backend").toStringRef()) {}
  std::vector<std::int64_t> g;
  std::string backend;
};

template <std::size_t count>
std::array<bool, count> wanted_in(const AutogradContext& context) {
  std::array<bool, count> wanted{};
  for (std::size_t i = 0; i < count; ++i) wanted[i] = context.needs_input_grad(i);
  return wanted;
}
template <std::size_t count>
bool none_of(const std::array<bool, count>& wanted) {
  return std::none_of(wanted.begin(), wanted.end(), [](bool w) { return w; });
}

// The wanted gradients at their places among all of a node's inputs.
template <std::size_t count>
variable_list spread(const Gradients& gradients, const std::array<bool, count>& wanted, std::size_t inputs) {
  variable_list placed(inputs);
  std::size_t next = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (wanted[i]) placed[i] = gradients[next++];
  return placed;
}

MaybeTensor maybe(const Tensor& t) { return t.defined() ? MaybeTensor(t) : std::nullopt; }
Tensor or_undefined(const MaybeTensor& t) { return t.value_or(Tensor()); }

struct CompressNode : torch::autograd::Function<CompressNode> {
  static variable_list forward(AutogradContext* context, const Tensor& k, const Tensor& v,
                               const MaybeTensor& cu_seqlens, const Geometry& g, std::string_view backend) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [k_cmp, v_cmp] =
        operator_of<&compress>("nsa::compress").call(k, v, cu_seqlens, g.l, g.d, g.l_sel, g.n_sel, g.w, backend);
    keep_rest(*context, g, backend);
    context->saved_data["S"] = k.sym_size(1);
    context->save_for_backward({or_undefined(cu_seqlens)});
    context->set_materialize_grads(true);
    return {k_cmp, v_cmp};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Rest rest(*context);
    const auto cu_seqlens = maybe(context->get_saved_variables()[0]);
    using Signature =
        std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, c10::SymInt, const MaybeTensor&, std::int64_t,
                                   std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::string_view);
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("nsa::compress_backward", "").typed<Signature>();
    const auto [dk, dv] = op.call(gradients[0], gradients[1], context->saved_data.at("S").toSymInt(), cu_seqlens,
                                  rest.g[0], rest.g[1], rest.g[2], rest.g[3], rest.g[4], rest.backend);
    return {dk, dv, Tensor(), Tensor(), Tensor()};
  }
};

// One branch; `blocks` of the selected one.
struct BranchNode : torch::autograd::Function<BranchNode> {
  enum class Kind : std::int64_t { compressed, selected, window };

  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, const Geometry& g,
                               std::string_view backend, Kind kind) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [o, stats] = call(q, k, v, blocks, cu_seqlens, g, backend, kind);
    keep_rest(*context, g, backend);
    context->saved_data["kind"] = static_cast<std::int64_t>(kind);
    context->save_for_backward({q, k, v, o, stats, or_undefined(blocks), or_undefined(cu_seqlens)});
    context->mark_non_differentiable({stats});
    return {o, stats};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    constexpr std::size_t kInputs = 8;
    const auto wanted = wanted_in<3>(*context);
    if (!gradients[0].defined() || none_of(wanted)) return variable_list(kInputs);
    const auto kind = static_cast<Kind>(context->saved_data.at("kind").toInt());
    return spread(call_backward(gradients[0], context->get_saved_variables(), Rest(*context), wanted, kind), wanted,
                  kInputs);
  }

 private:
  static std::tuple<Tensor, Tensor> call(const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& blocks,
                                         const MaybeTensor& cu, const Geometry& g, std::string_view backend,
                                         Kind kind) {
    if (kind == Kind::compressed)
      return operator_of<&attend_compressed>("nsa::attend_compressed")
          .call(q, k, v, cu, g.l, g.d, g.l_sel, g.n_sel, g.w, backend);
    if (kind == Kind::window)
      return operator_of<&attend_window>("nsa::attend_window")
          .call(q, k, v, cu, g.l, g.d, g.l_sel, g.n_sel, g.w, backend);
    return operator_of<&attend_selected>("nsa::attend_selected")
        .call(q, k, v, *blocks, cu, g.l, g.d, g.l_sel, g.n_sel, g.w, backend);
  }
  static Gradients call_backward(const Tensor& dout, const variable_list& kept, const Rest& rest,
                                 const std::array<bool, 3>& wanted, Kind kind) {
    const auto &q = kept[0], &k = kept[1], &v = kept[2], &o = kept[3], &stats = kept[4];
    const auto cu = maybe(kept[6]);
    const auto& g = rest.g;
    if (kind == Kind::compressed)
      return operator_of<&attend_compressed_backward>("nsa::attend_compressed_backward")
          .call(dout, q, k, v, o, stats, cu, g[0], g[1], g[2], g[3], g[4], wanted, rest.backend);
    if (kind == Kind::window)
      return operator_of<&attend_window_backward>("nsa::attend_window_backward")
          .call(dout, q, k, v, o, stats, cu, g[0], g[1], g[2], g[3], g[4], wanted, rest.backend);
    return operator_of<&attend_selected_backward>("nsa::attend_selected_backward")
        .call(dout, q, k, v, kept[5], o, stats, cu, g[0], g[1], g[2], g[3], g[4], wanted, rest.backend);
  }
};

struct CombineNode : torch::autograd::Function<CombineNode> {
  static Tensor forward(AutogradContext* context, const Tensor& gates, const Tensor& o_cmp, const Tensor& o_sel,
                        const Tensor& o_win, std::string_view backend) {
    const at::AutoDispatchBelowADInplaceOrView below;
    keep_rest(*context, {}, backend);
    context->save_for_backward({gates, o_cmp, o_sel, o_win});
    return operator_of<&combine>("nsa::combine").call(gates, o_cmp, o_sel, o_win, backend);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    constexpr std::size_t kInputs = 5;
    const auto wanted = wanted_in<4>(*context);
    if (!gradients[0].defined() || none_of(wanted)) return variable_list(kInputs);
    const auto kept = context->get_saved_variables();
    return spread(operator_of<&combine_backward>("nsa::combine_backward")
                      .call(gradients[0], kept[0], kept[1], kept[2], kept[3], wanted, Rest(*context).backend),
                  wanted, kInputs);
  }
};

TORCH_LIBRARY_IMPL(nsa, Autograd, m) {
  using I = std::int64_t;
  using Text = std::string_view;
  m.impl("compress",
         [](const Tensor& k, const Tensor& v, const MaybeTensor& cu, I l, I d, I l_sel, I n_sel, I w,
            Text backend) -> std::tuple<Tensor, Tensor> {
           const auto out = CompressNode::apply(k, v, cu, Geometry{l, d, l_sel, n_sel, w}, backend);
           return {out[0], out[1]};
         });
  m.impl("attend_compressed",
         [](const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& cu, I l, I d, I l_sel, I n_sel, I w,
            Text backend) -> std::tuple<Tensor, Tensor> {
           const auto out = BranchNode::apply(q, k, v, MaybeTensor(), cu, Geometry{l, d, l_sel, n_sel, w}, backend,
                                              BranchNode::Kind::compressed);
           return {out[0], out[1]};
         });
  m.impl("attend_selected",
         [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks, const MaybeTensor& cu, I l, I d,
            I l_sel, I n_sel, I w, Text backend) -> std::tuple<Tensor, Tensor> {
           const auto out = BranchNode::apply(q, k, v, MaybeTensor(blocks), cu, Geometry{l, d, l_sel, n_sel, w},
                                              backend, BranchNode::Kind::selected);
           return {out[0], out[1]};
         });
  m.impl("attend_window",
         [](const Tensor& q, const Tensor& k, const Tensor& v, const MaybeTensor& cu, I l, I d, I l_sel, I n_sel, I w,
            Text backend) -> std::tuple<Tensor, Tensor> {
           const auto out = BranchNode::apply(q, k, v, MaybeTensor(), cu, Geometry{l, d, l_sel, n_sel, w}, backend,
                                              BranchNode::Kind::window);
           return {out[0], out[1]};
         });
  m.impl("combine", [](const Tensor& gates, const Tensor& o_cmp, const Tensor& o_sel, const Tensor& o_win,
                       Text backend) { return CombineNode::apply(gates, o_cmp, o_sel, o_win, backend); });
  // The choice of blocks is not differentiated.
  m.impl("select", [](const Tensor& q, const Tensor& k_cmp, const MaybeTensor& stats, const MaybeTensor& cu, I l, I d,
                      I l_sel, I n_sel, I w, Text backend) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<&select>("nsa::select").call(q, k_cmp, stats, cu, l, d, l_sel, n_sel, w, backend);
  });
  for (const char* name : {"compress_backward", "attend_compressed_backward", "attend_selected_backward",
                           "attend_window_backward", "combine_backward", "attend_backward", "attention_backward"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

}  // namespace nsa::python
