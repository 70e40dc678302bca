#include "nsa/cuda/cuda.hpp"

namespace nsa::cuda {

Ops ops() { return {compress, attend_compressed, select, attend_selected, attend_window, combine}; }

}  // namespace nsa::cuda
