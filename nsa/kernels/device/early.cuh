// Kernels that begin while the one before them on the stream ends (programmatic dependent launch).
//
// Note [Early kernels]
// Of a chain of short kernels each waits for the last CTAs of the one before, and then for its own first
// loads. A kernel that is launched early gets the SMs as they become free, and asks for what does not hang
// on the kernel before. Rules: every CTA of every kernel of the chain waits (griddepcontrol_wait) before it
// writes anything or ends, so that a kernel's end is the end of all before it; and what it reads before that was
// written before the chain. The chain's first kernel is launched as usual, or it is early too, waits before it reads,
// and lets the next one begin only then.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <tuple>
#include <type_traits>

#include "nsa/kernels/device/launch.hpp"

namespace nsa::kernels {

// The next kernel may begin as soon as all CTAs of this one have called it or ended.
__device__ inline void griddepcontrol_launch_dependents() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Until the kernel before has ended. What it has written is then to be seen.
__device__ inline void griddepcontrol_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// kernel<<<ctas, threads, bytes, stream>>>(arguments...), early or as usual. Every launch of the attention goes this
// way.
template <typename... Parameters, typename... Arguments>
void launch(bool early, void (*kernel)(Parameters...), dim3 ctas, int threads, int bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...), "the runtime copies arguments byte by byte");
  static constexpr std::size_t kSizes[] = {sizeof(Parameters)...};
  std::tuple<Parameters...> all{Parameters(arguments)...};
  std::apply(
      [&](auto&... each) {
        void* const values[] = {&each...};
        put_on(stream, {reinterpret_cast<const void*>(kernel), ctas, dim3(static_cast<unsigned>(threads)),
                        static_cast<std::size_t>(bytes), early, values, kSizes});
      },
      all);
}

}  // namespace nsa::kernels
