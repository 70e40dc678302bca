// What fibers.cpp, which runs a block of threads, and products.cpp know of each other.
#pragma once

#include <cstdint>

namespace nsa::kernels::emulation {

// What memory holds before anything was written: a NaN in fp32, bf16 and fp16, and no index of anything.
inline constexpr std::uint32_t kRubbish = 0x7fc17fc1;

// Shared memory as products see it: what cp.async wrote and publish_to_async() has shown.
char* published_at(std::uint32_t address, int bytes);

// Before and after a block.
void begin_products(int threads);
void end_products();

}  // namespace nsa::kernels::emulation
