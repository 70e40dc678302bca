// One call of a function of an adapter: what goes in, and what must come out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nsa/ops.hpp"
#include "suites/implementation/fields.hpp"

namespace suites::implementation {

// In the order of the function's arguments.
using Named = std::vector<std::pair<std::string, at::Tensor>>;

struct Request {
  std::string function;  // "attend_window": an nsa::Op's name, or "attention"
  Named inputs;          // as nsa/ops.hpp has them: q, k, v, k_cmp, v_cmp, blocks, gates, o_cmp, ...; on one device
  nsa::Geometry geometry;
  nsa::CuSeqlens cu_seqlens;
  std::vector<std::string> gradients;  // the inputs whose gradients will be asked for; empty: no graph is kept
};

// Its fields for the other process: op, device, geometry, cu_seqlens, gradients; without the inputs' places.
[[nodiscard]] Json to_json(const Request& request);

// The tensor of that name. Throws ImplementationError "request".
[[nodiscard]] const at::Tensor& named(const Named& tensors, std::string_view name);

// "fp32 [2, 35, 6, 16] on cpu"
[[nodiscard]] std::string describe(const at::Tensor& tensor);

// What a tensor must be, to be what was asked for.
struct Form {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::vector<at::ScalarType> dtypes;  // one of them
  bool optional = false;
};
[[nodiscard]] Form form_of(const std::string& name, const at::Tensor& like);

// o, and lse of the branches, which may be left out; k_cmp and v_cmp; blocks.
[[nodiscard]] std::vector<Form> outputs_of(const Request& request);

// Throws ImplementationError "shape" or "dtype": one is missing, too many, or of another form. An undefined tensor
// counts as left out.
void check_forms(const std::string& what, const Named& tensors, const std::vector<Form>& forms);

}  // namespace suites::implementation
