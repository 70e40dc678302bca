// A warp owns a row, so that nothing is joined across warps: no atomics, and no memory that must be zero before. What
// is compared is not numbers but the bits of |x| as an unsigned integer. They are in the same order, infinity comes
// after every number and NaN after infinity, so no comparison can lose one, as fmaxf would.
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>

#include "nsa/kernels/params.hpp"
#include "suites/probes/row_maxima_kernel.hpp"

namespace suites::probes {

namespace {

using Tensor = RowMaxima::Tensor;
using Type = RowMaxima::Type;

constexpr unsigned kLanes = 32;
constexpr unsigned kThreads = RowMaxima::kRowsOfABlock * kLanes;
constexpr unsigned kAtOnce = 4;  // loads of a thread that are on their way together: a row of 2 KB by one round
constexpr unsigned kWarp = 0xffffffffU;

// The bits of a number of 16 bits stand in the upper half: those of bf16 are then the same number in fp32.
template <Type type>
struct Number {
  using Stored = std::uint16_t;
  using Bits = std::uint32_t;
  static constexpr Bits kInfinity = type == Type::bf16 ? 0x7f800000U : 0x7c000000U;
  __device__ static Bits bits(Stored x) { return Bits{x} << 16; }
  __device__ static double value(Bits x) {
    if constexpr (type == Type::bf16) return std::bit_cast<float>(x);
    return __half2float(std::bit_cast<__half>(static_cast<Stored>(x >> 16)));
  }
};
template <>
struct Number<Type::fp32> {
  using Stored = std::uint32_t;
  using Bits = std::uint32_t;
  static constexpr Bits kInfinity = 0x7f800000U;
  __device__ static Bits bits(Stored x) { return x; }
  __device__ static double value(Bits x) { return std::bit_cast<float>(x); }
};
template <>
struct Number<Type::fp64> {
  using Stored = std::uint64_t;
  using Bits = std::uint64_t;
  static constexpr Bits kInfinity = 0x7ff0000000000000U;
  __device__ static Bits bits(Stored x) { return x; }
  __device__ static double value(Bits x) { return std::bit_cast<double>(x); }
};

// Of |x|, or of x where it is to be positive: then 0 for what is less.
template <Type type>
__device__ typename Number<type>::Bits magnitude(typename Number<type>::Bits x, bool positive = false) {
  using Bits = typename Number<type>::Bits;
  constexpr Bits kSign = Bits{1} << (sizeof(Bits) * 8 - 1);
  const Bits m = x & ~kSign;
  return positive && (x & kSign) != 0 && m <= Number<type>::kInfinity ? 0 : m;
}

// The largest of 16 bytes.
template <Type type>
__device__ typename Number<type>::Bits largest_of(const uint4& x) {
  using Bits = typename Number<type>::Bits;
  const auto wide = [](unsigned low, unsigned high) { return Bits{high} << (sizeof(Bits) * 4) | low; };
  const auto two = [](unsigned word) {
    return max(magnitude<type>(static_cast<Bits>(word) & 0xffff0000U), magnitude<type>(static_cast<Bits>(word) << 16));
  };
  if constexpr (sizeof(Bits) == 8)
    return max(magnitude<type>(wide(x.x, x.y)), magnitude<type>(wide(x.z, x.w)));
  else if constexpr (sizeof(typename Number<type>::Stored) == 2)
    return max(max(two(x.x), two(x.y)), max(two(x.z), two(x.w)));
  else
    return max(max(magnitude<type>(x.x), magnitude<type>(x.y)), max(magnitude<type>(x.z), magnitude<type>(x.w)));
}

// Where piece i of a row lies, in bytes from its beginning.
__device__ std::int64_t place(const Tensor& t, unsigned i) {
  std::int64_t at = 0;
#pragma unroll
  for (int d = 0; d < RowMaxima::kDims - 1; ++d) {
    if (d + 1 == t.dims) return at + i * t.strides[d];
    const unsigned quotient = i / t.sizes[d];
    at += (i - quotient * t.sizes[d]) * t.strides[d];
    i = quotient;
  }
  return at + i * t.strides[RowMaxima::kDims - 1];
}

// Over this thread's pieces of a row. So many loads are on their way together; a piece that is not there is 0, the
// least of all.
template <typename Bits, typename Piece, unsigned AtOnce, typename Place, typename Largest>
__device__ Bits over_pieces(unsigned pieces, Place place_of, Largest largest) {
  Bits m = 0;
#pragma unroll 1
  for (unsigned i = threadIdx.x % kLanes; i < pieces; i += AtOnce * kLanes) {
    Piece piece[AtOnce] = {};
#pragma unroll
    for (unsigned k = 0; k < AtOnce; ++k)
      if (i + k * kLanes < pieces) piece[k] = *reinterpret_cast<const Piece*>(place_of(i + k * kLanes));
#pragma unroll
    for (unsigned k = 0; k < AtOnce; ++k) m = max(m, largest(piece[k]));
  }
  return m;
}

// Rows that lie in one piece, as nearly all do, need no divisions.
template <typename Bits, typename Piece, typename Largest>
__device__ Bits over_row(const Tensor& t, const char* row, Largest largest) {
  if (t.dims == 1)
    return over_pieces<Bits, Piece, kAtOnce>(
        t.sizes[0], [&](unsigned i) { return row + i * t.strides[0]; }, largest);
  unsigned pieces = t.sizes[0];
#pragma unroll
  for (int d = 1; d < RowMaxima::kDims; ++d)
    if (d < t.dims) pieces *= t.sizes[d];
  return over_pieces<Bits, Piece, 1>(
      pieces, [&](unsigned i) { return row + place(t, i); }, largest);
}

template <Type type>
__device__ void one_row(const RowMaxima& p, const Tensor& t, unsigned row) {
  using Stored = typename Number<type>::Stored;
  using Bits = typename Number<type>::Bits;
  const char* const data = static_cast<const char*>(t.data) + row * t.row_stride;
  Bits m;
  if (t.whole)
    m = over_row<Bits, uint4>(t, data, [](const uint4& x) { return largest_of<type>(x); });
  else
    m = over_row<Bits, Stored>(t, data, [&](Stored x) { return magnitude<type>(Number<type>::bits(x), t.positive); });
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) m = max(m, __shfl_xor_sync(kWarp, m, distance));
  if (threadIdx.x % kLanes != 0) return;
  const double value = Number<type>::value(m);
  if (p.wide)
    static_cast<double*>(p.largest)[t.first_row + row] = value;
  else
    static_cast<float*>(p.largest)[t.first_row + row] = static_cast<float>(value);
}

__global__ void __launch_bounds__(kThreads) row_maxima_kernel(const __grid_constant__ RowMaxima p) {
  unsigned which = 0;
  for (unsigned step = std::bit_floor(static_cast<unsigned>(RowMaxima::kMost)); step > 0; step /= 2)
    if (which + step < p.count && p.tensors[which + step].first_block <= blockIdx.x) which += step;
  const Tensor& t = p.tensors[which];
  const unsigned row = (blockIdx.x - t.first_block) * RowMaxima::kRowsOfABlock + threadIdx.x / kLanes;
  if (row >= t.rows) return;
  switch (t.type) {
    case Type::bf16:
      return one_row<Type::bf16>(p, t, row);
    case Type::fp16:
      return one_row<Type::fp16>(p, t, row);
    case Type::fp32:
      return one_row<Type::fp32>(p, t, row);
    case Type::fp64:
      return one_row<Type::fp64>(p, t, row);
  }
}

}  // namespace

void launch_row_maxima(const RowMaxima& p, cudaStream_t stream) {
  if (p.blocks == 0) return;
  row_maxima_kernel<<<p.blocks, kThreads, 0, stream>>>(p);
  nsa::kernels::check_launch("row_maxima");
}

}  // namespace suites::probes
