#include "suites/implementation/place.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "suites/implementation/error.hpp"

namespace suites::implementation {

namespace {

constexpr const char* kDevice = "cuda";  // the value of "in"

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 5> kTypes = {
    {{at::kDouble, "fp64"}, {at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}, {at::kHalf, "fp16"}, {at::kInt, "int32"}}};

[[noreturn]] void refuse(const Place& place, const std::string& why) {
  throw ImplementationError("protocol",
                            fmt::format("a tensor {} [{}] at byte {} of the {}arena: {}", wire_name(place.dtype),
                                        fmt::join(place.shape, ", "), place.at, place.on_device ? "GPU's " : "", why));
}

// nullopt: a size is negative, or the product leaves int64 (also where another size is 0).
std::optional<std::int64_t> bytes_of(const Place& place) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(place.dtype));
  bool empty = false;
  for (const std::int64_t size : place.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<std::int64_t>(size, 1), &bytes)) return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : bytes;
}

}  // namespace

std::string_view wire_name(at::ScalarType dtype) {
  for (const auto& [type, name] : kTypes)
    if (type == dtype) return name;
  return "";
}

std::optional<at::ScalarType> dtype_named(std::string_view name) {
  for (const auto& [type, type_name] : kTypes)
    if (type_name == name) return type;
  return std::nullopt;
}

Json to_json(const Place& place) {
  Json json = {{"dtype", wire_name(place.dtype)}, {"shape", place.shape}, {"at", place.at}};
  if (place.on_device) json["in"] = kDevice;
  return json;
}

Place place_from(const Json& json, const std::string& where) {
  const Fields fields(json, where);
  const auto dtype = dtype_named(fields.text("dtype"));
  if (!dtype) fields.refuse("dtype", "fp64, fp32, bf16, fp16 or int32");
  const bool on_device = fields.has("in");
  if (on_device && fields.text("in") != kDevice) fields.refuse("in", kDevice);
  return {*dtype, fields.integers("shape"), fields.integer("at"), on_device};
}

Place place_for(const at::Tensor& tensor, std::int64_t at) {
  if (!tensor.defined() || wire_name(tensor.scalar_type()).empty())
    throw ImplementationError("request",
                              fmt::format("a tensor is {}; allowed: Double, Float, BFloat16, Half or Int",
                                          tensor.defined() ? c10::toString(tensor.scalar_type()) : "undefined"));
  return {tensor.scalar_type(), tensor.sizes().vec(), at};
}

std::int64_t bytes_inside(const Place& place, std::int64_t size, std::int64_t step) {
  const auto bytes = bytes_of(place);
  if (!bytes) refuse(place, "no such size");
  if (place.at < 0 || place.at % step != 0) refuse(place, fmt::format("allowed: a multiple of {}", step));
  if (*bytes > size || place.at > size - *bytes)
    refuse(place, fmt::format("it would end outside; the arena has {} bytes", size));
  return *bytes;
}

std::int64_t rounded_up(std::int64_t bytes, std::int64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace suites::implementation
