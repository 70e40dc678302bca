// The matrix product of a warpgroup (four warps) on Hopper, wgmma, which reads its operands from shared memory by
// itself; and setmaxnreg.
//
// Note [Operands in shared memory]
// A tile [rows][D] of 16-bit values lies as D/64 slabs [rows][64], so that a row of a slab is 128 bytes; its 16-byte
// chunk c lies at place c ^ (row % 8). This is what TMA writes and wgmma reads as "128-byte swizzle"; a slab starts at
// a multiple of 1024 bytes.
//   D is summed over (Q and K in Q*K^T, "K-major"):
//     eight rows are 1024 bytes apart from the next eight (stride offset);
//     sixteen columns further is 32 bytes further, inside the swizzle.
//   rows are summed over (V in P*V, "MN-major", transposed):
//     64 columns further is one slab further (leading offset);
//     eight rows further is 1024 bytes (stride offset); a step of sixteen rows is 2048 bytes further.
//
// Note [Accumulators]
// c[n][0..3] of a thread, g = lane / 4, i = lane % 4: rows 16*warp + g (c[n][0], c[n][1]) and 16*warp + g + 8,
// columns 8*n + 2*i and 8*n + 2*i + 1. That is m16n8k16's layout, so as_a() turns a result into the left operand of
// the next product.
#pragma once

#include "nsa/kernels/device/tma.cuh"

