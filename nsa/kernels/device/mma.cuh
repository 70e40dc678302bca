// The few instructions that CUDA C++ has no name for: asynchronous copies into shared memory, matrix fragments from it,
// and the warp's matrix product m16n8k16. Own wrappers rather than CuTe: they compile in a fraction of the time and
// bring no dependency; a reader needs the fragment layouts below and nothing else.
//
// m16n8k16 of one warp, g = lane / 4, i = lane % 4. A register of A and B holds two 16-bit values, the lower column (B:
// the lower row) in the low half:
//   A [16 x 16]  a0: row g,       columns 2i, 2i+1      a1: row g + 8, the same columns
//                a2: row g,       columns 2i+8, 2i+9    a3: row g + 8, the same columns
//   B [16 x 8]   b0: column g,    rows 2i, 2i+1         b1: column g,  rows 2i+8, 2i+9
//   C [16 x 8]   c0, c1: row g,   columns 2i, 2i+1      c2, c3: row g + 8, the same columns
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace nsa::kernels {

using bf16 = __nv_bfloat16;
using fp16 = __half;

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, or 16 zero bytes where `valid` is false (then nothing is read from `source`).
__device__ inline void cp_async(std::uint32_t destination, const void* source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// A product that the compiler does not make part of a fused sum.
__device__ inline float multiply_rounded(float x, float y) { return __fmul_rn(x, y); }

// One store to global memory, of which nvcc makes four now and then.
__device__ inline void store_whole(uint4* to, const uint4& x) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// Holds the compiler from unpacking what was loaded before this point, which would make it wait for one load before it
// asks for the next.
__device__ inline void hold(uint4& x) { asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)); }

__device__ inline void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void ldmatrix_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// c += a * b
template <typename T>
__device__ inline void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
template <>
__device__ inline void mma<bf16>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma<fp16>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two fp32 rounded to the storage type; `low` in the low half.
template <typename T>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<bf16>(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
template <>
__device__ inline std::uint32_t pack<fp16>(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
template <typename T>
__device__ inline float2 unpack(std::uint32_t both);
template <>
__device__ inline float2 unpack<bf16>(std::uint32_t both) {
  return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};  // the library's takes an instruction more
}
template <>
__device__ inline float2 unpack<fp16>(std::uint32_t both) {
  return __half22float2(*reinterpret_cast<const __half2*>(&both));
}

// A load that stays where it stands: nvcc puts one off to where it is used, beyond a wait for another.
__device__ inline uint4 load_now(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ inline float2 load_now(const float2* from) {
  float2 x;
  asm volatile("ld.global.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
  return x;
}

// Into L2, for who reads it soon: the line of 128 bytes.
__device__ inline void prefetch_line(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
__device__ inline float exp2_fast(float x) {  // 2 ulp; 2^-inf = 0; denormal results are 0
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_fast(float x) {  // 1 ulp; of inf 0; denormal results are 0
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace nsa::kernels
