// What is asked of arguments that are no tokens, each where it costs the host nothing that it did not cost before.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nsa/ops.hpp"

namespace nsa::python {

// A geometry within the limits of a configuration file: beyond, a table of blocks would fill the memory, and products
// of sizes would not fit their type. Throws ContractError ("geometry.n_sel: is ..."). What is too small, or does not
// fit, is the contract's to say (ops.hpp).
[[nodiscard]] Geometry geometry_of(std::int64_t l, std::int64_t d, std::int64_t l_sel, std::int64_t n_sel,
                                   std::int64_t w);

// int64 on the CPU -> int32. Throws ContractError for a number that int32 does not hold: cut off, it would be another.
[[nodiscard]] at::Tensor narrow_bounds(const at::Tensor& cu_seqlens);

// What a configuration file with these values would be refused for (config.hpp); nothing where it would not be. Three
// texts an error: key ("model.d_k"), value, what is allowed ("must be ...").
[[nodiscard]] std::vector<std::string> model_errors(std::int64_t dim, std::int64_t n_layers, std::int64_t n_heads,
                                                    std::int64_t n_kv_groups, std::int64_t d_k, std::int64_t d_v,
                                                    std::int64_t vocab, double rope_base, double gate_tau,
                                                    std::int64_t l, std::int64_t d, std::int64_t l_sel,
                                                    std::int64_t n_sel, std::int64_t w);

// train::Hash64 of a tensor's bytes (U8, on the CPU), the 64 bits as an int: the checksum of a checkpoint.
[[nodiscard]] std::int64_t hash64(const at::Tensor& bytes);

}  // namespace nsa::python
