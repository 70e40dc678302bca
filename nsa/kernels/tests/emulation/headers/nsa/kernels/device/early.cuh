// The emulated counterpart of the header of this name. Kernels run one after the other; what one that begins early
// reads too soon is an error (launches.hpp).
#pragma once

#include <source_location>

#include "nsa/kernels/device/launch.hpp"
#include "nsa/kernels/tests/emulation/cuda.hpp"

namespace nsa::kernels {

inline void griddepcontrol_launch_dependents() { emulation::griddepcontrol_launch_dependents(); }
inline void griddepcontrol_wait() { emulation::griddepcontrol_wait(); }

struct Early {
  bool early;
  std::source_location from;
  // NOLINTNEXTLINE(google-explicit-constructor): of the call, whose place it takes along
  Early(bool x, const std::source_location& at = std::source_location::current()) : early(x), from(at) {}
};
template <typename... Parameters, typename... Arguments>
void launch(Early how, void (*kernel)(Parameters...), dim3 ctas, int threads, int bytes, cudaStream_t stream,
            const Arguments&... arguments) {
  emulation::Grid grid(ctas, static_cast<unsigned>(threads), bytes, stream, how.from);
  grid.early = how.early;
  kernel | grid | emulation::arguments(arguments...);
}

}  // namespace nsa::kernels
