// A product of matrices C = A B of 16-bit values, of whose result a function is taken before it is stored, on Hopper:
// one CTA an SM takes tile after tile.
//
//   producer warp                  shared memory               3 consumer warpgroups, 64 rows each
//   TMA: A [192][64], B [64][256] ──> ring of 4 places ─wgmma─> C [64][256] in registers, rounded; the function;
//                                                               64 bytes of a row from four threads to memory
//
// Barriers: `full` when a place is filled, `empty` when every consumer warp has read it.
//
// Note [Wide tiles]
// A tile of 192 x 256 reads 56 KB for 6.3 MFLOP, 37 bytes a cycle of the tensor cores; of 128 x 256 it would be 48, and
// L2 gives an SM some 40. The accumulators take 128 registers of a thread, which three warpgroups just have. While one
// takes the function of its tile, the others' products run, as far apart as the ring lets them drift: so all of the
// shared memory is the ring's, and results go to memory from registers.
#pragma once

#include <cuda.h>

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/hopper.hpp"
#include "nsa/kernels/device/ring.cuh"
#include "nsa/kernels/device/slab.cuh"
#include "nsa/kernels/device/softmax.cuh"
#include "nsa/kernels/device/tile.cuh"
#include "nsa/kernels/mlp.hpp"

namespace nsa::kernels::hopper {

struct ProductShape {
  static constexpr int kWarpgroups = 3, kThreads = 128 * (kWarpgroups + 1), kConsumerWarps = 4 * kWarpgroups;
  static constexpr int kRows = 64 * kWarpgroups, kColumns = 256, kDepth = 64, kStages = 4;
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;  // the launch gives everyone 128
  using Left = Slab<kRows, kDepth>;
  using Keys = Slab<kColumns, kDepth>;    // B as [columns][depth]
  using Values = Slab<kDepth, kColumns>;  // B as [depth][columns]
  static constexpr int kStageBytes = Left::kBytes + Keys::kBytes;
  static constexpr int kBarriersAt = kStages * kStageBytes;
  static constexpr int kSharedBytes = 1024 + kBarriersAt + 2 * kStages * 8;  // 1024: to align
  static_assert(Keys::kBytes == Values::kBytes && kStageBytes % 1024 == 0 && kSharedBytes <= 227 * 1024);
};

struct ProductPlaces {
  using S = ProductShape;
  std::uint32_t base;

  __device__ std::uint32_t left(int place) const { return base + place * S::kStageBytes; }
  __device__ std::uint32_t right(int place) const { return left(place) + S::Left::kBytes; }
  __device__ std::uint32_t full(int place) const { return base + S::kBarriersAt + place * 8; }
  __device__ std::uint32_t empty(int place) const { return full(S::kStages + place); }

  __device__ void start_barriers() const {
    for (int i = 0; i < S::kStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), S::kConsumerWarps);
    }
    fence_mbarrier_init();
  }
};

// The tiles of a CTA: those of the same rows side by side, so that CTAs at work share rows of A, and all of B.
class ProductTiles {
  using S = ProductShape;

 public:
  struct Tile {
    int row, column;  // the first
  };
  const int rows, columns, steps;

  __device__ ProductTiles(int row_count, int depth, int column_count)
      : rows(row_count),
        columns(column_count),
        steps(depth / S::kDepth),
        across_((column_count + S::kColumns - 1) / S::kColumns),
        end_((row_count + S::kRows - 1) / S::kRows * across_) {}
  __device__ static int first() { return static_cast<int>(blockIdx.x); }
  __device__ static int next(int number) { return number + static_cast<int>(gridDim.x); }
  __device__ bool has(int number) const { return number < end_; }
  __device__ Tile tile(int number) const { return {number / across_ * S::kRows, number % across_ * S::kColumns}; }

 private:
  const int across_, end_;
};

// One thread. `Transposed`: B lies as [columns][depth].
template <bool Transposed>
__device__ inline void produce_operands(const ProductTiles& tiles, const ProductPlaces& places, const CUtensorMap& a,
                                        const CUtensorMap& b) {
  using S = ProductShape;
  Ring<S::kStages> ring;
  for (int number = tiles.first(); tiles.has(number); number = tiles.next(number)) {
    const auto [row, column] = tiles.tile(number);
#pragma unroll 1
    for (int step = 0; step < tiles.steps; ++step, ring.advance()) {
      const int place = ring.place();
      const std::uint32_t full = places.full(place);
      mbarrier_wait(places.empty(place), ring.parity() ^ 1);
      mbarrier_arrive_expect_tx(full, S::kStageBytes);
      tma_load_rows(places.left(place), &a, 0, row, step, 0, full);
      if constexpr (Transposed) {
        tma_load_rows(places.right(place), &b, 0, column, step, 0, full);
      } else {
#pragma unroll
        for (int i = 0; i < S::kColumns / 64; ++i)
          tma_load_rows(places.right(place) + i * (S::Values::kBytes / 4), &b, 0, step * S::kDepth, column / 64 + i, 0,
                        full);
      }
    }
  }
}

