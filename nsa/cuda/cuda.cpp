#include "nsa/cuda/cuda.hpp"

namespace nsa::cuda {

Ops ops(const OnLaunch& on_launch, bool in_one_graph) {
  const auto told = [&](auto* function) {
    return [function, on_launch](const auto& args) { return function(args, on_launch); };
  };
  return Ops{compress, told(attend_compressed), told(select), told(attend_selected), told(attend_window), combine}
      .in_one([=](const AttendArgs& args) { return attend(args, on_launch, in_one_graph); });
}

}  // namespace nsa::cuda
