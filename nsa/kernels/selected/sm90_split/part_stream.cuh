// The parts of a warp's 16 rows (token, head) on their way from memory to its registers.
//
// Note [Parts by TMA]
// A token's heads of one part lie one behind the other, so that a copy or a few fetch a part of 16 rows. A ring in
// shared memory keeps some on their way whatever the warp computes meanwhile: memory's rate wants 40 KB of an SM asked
// for at any time, more than registers hold besides a product's.
#pragma once

#include "nsa/kernels/device/eight.cuh"
#include "nsa/kernels/device/wgmma.cuh"

namespace nsa::kernels::hopper {

__device__ inline bool has(unsigned found, int i) { return (found >> i & 1) != 0; }

// Of the lanes of a quad rows g and g + 8, as in m16n8k16's layout. Round after round of up to 32 parts,
// all lanes together.
template <typename T, int D, int Places>
class PartStream {
 public:
  static constexpr int kRows = 16, kRowBytes = D * 2, kPlaceBytes = kRows * kRowBytes;

  // `ring`: Places places in shared memory, `barriers`: as many, started for one arrival. `tokens`: rows of the warp
  // that begin with row g (+ 8) and are its token's, where the quad's row is the first of them; 0: not the first.
  __device__ PartStream(char* ring, std::uint32_t barriers, const int (&tokens)[2])
      : ring_(ring), barriers_(barriers), bytes_{tokens[0] * kRowBytes, tokens[1] * kRowBytes} {}

  // A round: of row g (+ 8) the parts `found`; part i stands i * stride elements after `source`.
  __device__ void begin(const unsigned (&found)[2], const T* const (&source)[2], int stride) {
    stride_ = stride;
#pragma unroll
    for (int half = 0; half < 2; ++half) to_ask_[half] = to_add_[half] = found[half], source_[half] = source[half];
    end_ = used_ + __reduce_max_sync(0xffffffffu, max(__popc(found[0]), __popc(found[1])));
#pragma unroll 1
    for (int i = 0; i < Places; ++i) ask();
  }
  [[nodiscard]] __device__ bool has_more() const { return used_ < end_; }
  // Waits for the next part of every row and calls add(half, part, values), values[j] being the lane's of the columns
  // 32*j.. (Note [Order of a part]), for those that have one.
  template <typename Add>
  __device__ void next(Add&& add) {
    const int place = used_ % Places;
    mbarrier_wait(barriers_ + place * 8, used_ / Places & 1);
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (to_add_[half] == 0) continue;
      const uint4* row =
          reinterpret_cast<const uint4*>(ring_ + place * kPlaceBytes + (lane / 4 + 8 * half) * kRowBytes);
      uint4 values[D / 32];
#pragma unroll
      for (int j = 0; j < D / 32; ++j) values[j] = row[j * 4 + lane % 4];
      add(half, take(to_add_[half]), values);
    }
    __syncwarp();  // the place is used up
    ++used_;
    ask();
  }

 private:
  __device__ static int take(unsigned& left) {
    const int i = __ffs(static_cast<int>(left)) - 1;
    left &= left - 1;
    return i;
  }
  __device__ void ask() {
    if (asked_ == end_) return;
    const int place = asked_ % Places, lane = threadIdx.x & 31;
    int rows = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      rows += __popc(__ballot_sync(0xffffffffu, to_ask_[half] != 0 && lane % 4 == 0));
    if (lane == 0) mbarrier_arrive_expect_tx(barriers_ + place * 8, rows * kRowBytes);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (to_ask_[half] == 0) continue;
      const int part = take(to_ask_[half]);
      if (bytes_[half] > 0 && lane % 4 == 0)
        bulk_load(shared_address(ring_) + place * kPlaceBytes + (lane / 4 + 8 * half) * kRowBytes,
                  source_[half] + part * stride_, bytes_[half], barriers_ + place * 8);
    }
    ++asked_;
  }

  char* ring_;
  std::uint32_t barriers_;
  int bytes_[2], stride_ = 0;
  unsigned asked_ = 0, used_ = 0, end_ = 0;  // parts of all rounds
  unsigned to_ask_[2], to_add_[2];
  const T* source_[2];
};

}  // namespace nsa::kernels::hopper
