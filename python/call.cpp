#include "python/call.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include "nsa/cuda/rows.hpp"
#include "nsa/flags.hpp"

namespace nsa::python {

namespace {

// Below autograd an operator's thread leaves its keys out. While this lives, they count again.
class UnderAutograd {
 public:
  UnderAutograd() : keys_(with_autograd()), grad_(true) {}

 private:
  static c10::impl::LocalDispatchKeySet with_autograd() {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }
  c10::impl::ForceDispatchKeyGuard keys_;
  at::AutoGradMode grad_;
};

}  // namespace

bool by_kernels(const Call& call, std::span<const Op> ops, std::string_view backend) {
  if (backend == "sdpa") return false;
  if (backend != "auto" && backend != "cuda")
    throw ContractError(fmt::format("backend: is '{}'; allowed: 'auto', 'cuda', 'sdpa'", backend));
  for (const Op op : ops) {
    const auto reason = cuda::refusal(call, op);
    if (reason.empty()) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(backend == "auto", to_string(op), ": our kernels do not serve this call: ", reason,
                                "; backend='sdpa' serves it, 'auto' takes that by itself");
    return false;
  }
  return true;
}

bool by_kernels(const Call& call, Op op, std::string_view backend) {
  return by_kernels(call, std::span(&op, 1), backend);
}

bool graph_calls() {
  static const bool asked = [] {
    constexpr const char* kFlag = "NSA_GRAPH_CALLS";
    Environment own;
    for (auto& [name, value] : read_environment())
      if (name == kFlag) own[name] = value;
    return resolve(own).graph_calls;
  }();
  return asked;
}

sdpa::Selection selection_way(const at::Tensor& q, const CallOptions& options) {
  return gathered_selection_bytes(call_of(q, options)) > kGatherBudgetBytes ? sdpa::Selection::masked
                                                                            : sdpa::Selection::packed_safe;
}

void check_result(std::string_view op, std::string_view name, const at::Tensor& t, at::IntArrayRef sizes,
                  at::ScalarType type, const at::Tensor& q) {
  if (t.sizes() == sizes && t.scalar_type() == type && t.device() == q.device() && t.layout() == at::kStrided) return;
  throw ContractError(fmt::format("{}_backward: {} is {} [{}] on {}; allowed: {} [{}] on the device of q", op, name,
                                  c10::toString(t.scalar_type()), fmt::join(t.sizes(), ", "), t.device().str(),
                                  c10::toString(type), fmt::join(sizes, ", ")));
}

at::Tensor own(const at::Tensor& t) {
  const auto dense = t.contiguous();
  return dense.storage().use_count() > 1 ? dense.clone() : dense;
}

std::vector<at::Tensor> gradients_by_autograd(const std::vector<at::Tensor>& inputs, std::span<const bool> wanted,
                                              const at::Tensor& dout, const Function& function) {
  const UnderAutograd mode;
  std::vector<at::Tensor> leaves, asked;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    if (wanted[i]) asked.push_back(leaves.back().requires_grad_());
  }
  if (asked.empty()) return {};
  const auto result = function(leaves);
  std::vector<at::Tensor> gradients(asked.size());
  if (result.requires_grad())
    gradients = torch::autograd::grad({result}, asked, {dout}, /*retain_graph=*/false, /*create_graph=*/false,
                                      /*allow_unused=*/true);
  std::vector<at::Tensor> owned;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    at::Tensor gradient = gradients[i].defined() ? gradients[i].detach() : at::zeros_like(asked[i]).detach();
    gradients[i].reset();
    owned.push_back(own(gradient));
  }
  return owned;
}

}  // namespace nsa::python
