// Tiles [Count][D] in the layout that wgmma reads (Note [Operands in shared memory] in wgmma.cuh), filled by cp.async:
// rows may come from anywhere, which TMA's boxes cannot do.
#pragma once

#include "nsa/kernels/device/wgmma.cuh"

namespace nsa::kernels::hopper {

// The operand that lies so many bytes behind another one.
__device__ inline std::uint64_t moved(std::uint64_t operand, int bytes) {
  return (operand & ~std::uint64_t{0xffffffff}) | (static_cast<std::uint32_t>(operand) + (bytes >> 4));
}

template <int Count, int D>
struct Slab {
  static_assert(D % 64 == 0 && Count % 8 == 0);
  static constexpr int kBytes = Count * D * 2, kChunks = D / 8;

  __device__ static std::uint32_t at(std::uint32_t base, int row, int chunk) {
    return base + static_cast<std::uint32_t>(chunk / 8 * (Count * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
  }
  // The operand of step k when D is summed over: columns 16*k.. of all rows. A constant away from the first, so that
  // the steps of a product cost one addition each.
  __device__ static std::uint64_t columns(std::uint32_t base, int k) {
    return columns_from(wgmma_descriptor(base, 16, 1024), k);
  }
  // The same from the operand of step 0.
  __device__ static std::uint64_t columns_from(std::uint64_t first, int k) {
    return first + static_cast<std::uint64_t>(k / 4 * (Count * 128) + k % 4 * 32) / 16;
  }
  // The operand of step k when the rows are summed over: rows 16*k.. of all D columns.
  __device__ static std::uint64_t rows(std::uint32_t base, int k) {
    return rows_from(wgmma_descriptor(base, Count * 128, 1024), k);
  }
  __device__ static std::uint64_t rows_from(std::uint64_t first, int k) {
    return first + static_cast<std::uint64_t>(k) * 128;
  }

  // The rows first.. below `end` of a matrix, `stride` elements apart; zeros beyond.
  template <int Threads, typename T>
  __device__ static void load(std::uint32_t base, const T* data, int stride, int first, int end) {
    copy_rows<Threads>(base, data, [&](int row) {
      return Source{static_cast<std::int64_t>(first + row) * stride, first + row < end};
    });
  }
  // Row i starts `offsets[i]` times 8 elements after `data`; -1: zeros (and nothing is read). By the first `Threads`
  // threads of the CTA, or by such a team of them of which the calling one is number `thread`.
  template <int Threads, typename T>
  __device__ static void gather(std::uint32_t base, const T* data, const int* offsets,
                                int thread = static_cast<int>(threadIdx.x)) {
    copy_rows<Threads>(
        base, data,
        [&](int row) {
          const int offset = offsets[row];
          return Source{static_cast<std::int64_t>(offset) * 8, offset >= 0};
        },
        thread);
  }
  // The same by threads that know the offsets of the rows they copy a share of: own_row(i) for the i-th.
  template <int Threads>
  __device__ static int own_row(int i, int thread = static_cast<int>(threadIdx.x)) {
    return thread / 8 + i * (Threads / 8);
  }
  template <int Threads, typename T>
  __device__ static void gather_own(std::uint32_t base, const T* data, const int (&offsets)[Count * 8 / Threads]) {
    copy_own<Threads>(base, data, [&](int i) {
      return Source{static_cast<std::int64_t>(offsets[i]) * 8, offsets[i] >= 0};
    });
  }

 private:
  struct Source {
    std::int64_t at;  // elements after the data's first
    bool valid;
  };
  // Eight threads a row, each the same chunk of every 64 columns: a thread's places are constants away from its first
  // one, so that a copy costs no register and hardly an instruction besides its own.
  template <int Threads, typename T, typename SourceOf>
  __device__ static void copy_rows(std::uint32_t base, const T* data, SourceOf&& source_of,
                                   int thread = static_cast<int>(threadIdx.x)) {
    copy_own<Threads>(
        base, data, [&](int i) { return source_of(own_row<Threads>(i, thread)); }, thread);
  }
  template <int Threads, typename T, typename SourceOf>
  __device__ static void copy_own(std::uint32_t base, const T* data, SourceOf&& source_of,
                                  int thread = static_cast<int>(threadIdx.x)) {
    static_assert(Threads % 64 == 0 && Count * 8 % Threads == 0);
    const int chunk = thread % 8;
    const std::uint32_t first = at(base, own_row<Threads>(0, thread), chunk);
    const T* own = data + chunk * 8;
    Source sources[Count * 8 / Threads];  // all before the first copy, so that their loads overlap
#pragma unroll
    for (int i = 0; i < Count * 8 / Threads; ++i) sources[i] = source_of(i);
#pragma unroll
    for (int i = 0; i < Count * 8 / Threads; ++i)
#pragma unroll
      for (int slab = 0; slab < D / 64; ++slab)
        cp_async(first + static_cast<std::uint32_t>(slab * (Count * 128) + i * (Threads / 8 * 128)),
                 own + sources[i].at + slab * 64, sources[i].valid);
  }
};

// Starts c = x * y^T, x [64 x 16 * Steps] and y [N x 16 * Steps] being tiles whose columns are summed over.
// Given are the tiles' addresses, or the operands of step 0.
template <typename T, int Steps, int Tiles, typename X, typename Y>
__device__ inline void product_of_operands(float (&c)[Tiles][4], X, std::uint64_t x, Y, std::uint64_t y) {
  Wgmma<T, Tiles * 8>::template keys<0>(c, x, y);
#pragma unroll
  for (int k = 1; k < Steps; ++k)
    Wgmma<T, Tiles * 8>::template keys<1>(c, X::columns_from(x, k), Y::columns_from(y, k));
}
template <typename T, int Steps, int Tiles, typename X, typename Y>
__device__ inline void product_of_columns(float (&c)[Tiles][4], X, std::uint32_t x, Y, std::uint32_t y) {
  product_of_operands<T, Steps>(c, X(), X::columns(x, 0), Y(), Y::columns(y, 0));
}

}  // namespace nsa::kernels::hopper
