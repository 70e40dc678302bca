#include "nsa/cuda/rows.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <optional>

#include "nsa/call.hpp"
#include "nsa/cuda/features.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

namespace {

constexpr std::int64_t kEight = 8;       // elements of 16 bytes
constexpr std::uintptr_t kAligned = 16;  // bytes

bool begins_well(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % kAligned == 0; }

// Of [B,S,H,D], where they suit the kernels. All sizes and all strides at once: a call asks for hundreds, and each by
// itself is a function of LibTorch. A dimension of size 1 is never stepped through, so its stride says nothing.
std::optional<kernels::Rows> strides_of(const at::Tensor& t) {
  const auto sizes = t.sizes(), strides = t.strides();
  if (sizes.size() != 4 || sizes[3] % kEight != 0 || strides[3] != 1) return {};
  const auto step = [&](std::size_t dim) { return sizes[dim] == 1 ? 0 : strides[dim]; };
  const kernels::Rows rows{nullptr, step(0), step(1), step(2)};
  if ((rows.batch | rows.token | rows.head) % kEight != 0) return {};
  return rows;
}

bool lies_well(const at::Tensor& t) { return strides_of(t) && begins_well(t.const_data_ptr()); }

}  // namespace

Call as_served(Call call) {
  if (kernels::is_emulated() && !call.cuda) {
    call.cuda = true;
    call.cuda_major = 9;
  }
  return call;
}

std::string device_refusal(const at::Tensor& t) { return machine_refusal(as_served(call_on(t.device()))); }

std::string refusal(Call call, Op op) { return cuda_refusal(as_served(call), op); }

void require(const at::Tensor& q, const CallOptions& options, Op op) {
  if (const auto reason = refusal(call_of(q, options), op); !reason.empty())
    throw Unsupported(fmt::format("cuda does not serve this {}: {}; use sdpa", to_string(op), reason));
}

void refuse_second_derivative(std::string_view op) {
  // What create_graph does to a backward pass. In ATen's words and type, so that all refusals of this kind are alike.
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), "derivative for nsa::cuda::", op,
                              "_backward is not implemented (a second derivative, by create_graph; use reference)");
}

// clone, not contiguous: a dense tensor may still begin at an odd place of its storage.
at::Tensor aligned(const at::Tensor& t) { return lies_well(t) ? t : t.clone(at::MemoryFormat::Contiguous); }

at::Tensor dense(const at::Tensor& t) {
  return t.is_contiguous() && begins_well(t.const_data_ptr()) ? t : t.clone(at::MemoryFormat::Contiguous);
}

kernels::Rows rows_of(std::string_view name, const at::Tensor& t) {
  if (auto rows = strides_of(t)) {
    rows->data = t.data_ptr();
    if (begins_well(rows->data)) return *rows;
  }
  throw ContractError(
      fmt::format("{} is {} [{}], strides [{}], at {} bytes past a multiple of {}; allowed: a dense last dimension of "
                  "a multiple of 8 elements, strides that are multiples of 8, a multiple of 16 bytes",
                  name, c10::toString(t.scalar_type()), fmt::join(t.sizes(), ", "), fmt::join(t.strides(), ", "),
                  reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % kAligned, kAligned));
}

kernels::Storage storage_of(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf ? kernels::Storage::fp16 : kernels::Storage::bf16;
}

kernels::Geometry geometry_of(const Geometry& g) {
  // Longer than any sequence means the same as any larger number.
  const auto narrow = [](std::int64_t x) {
    return static_cast<int>(std::min<std::int64_t>(x, std::numeric_limits<int>::max() / 2));
  };
  return {narrow(g.l), narrow(g.d), narrow(g.l_sel), narrow(g.n_sel), narrow(g.w)};
}

int size_of(const at::Tensor& t, std::int64_t dim) {
  return static_cast<int>(t.sizes()[static_cast<std::size_t>(dim)]);
}

float scale_of(const at::Tensor& q) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.size(3)))); }

at::Tensor workspace(std::int64_t bytes, const at::Tensor& like) {
  return bytes > 0 ? empty({bytes}, at::kByte, like) : at::Tensor();
}
void* start_of(const at::Tensor& workspace) { return workspace.defined() ? workspace.data_ptr() : nullptr; }

// By the dispatcher, although its way to the allocator is as long as the allocator's own: by what ATen records it is
// told that our kernels ran (suites/flag_matrix), and what they allocate.
at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type, const at::Tensor& like) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(like.device()));
}

}  // namespace nsa::cuda
