// Where a tensor lies in memory that two processes share: what both arenas have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "suites/implementation/fields.hpp"

namespace suites::implementation {

// A tensor in an arena: contiguous, from byte `at` on. As JSON {"dtype":"bf16","shape":[2,35,6,16],"at":4096}, and
// "in":"cuda" where it is the GPU's arena.
struct Place {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::int64_t at = 0;
  bool on_device = false;
};
[[nodiscard]] Json to_json(const Place& place);
// `where` begins the messages. Throws ImplementationError "protocol"; the range is bytes_inside()'s to look at.
[[nodiscard]] Place place_from(const Json& json, const std::string& where);

// fp64, fp32, bf16, fp16, int32; "" / nullopt: no tensor of that type crosses.
[[nodiscard]] std::string_view wire_name(at::ScalarType dtype);
[[nodiscard]] std::optional<at::ScalarType> dtype_named(std::string_view name);

// The place of a copy of `tensor`. Throws ImplementationError "request" for one that is undefined or of a type that
// does not cross.
[[nodiscard]] Place place_for(const at::Tensor& tensor, std::int64_t at);

// Of a tensor in an arena of `size` bytes, whose places are multiples of `step`. Throws ImplementationError "protocol"
// for one that is not wholly inside.
[[nodiscard]] std::int64_t bytes_inside(const Place& place, std::int64_t size, std::int64_t step);

[[nodiscard]] std::int64_t rounded_up(std::int64_t bytes, std::int64_t step);

}  // namespace suites::implementation
