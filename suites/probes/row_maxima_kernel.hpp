// What the kernel of row_maxima.cu is given: a plain struct, no LibTorch, as in nsa/kernels. The launch function puts
// it on the stream and returns; it never waits for the device and allocates nothing. The struct travels by value, so
// that a CUDA graph which holds the launch holds all that it needs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace suites::probes {

struct RowMaxima {
  static constexpr int kMost = 48;         // tensors: what the 4 KB have room for that a launch may take along
  static constexpr int kDims = 4;          // of a row
  static constexpr int kRowsOfABlock = 8;  // each by a warp
  static constexpr int kPiece = 16;        // bytes that a thread reads at once where they lie together

  enum class Type : std::uint8_t { bf16, fp16, fp32, fp64 };

  // A row has sizes[0] * ... * sizes[dims - 1] pieces, sizes[0] the innermost: 16 bytes each where `whole` (the data
  // and every stride are multiples of that then), else one element. Strides are in bytes.
  struct Tensor {
    const void* data = nullptr;
    std::int64_t row_stride = 0;
    std::int64_t strides[kDims] = {};
    std::uint32_t sizes[kDims] = {};
    std::uint32_t rows = 0;
    std::uint32_t first_block = 0, first_row = 0;  // sums over the tensors before it
    std::uint8_t dims = 0;
    Type type = Type::bf16;
    bool whole = false;
    bool positive = false;  // the largest x, or 0, instead of the largest |x|; not with `whole`
  };
  Tensor tensors[kMost];
  std::uint32_t count = 0, blocks = 0;  // of tensors; in all
  void* largest = nullptr;              // [rows of all tensors] fp32, or fp64 (`wide`), written
  bool wide = false;
};
static_assert(sizeof(RowMaxima) <= 4096);

// Of each row the largest |x|, exactly; NaN where one is among them.
void launch_row_maxima(const RowMaxima& p, cudaStream_t stream);

}  // namespace suites::probes
