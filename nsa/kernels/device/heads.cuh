// Rows of a tile are (token, head) pairs: row r of a group is head r % h of the r / h-th token.
#pragma once

#include <cstdint>

namespace nsa::kernels {

// x / n by one multiplication; exact for 0 <= x with x * n < 2^32.
struct Divisor {
  int n;
  std::uint32_t reciprocal;  // ceil(2^32 / n); 0 stands for 2^32 (n = 1)

  __host__ __device__ explicit Divisor(int divisor)
      : n(divisor), reciprocal(static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + divisor - 1) / divisor)) {}
  __device__ int quotient(int x) const {
    return reciprocal == 0 ? x : static_cast<int>(__umulhi(static_cast<std::uint32_t>(x), reciprocal));
  }
};

struct Heads {
  int h;
  Divisor by_h;

  __host__ __device__ explicit Heads(int heads) : h(heads), by_h(heads) {}
  __device__ int token(int row) const { return by_h.quotient(row); }
  __device__ int head(int row, int token) const { return row - token * h; }
};

}  // namespace nsa::kernels
