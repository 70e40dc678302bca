#include "nsa/kernels/params.hpp"
#include "suites/faults/wait_kernel.hpp"

namespace suites {

namespace {

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void wait_kernel(const WaitLaw law, std::uint64_t* calls) {
  const std::uint64_t begin = nanoseconds(), n = ++*calls;
  const std::uint64_t due = law.of(n);
  while (nanoseconds() - begin < due) __nanosleep(1000);
}

}  // namespace

void launch_wait(const WaitLaw& law, std::uint64_t* calls, cudaStream_t stream) {
  wait_kernel<<<1, 1, 0, stream>>>(law, calls);
  nsa::kernels::check_launch("wait");
}

}  // namespace suites
