#include "nsa/cuda/packing.hpp"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>

#include "nsa/cuda/stream.hpp"

namespace nsa::cuda {

namespace {

// What makes a packing: the values of cu_seqlens, not the tensor, which its owner may overwrite.
struct Key {
  std::vector<std::int32_t> cu_seqlens;
  std::array<std::int64_t, 3> blocks;  // l, d, l'
  at::Device device;
  cudaStream_t stream;  // whoever is on another stream would read before the copy has come
  bool operator==(const Key& other) const = default;
};

// The seven tables one after another in one buffer.
class Tables {
 public:
  Tables(const CuSeqlens& cu_seqlens, std::int64_t S, const Geometry& g)
      : documents_(documents(cu_seqlens, S)), g_(g), S_(S), N_(compressed_blocks(g, cu_seqlens, S)) {
    for (const auto& [begin, end] : documents_) J_ += selection_blocks(g, end - begin);
  }

  [[nodiscard]] Packing on(at::Device device) const {
    // A normal tensor, even in inference mode: any later pass may keep it for its backward pass.
    const c10::InferenceMode normal(false);
    const std::array<std::int64_t, 7> sizes = {S_, S_, S_, S_, N_, J_, J_};
    auto host = at::empty({4 * S_ + N_ + 2 * J_}, at::TensorOptions().dtype(at::kInt).pinned_memory(device.is_cuda()));
    fill(host.data_ptr<std::int32_t>());
    const auto parts = host.to(device, /*non_blocking=*/true).split_with_sizes(sizes);
    return {parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], J_};
  }

 private:
  void fill(std::int32_t* first_token) const {
    std::int32_t* first_compressed = first_token + S_;
    std::int32_t* compressed = first_compressed + S_;
    std::int32_t* first_selection = compressed + S_;
    std::int32_t* compressed_start = first_selection + S_;
    std::int32_t* selection_start = compressed_start + N_;
    std::int32_t* selection_end = selection_start + J_;
    std::int64_t blocks = 0, chosen_from = 0;
    const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    for (const auto& [begin, end] : documents_) {
      const std::int64_t length = end - begin, own = compressed_blocks(g_, length);
      std::fill_n(first_token + begin, length, narrow(begin));
      std::fill_n(first_compressed + begin, length, narrow(blocks));
      std::fill_n(compressed + begin, length, narrow(own));
      std::fill_n(first_selection + begin, length, narrow(chosen_from));
      for (std::int64_t i = 0; i < own; ++i) *compressed_start++ = narrow(begin + i * g_.d);
      for (std::int64_t start = begin; start < end; start += g_.l_sel) {
        *selection_start++ = narrow(start);
        *selection_end++ = narrow(std::min(start + g_.l_sel, end));
      }
      blocks += own;
      chosen_from += selection_blocks(g_, length);
    }
  }

  std::vector<std::pair<std::int64_t, std::int64_t>> documents_;
  Geometry g_;
  std::int64_t S_, N_, J_ = 0;
};

}  // namespace

kernels::Packed Packing::kernel_view() const { return {ints(first_token), ints(first_compressed)}; }

kernels::SelectionBlocks Packing::selection() const {
  return {static_cast<int>(J), ints(first_selection), ints(selection_starts), ints(selection_ends)};
}

const int* ints(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<std::int32_t>() : nullptr; }

Packing pack(const CuSeqlens& cu_seqlens, std::int64_t S, const Geometry& g, at::Device device) {
  if (!cu_seqlens) {
    Packing one;
    one.J = selection_blocks(g, S);
    return one;
  }
  const auto values = cu_seqlens->contiguous();
  const auto* first = values.const_data_ptr<std::int32_t>();
  Key key{{first, first + values.numel()}, {g.l, g.d, g.l_sel}, device, stream_of(device)};
  thread_local std::optional<std::pair<Key, Packing>> last;
  if (!last || last->first != key) {
    last.reset();
    Packing fresh = Tables(cu_seqlens, S, g).on(device);
    last.emplace(std::move(key), std::move(fresh));
  }
  return last->second;
}

}  // namespace nsa::cuda
