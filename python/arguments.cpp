#include "python/arguments.hpp"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "nsa/config_schema.hpp"
#include "nsa/train/hash.hpp"

namespace nsa::python {

Geometry geometry_of(std::int64_t l, std::int64_t d, std::int64_t l_sel, std::int64_t n_sel, std::int64_t w) {
  const auto at_most = [](std::string_view name, std::int64_t value, std::int64_t most) {
    if (value > most)
      throw ContractError(fmt::format("geometry.{}: is {}; allowed: an integer up to {}", name, value, most));
  };
  at_most("l", l, kMostTokens);
  at_most("d", d, kMostTokens);
  at_most("l_sel", l_sel, kMostTokens);
  at_most("n_sel", n_sel, kMostBlocks);
  at_most("w", w, kMostTokens);
  return {l, d, l_sel, n_sel, w};
}

at::Tensor narrow_bounds(const at::Tensor& cu_seqlens) {
  using Wide = std::int64_t;
  using Narrow = std::int32_t;
  TORCH_CHECK(cu_seqlens.scalar_type() == at::kLong && cu_seqlens.device().is_cpu(),
              "narrow_bounds: cu_seqlens is no int64 on the CPU");
  const auto wide = cu_seqlens.contiguous();
  at::Tensor narrow = at::detail::empty_cpu(wide.sizes(), at::kInt);
  const auto* from = wide.const_data_ptr<Wide>();
  auto* to = narrow.mutable_data_ptr<Narrow>();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    if (!std::in_range<Narrow>(from[i]))
      throw ContractError(fmt::format("cu_seqlens: [{}] = {}; allowed: a number of tokens, at most {}", i, from[i],
                                      std::numeric_limits<Narrow>::max()));
    to[i] = static_cast<Narrow>(from[i]);
  }
  return narrow;
}

std::vector<std::string> model_errors(std::int64_t dim, std::int64_t n_layers, std::int64_t n_heads,
                                      std::int64_t n_kv_groups, std::int64_t d_k, std::int64_t d_v, std::int64_t vocab,
                                      double rope_base, double gate_tau, std::int64_t l, std::int64_t d,
                                      std::int64_t l_sel, std::int64_t n_sel, std::int64_t w) {
  Config config;
  ModelConfig& model = config.model;
  model.dim = dim;
  model.n_layers = n_layers;
  model.n_heads = n_heads;
  model.n_kv_groups = n_kv_groups;
  model.d_k = d_k;
  model.d_v = d_v;
  model.vocab = vocab;
  model.rope_base = rope_base;
  model.gate_tau = gate_tau;
  model.nsa = {l, d, l_sel, n_sel, w};
  std::vector<std::string> errors;
  for (auto& [key, value, allowed, where] : validate(config)) errors.insert(errors.end(), {key, value, allowed});
  return errors;
}

std::int64_t hash64(const at::Tensor& bytes) {
  TORCH_CHECK(bytes.scalar_type() == at::kByte && bytes.device().is_cpu() && bytes.is_contiguous(),
              "hash64: bytes is no contiguous uint8 on the CPU");
  train::Hash64 hash;
  hash.add(bytes.const_data_ptr(), bytes.nbytes());
  return static_cast<std::int64_t>(hash.value());
}

}  // namespace nsa::python