namespace nsa::kernels::hopper {

// The same value for every thread of the warp, in a way that the compiler sees: it then keeps what is computed from it
// in uniform registers, where wgmma wants its operands' descriptions, instead of moving them there before each product.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// The same value, computed here: what a loop always computes the same way the compiler would otherwise keep in
// registers from before the loop on, and spill them where there are no more.
__device__ inline std::uint32_t anew(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- registers: warpgroups of one kernel share them unevenly. Ctas: of an SM, as the kernel is bound to

template <int Count, int Ctas = 1>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count, int Ctas = 1>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

// ---- matrix products

// Four 8 x 8 matrices of a warp to shared memory, as ldmatrix reads them: lane i says where row i % 8 of matrix i
// / 8 goes. as_a()'s registers are rows 0..7 and 8..15 of the first eight columns, then of the next eight.
__device__ inline void stmatrix(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

__device__ inline std::uint64_t wgmma_descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
  return (address & 0x3FFFF) >> 4 | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32 | std::uint64_t{1} << 62;
}
// Before the first product, and whenever registers that a product reads or adds to were written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Holds the compiler from moving uses of a result across this point: it does not know that a product runs on.
template <int N>
__device__ inline void pin(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

// Starts c [64 x N] (+)= a [64 x 16] * b [16 x N]. `keys`: both from shared memory, summed over columns (c = a * b when
// Accumulate is 0). `values`: b from shared memory, summed over its rows; a from registers, or from shared memory,
// where it is summed over its columns, or, `OfRows` (a tile [16][64] of which a is the transpose), over its rows too.
template <typename T, int N>
struct Wgmma;

// The operands of the instruction: the accumulators are %0 .. %(N/2 - 1), then come a and b.
#define NSA_C(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define NSA_C8(n) \
  NSA_C(n), NSA_C(n + 1), NSA_C(n + 2), NSA_C(n + 3), NSA_C(n + 4), NSA_C(n + 5), NSA_C(n + 6), NSA_C(n + 7)
#define NSA_TEN(a) "%" a "0,%" a "1,%" a "2,%" a "3,%" a "4,%" a "5,%" a "6,%" a "7,%" a "8,%" a "9,"
#define NSA_FIFTY NSA_TEN("") NSA_TEN("1") NSA_TEN("2") NSA_TEN("3") NSA_TEN("4")
#define NSA_LIST_32 NSA_TEN("") "%10,%11,%12,%13,%14,%15"
#define NSA_LIST_48 NSA_TEN("") NSA_TEN("1") "%20,%21,%22,%23"
#define NSA_LIST_64 NSA_TEN("") NSA_TEN("1") NSA_TEN("2") "%30,%31"
#define NSA_LIST_96 NSA_TEN("") NSA_TEN("1") NSA_TEN("2") NSA_TEN("3") "%40,%41,%42,%43,%44,%45,%46,%47"
#define NSA_LIST_112 NSA_FIFTY "%50,%51,%52,%53,%54,%55"
#define NSA_LIST_128 NSA_FIFTY NSA_TEN("5") "%60,%61,%62,%63"
#define NSA_LIST_144 NSA_FIFTY NSA_TEN("5") NSA_TEN("6") "%70,%71"
#define NSA_LIST_192 NSA_FIFTY NSA_TEN("5") NSA_TEN("6") NSA_TEN("7") NSA_TEN("8") "%90,%91,%92,%93,%94,%95"
#define NSA_C_32 NSA_C(0), NSA_C(1), NSA_C(2), NSA_C(3)
#define NSA_C_48 NSA_C_32, NSA_C(4), NSA_C(5)
#define NSA_C_64 NSA_C8(0)
#define NSA_C_96 NSA_C8(0), NSA_C(8), NSA_C(9), NSA_C(10), NSA_C(11)
#define NSA_C_112 NSA_C8(0), NSA_C(8), NSA_C(9), NSA_C(10), NSA_C(11), NSA_C(12), NSA_C(13)
#define NSA_C_128 NSA_C8(0), NSA_C8(8)
#define NSA_C_144 NSA_C8(0), NSA_C8(8), NSA_C(16), NSA_C(17)
#define NSA_C_192 NSA_C8(0), NSA_C8(8), NSA_C8(16)

#define NSA_WGMMA(T, NAME, N, I0, I1, I2, I3, I4, I5)                                                   \
  template <>                                                                                           \
  struct Wgmma<T, N> {                                                                                  \
    template <int Accumulate>                                                                           \
    __device__ static void keys(float (&c)[N / 8][4], std::uint64_t a, std::uint64_t b) {               \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" I2                                          \
                   ", 0;\n"                                                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NSA_LIST_##N    \
                   "}, "                                                                                \
                   "%" I0 ", %" I1 ", add, 1, 1, 0, 0;\n}"                                              \
                   : NSA_C_##N                                                                          \
                   : "l"(a), "l"(b), "n"(Accumulate));                                                  \
    }                                                                                                   \
    template <int Accumulate = 1>                                                                       \
    __device__ static void values(float (&c)[N / 8][4], const std::uint32_t (&a)[4], std::uint64_t b) { \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" I5                                          \
                   ", 0;\n"                                                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NSA_LIST_##N    \
                   "}, "                                                                                \
                   "{%" I0 ",%" I1 ",%" I2 ",%" I3 "}, %" I4 ", add, 1, 1, 1;\n}"                       \
                   : NSA_C_##N                                                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(Accumulate));              \
    }                                                                                                   \
    template <int Accumulate, bool OfRows>                                                              \
    __device__ static void values(float (&c)[N / 8][4], std::uint64_t a, std::uint64_t b) {             \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" I2                                          \
                   ", 0;\n"                                                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NSA_LIST_##N    \
                   "}, "                                                                                \
                   "%" I0 ", %" I1 ", add, 1, 1, %" I3 ", 1;\n}"                                        \
                   : NSA_C_##N                                                                          \
                   : "l"(a), "l"(b), "n"(Accumulate), "n"(OfRows ? 1 : 0));                             \
    }                                                                                                   \
  };
#define NSA_WGMMAS(T, NAME)                                   \
  NSA_WGMMA(T, NAME, 32, "16", "17", "18", "19", "20", "21")  \
  NSA_WGMMA(T, NAME, 48, "24", "25", "26", "27", "28", "29")  \
  NSA_WGMMA(T, NAME, 64, "32", "33", "34", "35", "36", "37")  \
  NSA_WGMMA(T, NAME, 96, "48", "49", "50", "51", "52", "53")  \
  NSA_WGMMA(T, NAME, 112, "56", "57", "58", "59", "60", "61") \
  NSA_WGMMA(T, NAME, 128, "64", "65", "66", "67", "68", "69") \
  NSA_WGMMA(T, NAME, 144, "72", "73", "74", "75", "76", "77") \
  NSA_WGMMA(T, NAME, 192, "96", "97", "98", "99", "100", "101")
NSA_WGMMAS(bf16, "bf16")
NSA_WGMMAS(fp16, "f16")
#undef NSA_WGMMAS
#undef NSA_WGMMA
#undef NSA_C_32
#undef NSA_C_64
#undef NSA_C_96
#undef NSA_C_112
#undef NSA_C_128
#undef NSA_C_144
#undef NSA_C_192
#undef NSA_LIST_32
#undef NSA_LIST_64
#undef NSA_LIST_96
#undef NSA_LIST_112
#undef NSA_LIST_128
#undef NSA_LIST_144
#undef NSA_LIST_192
#undef NSA_FIFTY
#undef NSA_TEN
#undef NSA_C8
#undef NSA_C

}  // namespace nsa::kernels::hopper
