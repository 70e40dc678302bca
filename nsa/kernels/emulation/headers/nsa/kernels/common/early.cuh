// Kernels run one after the other here: in the place of common/early.cuh.
#pragma once

#include "nsa/kernels/emulation/cuda.hpp"

namespace nsa::kernels {

inline void let_next_begin() {}
inline void wait_for_previous() {}

template <typename... Parameters, typename... Arguments>
void launch(bool, void (*kernel)(Parameters...), dim3 blocks, int threads, int bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  kernel | emulation::Grid(blocks, static_cast<unsigned>(threads), bytes, stream) | emulation::arguments(arguments...);
}

}  // namespace nsa::kernels