// What a warp of a consumer warpgroup does: the tile's product, then `Result`, which has
//   begin(): the tile's products begin
//   write(c): the warp's 16 rows
// It is made anew for each, since during the products there is no register for what it knows.
template <typename T, bool Transposed, typename Result, typename Parameters>
__device__ inline void consume_operands(const Parameters& p, const ProductTiles& tiles, const ProductPlaces& places) {
  using S = ProductShape;
  const int warpgroup = uniform(threadIdx.x / 128 - 1);
  const bool leads = threadIdx.x % 32 == 0;
  Ring<S::kStages> ring;
  float c[2][S::kColumns / 16][4];  // columns 0-127, 128-255
  const auto start = [&]<int Accumulate>(int place) {
    const std::uint64_t a = wgmma_descriptor(uniform(places.left(place)) + warpgroup * (64 * 128), 16, 1024);
    const std::uint32_t right = uniform(places.right(place));
#pragma unroll
    for (int k = 0; k < S::kDepth / 16; ++k) {
      const std::uint64_t left = S::Left::columns_from(a, k);
      const auto product = [&](auto& half, int first) {
        using Product = Wgmma<T, S::kColumns / 2>;
        constexpr int kFirst = Accumulate;
        if constexpr (Transposed) {
          const std::uint64_t b = moved(S::Keys::columns(right, k), first * 128);
          if (k == 0)
            Product::template keys<kFirst>(half, left, b);
          else
            Product::template keys<1>(half, left, b);
        } else {
          const std::uint64_t b = moved(S::Values::rows(right, k), first * 128);
          if (k == 0)
            Product::template values<kFirst, false>(half, left, b);
          else
            Product::template values<1, false>(half, left, b);
        }
      };
      product(c[0], 0);
      product(c[1], S::kColumns / 2);
    }
    wgmma_commit();
  };
  const auto release = [&](int place) {
    if (leads) mbarrier_arrive(places.empty(place));
  };
  for (int number = tiles.first(); tiles.has(number); number = tiles.next(number)) {
    const auto tile = tiles.tile(number);
    Result(p, tiles, tile).begin();
    mbarrier_wait(places.full(ring.place()), ring.parity());
    pin(c[0]);
    pin(c[1]);
    wgmma_fence();
    start.template operator()<0>(ring.place());
    ring.advance();
#pragma unroll 1
    for (int step = 1; step < tiles.steps; ++step, ring.advance()) {
      mbarrier_wait(places.full(ring.place()), ring.parity());
      wgmma_fence();
      start.template operator()<1>(ring.place());
      wgmma_wait<1>();
      release(ring.last().place());
    }
    wgmma_wait<0>();
    pin(c[0]);
    pin(c[1]);
    release(ring.last().place());
    Result(p, tiles, tile).write(c);
  }
}

// What both results share: the thread's two rows of the tile, in steps of 32 columns, of which it has 8 beside each
// other (row_chunk).
template <typename T>
class ResultRows {
 protected:
  static constexpr int kSteps = ProductShape::kColumns / 32, kHalves = 2;
  using Accumulators = float[2][ProductShape::kColumns / 16][4];

  __device__ ResultRows(const ProductTiles& tiles, const ProductTiles::Tile& tile)
      : columns_(tiles.columns),
        row_(tile.row + (static_cast<int>(anew(threadIdx.x)) / 32 - 4) * 16 + static_cast<int>(threadIdx.x) % 32 / 4),
        column_(tile.column + static_cast<int>(threadIdx.x) % 4 * 8),
        steps_{row_ < tiles.rows ? steps_left() : 0, row_ + 8 < tiles.rows ? steps_left() : 0} {}

  // Where a matrix [rows][columns] has the first eight of row `half`.
  template <typename Element>
  __device__ Element* first(Element* matrix, int half) const {
    return matrix + static_cast<std::int64_t>(row_ + half * 8) * columns_ + column_;
  }
  __device__ bool has(int half, int step) const { return step < steps_[half]; }
  __device__ static uint4 chunk(const Accumulators& c, int half, int step) {
    return row_chunk<T>(c[step / (kSteps / 2)], step % (kSteps / 2), half, 1.f, false);
  }
  // `row`: first()'s.
  __device__ void store(T* row, int half, int step, const uint4& x) const {
    if (has(half, step)) store_whole(reinterpret_cast<uint4*>(row) + step * 4, x);
  }
  __device__ static float sigmoid(float x) { return reciprocal_fast(1.f + exp2_fast(-x * kLog2E)); }

