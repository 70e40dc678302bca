// torch.autocast: its 16 bits for what the kernels multiply. Gates, statistics and fp64 stay as they are.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "python/dispatcher.hpp"
#include "python/operators.hpp"

namespace nsa::python {

namespace {

// Before autograd, which sees the cast.
Tensor lowered(const Tensor& x) {
  const bool counts = x.is_floating_point() && x.scalar_type() != at::kDouble;
  return counts ? x.to(at::autocast::get_autocast_dtype(x.is_cuda() ? at::kCUDA : at::kCPU)) : x;
}

template <auto function>
const char* name_of = nullptr;

// Calls the operator of `function` with its arguments [first, last) lowered.
template <auto function, std::size_t first, std::size_t last>
struct Lowering;
template <typename Result, typename... Args, Result (*function)(Args...), std::size_t first, std::size_t last>
struct Lowering<function, first, last> {
  static Result call(Args... args) { return with(std::index_sequence_for<Args...>(), args...); }

 private:
  template <std::size_t i, typename T>
  static decltype(auto) argument(const T& x) {
    if constexpr (i >= first && i < last)
      return lowered(x);
    else
      return (x);
  }
  template <std::size_t... i>
  static Result with(std::index_sequence<i...> /*places*/, const std::remove_reference_t<Args>&... args) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return operator_of<function>(name_of<function>).call(argument<i>(args)...);
  }
};

template <auto function, std::size_t first, std::size_t last>
void lower(torch::Library& m, const char* name) {
  name_of<function> = name;
  m.impl(name, &Lowering<function, first, last>::call);
}

void lower_all(torch::Library& m) {
  lower<&compress, 0, 2>(m, "nsa::compress");
  lower<&attend_compressed, 0, 3>(m, "nsa::attend_compressed");
  lower<&select, 0, 2>(m, "nsa::select");
  lower<&attend_selected, 0, 3>(m, "nsa::attend_selected");
  lower<&attend_window, 0, 3>(m, "nsa::attend_window");
  lower<&combine, 1, 4>(m, "nsa::combine");
  lower<&attend, 0, 7>(m, "nsa::attend");
  lower<&attention, 0, 7>(m, "nsa::attention");
}

TORCH_LIBRARY_IMPL(nsa, AutocastCPU, m) { lower_all(m); }
TORCH_LIBRARY_IMPL(nsa, AutocastCUDA, m) { lower_all(m); }

}  // namespace

}  // namespace nsa::python
