// What an operator does before it computes: which backend serves the call, and in which state it runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "nsa/call.hpp"
#include "nsa/ops.hpp"
#include "nsa/sdpa/sdpa.hpp"

namespace nsa::python {

// Whether our kernels serve the call, by the caller's word: "auto" (what they serve; the rest is sdpa's), "cuda" or
// "sdpa". Throws c10::NotImplementedError with the reason where "cuda" is asked for and does not serve it, and
// ContractError for another word. A pure function: a backward pass comes to the same answer as its forward pass.
[[nodiscard]] bool by_kernels(const Call& call, std::span<const Op> ops, std::string_view backend);
[[nodiscard]] bool by_kernels(const Call& call, Op op, std::string_view backend);

// NSA_GRAPH_CALLS of this process, the one flag that the operators heed (nsa/flags.hpp). Throws FlagInvalid.
[[nodiscard]] bool graph_calls();

// How sdpa reaches chosen blocks: gathered, or masked where that would hold too much memory (route.hpp).
[[nodiscard]] sdpa::Selection selection_way(const at::Tensor& q, const CallOptions& options);

// The state of an operator's own work: nothing is recorded, and autocast, whose casts were made before, casts nothing.
struct Alone {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Throws ContractError unless `t` has that shape and dtype, on the device of `q`.
void check_result(std::string_view op, std::string_view name, const at::Tensor& t, at::IntArrayRef sizes,
                  at::ScalarType type, const at::Tensor& q);

// The tensor itself, dense, and nobody else's memory: what an operator may return.
[[nodiscard]] at::Tensor own(const at::Tensor& t);

// The gradients of those inputs that are wanted, in their order, of a function whose backward pass only autograd knows:
// it is run (again) under autograd. An input that the result does not depend on gets zeros.
using Function = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;
[[nodiscard]] std::vector<at::Tensor> gradients_by_autograd(const std::vector<at::Tensor>& inputs,
                                                            std::span<const bool> wanted, const at::Tensor& dout,
                                                            const Function& function);

}  // namespace nsa::python
