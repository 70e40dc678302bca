#include "nsa/cuda/cuda.hpp"

namespace nsa::cuda {

Ops ops() { return Ops{compress, attend_compressed, select, attend_selected, attend_window, combine}.in_one(attend); }

}  // namespace nsa::cuda
