// Tiles [rows][D] of 16-bit values in shared memory, and the matrix fragments in them.
//
// Note [Swizzle]
// A row is D/8 chunks of 16 bytes. ldmatrix reads the same chunk of eight neighbouring rows: stored plainly, they fall
// into the same banks. So chunk c of row r is stored at place c ^ (r % 8) of its aligned eight (D >= 64), or, for the
// two rows of 32 that share 128 bytes, at c ^ (r/2 % 4).
#pragma once

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/mma.cuh"

namespace nsa::kernels {

template <int D>
struct Tile {
  static_assert(D == 32 || D % 64 == 0);
  static constexpr int kChunks = D / 8;
  static constexpr int kRowBytes = D * 2;

  __device__ static std::uint32_t at(std::uint32_t base, int row, int chunk) {
    const int swizzled = D == 32 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
    return base + static_cast<std::uint32_t>(row * kRowBytes + swizzled * 16);
  }

  // A [16 x 16]: rows row.., columns 16*k..
  __device__ static void a(std::uint32_t (&r)[4], std::uint32_t base, int row, int k) {
    const int lane = threadIdx.x & 31;
    ldmatrix(r, at(base, row + (lane & 15), k * 2 + (lane >> 4)));
  }
  // B of two products, the tile's rows being B's columns (X * tile^T): rows row..row+15, columns 16*k..
  // b0, b1 of the first eight rows in r[0], r[1]; of the next eight in r[2], r[3].
  __device__ static void b(std::uint32_t (&r)[4], std::uint32_t base, int row, int k) {
    const int lane = threadIdx.x & 31;
    ldmatrix(r, at(base, row + (lane & 7) + ((lane >> 4) << 3), k * 2 + ((lane >> 3) & 1)));
  }
  // B of two products, the tile's rows being B's rows (X * tile): rows row..row+15, columns 16*n..
  __device__ static void b_transposed(std::uint32_t (&r)[4], std::uint32_t base, int row, int n) {
    const int lane = threadIdx.x & 31;
    ldmatrix_trans(r, at(base, row + (lane & 15), n * 2 + (lane >> 4)));
  }

  // Starts the copy of Count rows by all Threads of the CTA; source(row) is the row's first element, or null for
  // zeros.
  template <int Count, int Threads, typename Source>
  __device__ static void load(std::uint32_t base, const void* somewhere, Source&& source) {
    static_assert(Count * kChunks % Threads == 0 || Count * kChunks < Threads);
#pragma unroll
    for (int i = 0; i < (Count * kChunks + Threads - 1) / Threads; ++i) {
      const int place = static_cast<int>(threadIdx.x) + i * Threads;
      if (Count * kChunks < Threads && place >= Count * kChunks) break;
      const int row = place / kChunks, chunk = place % kChunks;
      const char* from = reinterpret_cast<const char*>(source(row));
      cp_async(at(base, row, chunk), from ? from + chunk * 16 : somewhere, from != nullptr);
    }
  }
};

// The A fragment of columns 16*k.. of a product's result, rounded to the storage type.
template <typename T, int N>
__device__ inline void as_a(std::uint32_t (&a)[4], const float (&c)[N][4], int k) {
  a[0] = pack<T>(c[2 * k][0], c[2 * k][1]);
  a[1] = pack<T>(c[2 * k][2], c[2 * k][3]);
  a[2] = pack<T>(c[2 * k + 1][0], c[2 * k + 1][1]);
  a[3] = pack<T>(c[2 * k + 1][2], c[2 * k + 1][3]);
}

// Transposes 4 x 4 registers in a quad: x[e] becomes thread e's x[i], i being the caller's place among the four.
__device__ inline void transpose_quad(std::uint32_t (&x)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const auto exchange = [](std::uint32_t& low, std::uint32_t& high, bool mine, int lane) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, mine ? low : high, lane);
    (mine ? low : high) = other;
  };
  exchange(x[0], x[1], odd, 1);
  exchange(x[2], x[3], odd, 1);
  exchange(x[0], x[2], upper, 2);
  exchange(x[1], x[3], upper, 2);
}

// Of row g (half 0) or g + 8 of a product's result times `scale`, rounded: the caller's eight of the columns 32*n..; by
// a whole quad. `zero`: zeros, also where a value is not finite.
template <typename T, int N>
__device__ inline uint4 row_chunk(const float (&c)[N][4], int n, int half, float scale, bool zero) {
  std::uint32_t x[4];
#pragma unroll
  for (int e = 0; e < 4; ++e)
    x[e] = zero ? 0 : pack<T>(c[4 * n + e][2 * half] * scale, c[4 * n + e][2 * half + 1] * scale);
  transpose_quad(x);
  return make_uint4(x[0], x[1], x[2], x[3]);
}
// What stands in a row that is to be added to, as store_row() has it; zeros without one.
template <int Columns>
struct RowBefore {
  uint4 chunks[Columns / 32] = {};

  RowBefore() = default;
  template <typename T>
  __device__ explicit RowBefore(const T* row) {
#pragma unroll
    for (int n = 0; n < Columns / 32; ++n)
      if (row) chunks[n] = reinterpret_cast<const uint4*>(row)[n * 4 + static_cast<int>(threadIdx.x & 3)];
  }
};
// Stores all of the row. `adds`: to `before`. `row`: null for none.
template <typename T, int N>
__device__ inline void store_row(T* row, const float (&c)[N][4], int half, float scale, bool zero, bool adds,
                                 const RowBefore<N * 8>& before) {
  static_assert(N % 4 == 0);
  uint4* const to = reinterpret_cast<uint4*>(row) + (threadIdx.x & 3);
#pragma unroll
  for (int n = 0; n < N / 4; ++n) {
    const uint4 own = row_chunk<T>(c, n, half, scale, zero);
    if (row) to[n * 4] = adds ? added<T>(own, before.chunks[n]) : own;
  }
}
// The same; what stands there is asked for here, before the first store, over which nvcc cannot move a load.
template <typename T, int N>
__device__ inline void store_row(T* row, const float (&c)[N][4], int half, float scale, bool zero, bool adds = false) {
  store_row<T>(row, c, half, scale, zero, adds, RowBefore<N * 8>(adds ? row : nullptr));
}

}  // namespace nsa::kernels