 private:
  const int columns_, row_, column_;
  const int steps_[kHalves];  // that are inside the matrix

  __device__ int steps_left() const { return (columns_ - column_ + 31) / 32; }
};

// The product and its SiLU.
template <typename T>
class SiluResult : ResultRows<T> {
  using Base = ResultRows<T>;

 public:
  __device__ SiluResult(const SiluProduct& p, const ProductTiles& tiles, const ProductTiles::Tile& tile)
      : Base(tiles, tile), p_(p) {}
  __device__ void begin() const {}
  __device__ void write(const typename Base::Accumulators& c) const {
#pragma unroll
    for (int half = 0; half < Base::kHalves; ++half) {
      T *const to = this->first(static_cast<T*>(p_.hidden), half), *const to_active =
                                                                       this->first(static_cast<T*>(p_.active), half);
#pragma unroll
      for (int step = 0; step < Base::kSteps; ++step) {
        const uint4 hidden = Base::chunk(c, half, step);
        this->store(to, half, step, hidden);
        float x[kEight];
        widen<T>(x, hidden);
#pragma unroll
        for (float& each : x) each *= Base::sigmoid(each);
        this->store(to_active, half, step, narrowed<T>(x));
      }
    }
  }

 private:
  const SiluProduct& p_;
};

// The product times the derivative of the SiLU, whose inputs go into L2 while the product is made, and are asked for
// some steps ahead.
template <typename T>
class SiluDerivativeResult : ResultRows<T> {
  using Base = ResultRows<T>;

 public:
  __device__ SiluDerivativeResult(const SiluProductBackward& p, const ProductTiles& tiles,
                                  const ProductTiles::Tile& tile)
      : Base(tiles, tile), p_(p) {}
  // Each of a row's four threads asks for one of its four lines.
  __device__ void begin() const {
    const int line = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int half = 0; half < Base::kHalves; ++half)
      if (this->has(half, 2 * line)) prefetch_line(this->first(hidden(), half) + line * (64 - 8));
  }
  __device__ void write(const typename Base::Accumulators& c) const {
    constexpr int kAhead = 3, kAll = Base::kHalves * Base::kSteps;
    const T* const from[] = {this->first(hidden(), 0), this->first(hidden(), 1)};
    T* const to[] = {this->first(static_cast<T*>(p_.dhidden), 0), this->first(static_cast<T*>(p_.dhidden), 1)};
    uint4 asked[kAhead];
    const auto ask = [&](int i) {
      const int half = i % Base::kHalves, step = i / Base::kHalves;
      asked[i % kAhead] = make_uint4(0, 0, 0, 0);
      if (this->has(half, step)) asked[i % kAhead] = load_now(reinterpret_cast<const uint4*>(from[half]) + step * 4);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ask(i);
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
      const int half = i % Base::kHalves, step = i / Base::kHalves;
      float x[kEight], d[kEight];
      widen<T>(x, asked[i % kAhead]);
      if (i + kAhead < kAll) ask(i + kAhead);
      widen<T>(d, Base::chunk(c, half, step));
#pragma unroll
      for (int k = 0; k < kEight; ++k) d[k] *= derivative(x[k]);
      this->store(to[half], half, step, narrowed<T>(d));
    }
  }

 private:
  const SiluProductBackward& p_;

  __device__ const T* hidden() const { return static_cast<const T*>(p_.hidden); }
  __device__ static float derivative(float x) {
    const float s = Base::sigmoid(x);
    return s * (1.f + x * (1.f - s));
  }
};

// Result: SiluResult with SiluProduct, or SiluDerivativeResult with SiluProductBackward.
template <typename T, bool Transposed, typename Result, typename Parameters>
__global__ void __launch_bounds__(ProductShape::kThreads, 1)
    silu_product_kernel(const __grid_constant__ Parameters p, const __grid_constant__ CUtensorMap a,
                        const __grid_constant__ CUtensorMap b) {
#if NSA_ON_HOPPER
  extern __shared__ char shared[];
  const ProductPlaces places{(shared_address(shared) + 1023) / 1024 * 1024};
  const ProductTiles tiles(p.rows, p.inner, p.wide);
  if (threadIdx.x == 0) places.start_barriers();
  __syncthreads();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<ProductShape::kProducerRegisters>();
    if (threadIdx.x == 0) produce_operands<Transposed>(tiles, places, a, b);
  } else {
    setmaxnreg_inc<ProductShape::kConsumerRegisters>();
    consume_operands<T, Transposed, Result>(p, tiles, places);
  }
#else
  __trap();
#endif
}

}  // namespace nsa::kernels::hopper
