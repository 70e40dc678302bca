#include "suites/implementation/call.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suites/implementation/error.hpp"
#include "suites/implementation/place.hpp"

namespace suites::implementation {

namespace {

const at::Tensor* find(const Named& tensors, std::string_view name) {
  for (const auto& [own_name, tensor] : tensors)
    if (own_name == name && tensor.defined()) return &tensor;
  return nullptr;
}

Json bounds_of(const nsa::CuSeqlens& cu_seqlens) {
  if (!cu_seqlens) return nullptr;
  const at::Tensor bounds = cu_seqlens->to(at::kLong).contiguous();
  const auto* first = bounds.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(first, first + bounds.numel());
}

std::string words(const Form& form) {
  std::vector<std::string_view> dtypes;
  for (const at::ScalarType dtype : form.dtypes) dtypes.push_back(wire_name(dtype));
  return fmt::format("{} [{}]", fmt::join(dtypes, " or "), fmt::join(form.sizes, ", "));
}

std::vector<Form> compressed(const Request& request) {
  std::vector<Form> forms;
  for (const char* name : {"k", "v"}) {
    const at::Tensor& x = named(request.inputs, name);
    const std::int64_t N_c = nsa::compressed_blocks(request.geometry, request.cu_seqlens, x.size(1));
    forms.push_back({std::string(name) + "_cmp", {x.size(0), N_c, x.size(2), x.size(3)}, {x.scalar_type()}});
  }
  return forms;
}

Form blocks(const Request& request) {
  const at::Tensor& q = named(request.inputs, "q");
  const std::int64_t G = named(request.inputs, "k_cmp").size(2);
  return {"blocks", {q.size(0), q.size(1), G, request.geometry.n_sel}, {at::kInt}};
}

// [B,S,Hq,Dv]; the width is that of whatever values there are.
Form attended(const Request& request) {
  const at::Tensor& q = named(request.inputs, "q");
  for (const char* values : {"v", "v_cmp"})
    if (const at::Tensor* v = find(request.inputs, values))
      return {"o", {q.size(0), q.size(1), q.size(2), v->size(3)}, {q.scalar_type()}};
  throw ImplementationError("request", request.function + ": no input is called v or v_cmp");
}

Form log_sum_exp(const Request& request) {
  const at::Tensor& q = named(request.inputs, "q");
  return {"lse", {q.size(0), q.size(2), q.size(1)}, {at::kFloat, at::kDouble}, /*optional=*/true};
}

}  // namespace

Json to_json(const Request& request) {
  if (request.inputs.empty()) throw ImplementationError("request", request.function + ": there are no inputs");
  const nsa::Geometry& g = request.geometry;
  return {{"op", request.function},
          {"device", request.inputs.front().second.is_cuda() ? "cuda" : "cpu"},
          {"geometry", {{"l", g.l}, {"d", g.d}, {"l_sel", g.l_sel}, {"n_sel", g.n_sel}, {"w", g.w}}},
          {"cu_seqlens", bounds_of(request.cu_seqlens)},
          {"gradients", request.gradients}};
}

const at::Tensor& named(const Named& tensors, std::string_view name) {
  if (const at::Tensor* tensor = find(tensors, name)) return *tensor;
  throw ImplementationError("request", fmt::format("no tensor is called {}", name));
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const std::string_view name = wire_name(tensor.scalar_type());
  return fmt::format("{} [{}] on {}", name.empty() ? c10::toString(tensor.scalar_type()) : name,
                     fmt::join(tensor.sizes(), ", "), tensor.device().str());
}

Form form_of(const std::string& name, const at::Tensor& like) {
  return {name, like.sizes().vec(), {like.scalar_type()}, /*optional=*/true};
}

std::vector<Form> outputs_of(const Request& request) {
  const std::string& function = request.function;
  if (function == "compress") return compressed(request);
  if (function == "select") return {blocks(request)};
  if (function == "combine") {
    Form o = form_of("o", named(request.inputs, "o_cmp"));
    o.optional = false;
    return {o};
  }
  if (function == "attend" || function == "attention") return {attended(request)};
  return {attended(request), log_sum_exp(request)};
}

void check_forms(const std::string& what, const Named& tensors, const std::vector<Form>& forms) {
  const auto refuse = [&](const char* kind, const std::string& name, const std::string& found, const std::string& due) {
    throw ImplementationError(kind, fmt::format("{}: {} is {}; allowed: {}", what, name, found, due));
  };
  for (const auto& [name, tensor] : tensors) {
    const auto is_it = [name = &name](const Form& form) { return form.name == *name; };
    if (tensor.defined() && std::none_of(forms.begin(), forms.end(), is_it))
      refuse("shape", name, describe(tensor), "nothing of that name");
  }
  for (const Form& form : forms) {
    const at::Tensor* tensor = find(tensors, form.name);
    if (tensor == nullptr && form.optional) continue;
    if (tensor == nullptr) refuse("shape", form.name, "not there", words(form));
    if (tensor->sizes() != at::IntArrayRef(form.sizes)) refuse("shape", form.name, describe(*tensor), words(form));
    if (std::find(form.dtypes.begin(), form.dtypes.end(), tensor->scalar_type()) == form.dtypes.end())
      refuse("dtype", form.name, describe(*tensor), words(form));
  }
}

}  // namespace suites::implementation
