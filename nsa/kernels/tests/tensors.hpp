// What the tests of emulated kernels share: tensors whose surroundings are NaN, and packed batches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "nsa/kernels/params.hpp"
#include "nsa/kernels/tests/emulation/emulator.hpp"

namespace nsa::kernels {

inline double value_of(Storage storage, std::uint16_t bits) {
  return storage == Storage::bf16 ? __bfloat162float(std::bit_cast<__nv_bfloat16>(bits))
                                  : __half2float(std::bit_cast<__half>(bits));
}
inline std::uint16_t bits_of(Storage storage, double x) {
  return storage == Storage::bf16 ? std::bit_cast<std::uint16_t>(__float2bfloat16_rn(static_cast<float>(x)))
                                  : std::bit_cast<std::uint16_t>(__float2half_rn(static_cast<float>(x)));
}

// [B,S,H,D] with room between rows and around: NaN there before, and unchanged after.
class Tensor {
 public:
  enum class Order { tokens_outside, heads_outside };
  Tensor(Storage storage, int B, int S, int H, int D, Order order = Order::tokens_outside, int room = 0)
      : storage_(storage), B_(B), S_(S), H_(H), D_(D) {
    const std::int64_t row = D + room;
    rows_.token = order == Order::tokens_outside ? H * row + room : row;
    rows_.head = order == Order::tokens_outside ? row : S * row + room;
    rows_.batch = order == Order::tokens_outside ? S * rows_.token : H * rows_.head;
    data_.assign(static_cast<std::size_t>(kAround * 2 + B * rows_.batch + 8), kNaN);
    first_ = kAround;
    while (reinterpret_cast<std::uintptr_t>(&data_[first_]) % 16 != 0) ++first_;
    rows_.data = &data_[first_];
  }
  Tensor(const Tensor&) = delete;
  [[nodiscard]] const Rows& rows() const { return rows_; }
  [[nodiscard]] double at(int b, int s, int h, int d) const { return value_of(storage_, data_[place(b, s, h, d)]); }
  void set(int b, int s, int h, int d, double x) { data_[place(b, s, h, d)] = bits_of(storage_, x); }
  void fill(std::mt19937& random, double size) {
    std::normal_distribution<double> normal(0, size);
    for (int b = 0; b < B_; ++b)
      for (int s = 0; s < S_; ++s)
        for (int h = 0; h < H_; ++h)
          for (int d = 0; d < D_; ++d) set(b, s, h, d, normal(random));
  }
  [[nodiscard]] bool same_bits(const Tensor& x) const { return data_ == x.data_; }
  // Whether every place that is not an element still holds what it held.
  [[nodiscard]] bool surroundings_are_untouched() const {
    std::vector<bool> element(data_.size());
    for (int b = 0; b < B_; ++b)
      for (int s = 0; s < S_; ++s)
        for (int h = 0; h < H_; ++h)
          for (int d = 0; d < D_; ++d) element[place(b, s, h, d)] = true;
    for (std::size_t i = 0; i < data_.size(); ++i)
      if (!element[i] && data_[i] != kNaN) return false;
    return true;
  }

 private:
  static constexpr int kAround = 1024;
  static constexpr std::uint16_t kNaN = emulation::kOutside;
  [[nodiscard]] std::size_t place(int b, int s, int h, int d) const {
    return static_cast<std::size_t>(first_ + b * rows_.batch + s * rows_.token + h * rows_.head + d);
  }
  Storage storage_;
  int B_, S_, H_, D_;
  std::int64_t first_ = 0;
  std::vector<std::uint16_t> data_;
  Rows rows_;
};

// Documents one after the other, as their boundaries (the first is 0).
struct Documents {
  std::vector<int> first_token, first_block, document_blocks, starts, ends;
  int compressed = 0;

  Documents(const std::vector<int>& boundaries, const Geometry& g) {
    for (std::size_t i = 0; i + 1 < boundaries.size(); ++i) {
      const int first = boundaries[i], last = boundaries[i + 1], length = last - first;
      for (int t = first; t < last; ++t) {
        first_token.push_back(first);
        first_block.push_back(compressed);
        document_blocks.push_back(static_cast<int>(starts.size()));
      }
      compressed += length >= g.l ? (length - g.l) / g.d + 1 : 0;
      for (int block = first; block < last; block += g.l_sel) {
        starts.push_back(block);
        ends.push_back(std::min(block + g.l_sel, last));
      }
    }
  }
};

}  // namespace nsa::kernels
