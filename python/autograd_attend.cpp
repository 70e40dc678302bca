// Gradients of nsa::attend and nsa::attention, one of which is called in every layer. Their node is one of torch's own
// kind, as those of its built-in operators are: torch::autograd::Function, which describes every input and every result
// of a call, was measured at 8 us of the host a call, this at 4, and what records nothing has no node at all.
#include <ATen/ATen.h>
#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>

#include "python/dispatcher.hpp"
#include "python/operators.hpp"

namespace nsa::python {

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr std::size_t kInputs = 8;  // that have gradients: q, three pairs of keys and values, gates
using Inputs = std::array<Tensor, kInputs>;
constexpr std::size_t kResults = 7;  // blocks, o and statistics of the branches

struct AttendNode : torch::autograd::Node {
  bool whole = false;                        // of attention
  std::array<SavedVariable, kInputs> given;  // to attend: its keys and values of the first branch are compressed
  std::array<SavedVariable, kResults> gave;
  SavedVariable cu_seqlens;
  Geometry g;
  std::string backend;

  [[nodiscard]] std::string name() const override { return whole ? "NsaAttentionBackward" : "NsaAttendBackward"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (auto& x : given) x.reset_data();
    for (auto& x : gave) x.reset_data();
    cu_seqlens.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard lock(mutex_);
    std::array<bool, kInputs> wanted{};
    for (std::size_t i = 0; i < kInputs; ++i) wanted[i] = task_should_compute_output(i);
    variable_list placed(kInputs);
    if (!gradients[0].defined() || std::none_of(wanted.begin(), wanted.end(), [](bool w) { return w; })) return placed;
    Inputs x;
    std::array<Tensor, kResults> y;
    for (std::size_t i = 0; i < kInputs; ++i) x[i] = given[i].unpack();
    for (std::size_t i = 0; i < kResults; ++i) y[i] = gave[i].unpack();
    const Tensor bounds = cu_seqlens.unpack();
    const auto& op = whole ? operator_of<&attention_backward>("nsa::attention_backward")
                           : operator_of<&attend_backward>("nsa::attend_backward");
    const auto computed = op.call(gradients[0], x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], y[0], y[1], y[2], y[3],
                                  y[4], y[5], y[6], bounds.defined() ? MaybeTensor(bounds) : std::nullopt, g.l, g.d,
                                  g.l_sel, g.n_sel, g.w, wanted, backend);
    std::size_t next = 0;
    for (std::size_t i = 0; i < kInputs; ++i)
      if (wanted[i]) placed[i] = computed[next++];
    return placed;
  }
};

// What torch refuses of a node it must be told of by one that torch did not make.
template <typename... Tensors>
void refuse_transforms(const Tensors&... inputs) {
  if (const auto& transforms = at::functorch::functorchTLSAccessor()) transforms->checkSupportsCppAutogradFunction();
  TORCH_CHECK_NOT_IMPLEMENTED(!(torch::autograd::isFwGradDefined(inputs) || ...),
                              "nsa: forward-mode derivatives (jvp) are not implemented");
}

// The node of `o`, whose gradients go to `inputs`; kept is what attend was given and gave.
void record(bool whole, const Inputs& inputs, const Inputs& given, const Tensor& o,
            const std::array<Tensor, kResults>& gave, const MaybeTensor& cu_seqlens, const Geometry& g,
            std::string_view backend) {
  const std::shared_ptr<AttendNode> node(new AttendNode(), torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  edges.reserve(kInputs);
  for (const auto& x : inputs) edges.push_back(torch::autograd::impl::gradient_edge(x));
  node->set_next_edges(std::move(edges));
  node->whole = whole;
  for (std::size_t i = 0; i < kInputs; ++i) node->given[i] = SavedVariable(given[i], /*is_output=*/false);
  for (std::size_t i = 0; i < kResults; ++i) node->gave[i] = SavedVariable(gave[i], /*is_output=*/false);
  if (cu_seqlens) node->cu_seqlens = SavedVariable(*cu_seqlens, /*is_output=*/false);
  node->g = g;
  node->backend = backend;
  torch::autograd::set_history(o, node);
}

AttendOutputs attend_recorded(const Tensor& q, const Tensor& k_cmp, const Tensor& v_cmp, const Tensor& k_sel,
                              const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates,
                              const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, std::int64_t l, std::int64_t d,
                              std::int64_t l_sel, std::int64_t n_sel, std::int64_t w, std::string_view backend) {
  refuse_transforms(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<&attend>("nsa::attend")
        .call(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, l, d, l_sel, n_sel, w, backend);
  }();
  if (torch::autograd::compute_requires_grad(q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates)) {
    const auto& [o, table, o_cmp, o_sel, o_win, s_cmp, s_sel, s_win] = results;
    const Inputs inputs{q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates};
    record(false, inputs, inputs, o, {table, o_cmp, o_sel, o_win, s_cmp, s_sel, s_win}, cu_seqlens,
           {l, d, l_sel, n_sel, w}, backend);
  }
  return results;
}

AttentionOutputs attention_recorded(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_sel,
                                    const Tensor& v_sel, const Tensor& k_win, const Tensor& v_win, const Tensor& gates,
                                    const MaybeTensor& blocks, const MaybeTensor& cu_seqlens, std::int64_t l,
                                    std::int64_t d, std::int64_t l_sel, std::int64_t n_sel, std::int64_t w,
                                    std::string_view backend) {
  refuse_transforms(q, k, v, k_sel, v_sel, k_win, v_win, gates);
  auto results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return operator_of<&attention>("nsa::attention")
        .call(q, k, v, k_sel, v_sel, k_win, v_win, gates, blocks, cu_seqlens, l, d, l_sel, n_sel, w, backend);
  }();
  if (torch::autograd::compute_requires_grad(q, k, v, k_sel, v_sel, k_win, v_win, gates)) {
    const auto& [o, table, o_cmp, o_sel, o_win, s_cmp, s_sel, s_win, k_cmp, v_cmp] = results;
    record(true, {q, k, v, k_sel, v_sel, k_win, v_win, gates}, {q, k_cmp, v_cmp, k_sel, v_sel, k_win, v_win, gates}, o,
           {table, o_cmp, o_sel, o_win, s_cmp, s_sel, s_win}, cu_seqlens, {l, d, l_sel, n_sel, w}, backend);
  }
  return results;
}

TORCH_LIBRARY_IMPL(nsa, Autograd, m) {
  m.impl("attend", attend_recorded);
  m.impl("attention", attention_recorded);
}

}  // namespace

}  // namespace nsa::python
