#include "nsa/cuda/combine.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nsa/cuda/cuda.hpp"
#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::size_t kCombined = 3;

struct Combine : torch::autograd::Function<Combine> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gates, const at::Tensor& o_cmp,
                            const at::Tensor& o_sel, const at::Tensor& o_win) {
    auto o = combine_forward({gates, o_cmp, o_sel, o_win});
    context->save_for_backward({gates, o_cmp, o_sel, o_win});
    context->set_materialize_grads(false);
    return o;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("combine");
    if (!gradients[0].defined()) return variable_list(kCombineInputs);
    const auto saved = context->get_saved_variables();
    std::array<bool, kCombineInputs> wanted{};
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = context->needs_input_grad(i);
    const auto result = combine_backward({saved[0], saved[1], saved[2], saved[3]}, aligned(gradients[0]), wanted);
    return {result.begin(), result.end()};
  }
};

}  // namespace

at::Tensor gates_for_kernels(const at::Tensor& gates, at::ScalarType storage) {
  return (gates.scalar_type() == storage ? gates : gates.to(at::kFloat)).contiguous();
}

kernels::Combine combine_parameters(const at::Tensor& gates, const at::Tensor& o_cmp, const at::Tensor& o_sel,
                                    const at::Tensor& o_win) {
  kernels::Combine p;
  p.gates = gates.const_data_ptr();
  p.gates_fp32 = gates.scalar_type() == at::kFloat;
  const std::array branches = {o_cmp, o_sel, o_win};
  for (std::size_t i = 0; i < kCombined; ++i)
    if (branches[i].defined()) p.branch[i] = rows_of("a branch's output", branches[i]);
  p.B = size_of(o_cmp, 0);
  p.S = size_of(o_cmp, 1);
  p.Hq = size_of(o_cmp, 2);
  p.G = size_of(gates, 2);
  p.Dv = size_of(o_cmp, 3);
  p.storage = storage_of(o_cmp);
  return p;
}

at::Tensor combine_forward(const CombineTensors& given) {
  const auto& [gates, o_cmp, o_sel, o_win] = given;
  const OnDeviceOf device(o_cmp);
  auto o = empty(o_cmp.sizes(), o_cmp.scalar_type(), o_cmp);
  auto p = combine_parameters(gates, o_cmp, o_sel, o_win);
  p.o = rows_of("o", o);
  kernels::combine_forward(p, device.stream());
  return o;
}

CombineTensors combine_backward(const CombineTensors& given, const at::Tensor& dout,
                                const std::array<bool, kCombineInputs>& wanted) {
  const OnDeviceOf device(dout);
  kernels::CombineBackward p;
  p.forward = combine_parameters(given[0], given[1], given[2], given[3]);
  p.dout = rows_of("dout", dout);
  CombineTensors result;
  for (std::size_t i = 0; i < result.size(); ++i)
    if (wanted[i]) result[i] = empty(given[i].sizes(), given[i].scalar_type(), given[i]);
  if (result[0].defined()) p.dgates = result[0].data_ptr();
  for (std::size_t i = 0; i < kCombined; ++i)
    if (result[i + 1].defined()) p.dbranch[i] = rows_of("a branch's gradient", result[i + 1]);
  kernels::combine_backward(p, device.stream());
  return result;
}

at::Tensor combine(const CombineArgs& args) {
  check(args);
  const auto& o = args.o_cmp;
  // One width only: that of the values.
  require(o, {.G = args.gates.size(2), .Dv = o.size(3), .geometry = {}}, Op::combine);
  const OnDeviceOf device(o);
  return Combine::apply(gates_for_kernels(args.gates, o.scalar_type()), aligned(o), aligned(args.o_sel),
                        aligned(args.o_win));
}

}  // namespace nsa::cuda
