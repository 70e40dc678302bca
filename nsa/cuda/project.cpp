#include "nsa/cuda/project.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "nsa/cuda/rows.hpp"
#include "nsa/cuda/stream.hpp"
#include "nsa/kernels/gate.hpp"
#include "nsa/kernels/rotate.hpp"
#include "nsa/ops.hpp"

namespace nsa::cuda {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::size_t kFirstValue = 1 + kernels::kKinds;  // in the order of the projections

// Columns of the product that each projection has, and all together.
std::array<std::int64_t, kProjections> widths_of(const ProjectShape& s) {
  const std::int64_t keys = s.G * s.Dk, values = s.G * s.Dv;
  return {s.Hq * s.Dk, keys, keys, keys, values, values, values};
}
std::int64_t width_of(const ProjectShape& s) { return s.Hq * s.Dk + kernels::kKinds * s.G * (s.Dk + s.Dv); }

// Parts of a tensor along dimension 0 or the last one. They share its memory and are no views of autograd's, which
// would tie the versions of all together.
std::vector<at::Tensor> parts_of(const at::Tensor& whole, std::int64_t dim, const ProjectShape& s) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  std::vector<at::Tensor> parts;
  std::int64_t first = 0;
  for (const std::int64_t width : widths_of(s)) {
    parts.push_back(whole.narrow(dim, first, width));
    first += width;
  }
  return parts;
}

kernels::Rotate parameters(const at::Tensor& rows, const at::Tensor& rotations, const ProjectShape& s) {
  kernels::Rotate p;
  p.rows = rows.data_ptr();
  p.rotations = static_cast<const float*>(rotations.const_data_ptr());
  p.width = width_of(s);
  p.B = size_of(rows, 0);
  p.S = size_of(rows, 1);
  p.Hq = static_cast<int>(s.Hq);
  p.G = static_cast<int>(s.G);
  p.Dk = static_cast<int>(s.Dk);
  p.Dv = static_cast<int>(s.Dv);
  p.storage = storage_of(rows);
  return p;
}

kernels::Gate parameters(const GateArgs& args, const at::Tensor& gates) {
  kernels::Gate p;
  p.mean = static_cast<const float*>(args.mean.const_data_ptr());
  p.w1 = args.w1.const_data_ptr();
  p.b1 = args.b1.const_data_ptr();
  p.w2 = args.w2.const_data_ptr();
  p.b2 = args.b2.const_data_ptr();
  p.gates = static_cast<float*>(gates.data_ptr());
  p.rows = gates.numel() / gates.size(3);
  p.Dk = size_of(args.mean, 3);
  p.tau = static_cast<float>(args.tau);
  p.softmax = args.activation == GateActivation::softmax;
  p.storage = storage_of(args.w1);
  return p;
}

void expect(bool fits, const char* name, const at::Tensor& t, const std::string& allowed) {
  if (fits) return;
  throw ContractError(fmt::format("project: {} is {} [{}]; allowed: {}", name, c10::toString(t.scalar_type()),
                                  fmt::join(t.sizes(), ", "), allowed));
}

bool is_narrow(const at::Tensor& t) { return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf; }

void check(const at::Tensor& x, const ProjectTensors& weights, const at::Tensor& rotations, const ProjectShape& s) {
  expect(x.dim() == 3 && is_narrow(x), "x", x, "BFloat16 or Half [B,S,dim]");
  const auto widths = widths_of(s);
  for (std::size_t i = 0; i < weights.size(); ++i)
    expect(weights[i].scalar_type() == x.scalar_type() && weights[i].sizes() == at::IntArrayRef{widths[i], x.size(2)},
           "a projection's weight", weights[i], fmt::format("x's type, [{}, {}]", widths[i], x.size(2)));
  expect(rotations.scalar_type() == at::kComplexFloat && rotations.sizes() == at::IntArrayRef{x.size(1), s.Dk / 2},
         "the rotations", rotations, fmt::format("ComplexFloat [{}, {}]", x.size(1), s.Dk / 2));
}

void check(const GateArgs& a) {
  const std::int64_t Dk = a.mean.size(-1), hidden = Dk / 2;
  expect(a.mean.dim() == 4 && a.mean.scalar_type() == at::kFloat, "the mean", a.mean, "Float [B,S,G,Dk]");
  expect(is_narrow(a.w1) && a.w1.sizes() == at::IntArrayRef{hidden, Dk}, "the gate's fc1 weight", a.w1,
         fmt::format("BFloat16 or Half [{}, {}]", hidden, Dk));
  const auto same = [&](const char* name, const at::Tensor& t, at::IntArrayRef sizes) {
    expect(t.scalar_type() == a.w1.scalar_type() && t.sizes() == sizes, name, t,
           fmt::format("fc1's type, [{}]", fmt::join(sizes, ", ")));
  };
  same("the gate's fc1 bias", a.b1, {hidden});
  same("the gate's fc2 weight", a.w2, {3, hidden});
  same("the gate's fc2 bias", a.b2, {3});
}

struct Project : torch::autograd::Function<Project> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                               const at::Tensor& rotations, const ProjectShape& shape) {
    const at::Tensor weight = at::cat(weights);
    const Projection result = project_forward(x, weight, rotations, shape);
    context->save_for_backward({x, weight, rotations});
    context->saved_data["shape"] = std::vector<std::int64_t>{shape.Hq, shape.G, shape.Dk, shape.Dv};
    context->set_materialize_grads(false);
    variable_list all(result.heads.begin(), result.heads.end());
    all.push_back(result.mean);
    return all;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("project");
    variable_list result(1 + kProjections + 2);
    Projection given;
    bool any = false;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      any = true;
      if (i < kProjections)
        given.heads[i] = aligned(gradients[i]);
      else
        given.mean = gradients[i].contiguous();
    }
    if (!any) return result;
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const auto sizes = context->saved_data.at("shape").toIntVector();
    const ProjectShape shape{sizes[0], sizes[1], sizes[2], sizes[3]};
    const at::Tensor drows = project_backward(given, x, saved[2], shape).flatten(0, 1);
    if (context->needs_input_grad(0)) result[0] = at::mm(drows, weight).view(x.sizes());
    // A weight that no gradient came to has none either, as if it had a product of its own.
    std::array<bool, kProjections> wanted{};
    for (std::size_t i = 0; i < kProjections; ++i)
      wanted[i] = context->needs_input_grad(1 + i) && (gradients[i].defined() || (i == 0 && given.mean.defined()));
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return result;
    const auto parts = parts_of(at::mm(drows.t(), x.flatten(0, 1)), 0, shape);
    for (std::size_t i = 0; i < kProjections; ++i)
      if (wanted[i]) result[1 + i] = parts[i];
    return result;
  }
};

struct GateNetwork : torch::autograd::Function<GateNetwork> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& mean, const at::Tensor& w1,
                            const at::Tensor& b1, const at::Tensor& w2, const at::Tensor& b2, double tau,
                            GateActivation activation) {
    at::Tensor gates = gate_forward({mean, w1, b1, w2, b2, tau, activation});
    context->save_for_backward({mean, w1, b1, w2, b2, gates});
    context->saved_data["tau"] = tau;
    context->saved_data["activation"] = static_cast<std::int64_t>(activation);
    context->set_materialize_grads(false);
    return gates;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("gate");
    if (!gradients[0].defined()) return variable_list(7);
    const auto saved = context->get_saved_variables();
    bool learns = false;
    for (std::size_t i = 1; i < 5; ++i) learns = learns || context->needs_input_grad(i);
    const GateArgs args{saved[0],
                        saved[1],
                        saved[2],
                        saved[3],
                        saved[4],
                        context->saved_data.at("tau").toDouble(),
                        static_cast<GateActivation>(context->saved_data.at("activation").toInt())};
    const auto d =
        gate_backward(args, saved[5], gradients[0].to(at::kFloat).contiguous(), context->needs_input_grad(0), learns);
    return {d.mean, d.w1, d.b1, d.w2, d.b2, {}, {}};
  }
};

}  // namespace

Projection project_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rotations,
                           const ProjectShape& shape) {
  const OnDeviceOf device(x);
  const at::Tensor rows = at::mm(x.flatten(0, 1), weight.t()).view({x.size(0), x.size(1), width_of(shape)});
  Projection result;
  result.mean = empty({x.size(0), x.size(1), shape.G, shape.Dk}, at::kFloat, x);
  auto p = parameters(rows, rotations, shape);
  p.mean = static_cast<float*>(result.mean.data_ptr());
  kernels::rotate_forward(p, device.stream());
  const auto parts = parts_of(rows, 2, shape);
  const at::AutoDispatchBelowADInplaceOrView plain;
  for (std::size_t i = 0; i < kProjections; ++i)
    result.heads[i] = parts[i].unflatten(2, {i == 0 ? shape.Hq : shape.G, i < kFirstValue ? shape.Dk : shape.Dv});
  return result;
}

at::Tensor project_backward(const Projection& gradients, const at::Tensor& x, const at::Tensor& rotations,
                            const ProjectShape& shape) {
  const OnDeviceOf device(x);
  at::Tensor rows = empty({x.size(0), x.size(1), width_of(shape)}, x.scalar_type(), x);
  kernels::RotateBackward p;
  p.forward = parameters(rows, rotations, shape);
  const auto give = [](kernels::Rows& to, const char* name, const at::Tensor& t) {
    if (t.defined()) to = rows_of(name, t);
  };
  give(p.dq, "q's gradient", gradients.heads[0]);
  for (std::size_t i = 0; i < kernels::kKinds; ++i) {
    give(p.dk[i], "a key's gradient", gradients.heads[1 + i]);
    give(p.dv[i], "a value's gradient", gradients.heads[kFirstValue + i]);
  }
  if (gradients.mean.defined()) p.dmean = static_cast<const float*>(gradients.mean.const_data_ptr());
  kernels::rotate_backward(p, device.stream());
  return rows;
}

at::Tensor gate_forward(const GateArgs& args) {
  const OnDeviceOf device(args.mean);
  at::Tensor gates = empty({args.mean.size(0), args.mean.size(1), args.mean.size(2), 3}, at::kFloat, args.mean);
  kernels::gate_forward(parameters(args, gates), device.stream());
  return gates;
}

GateGradients gate_backward(const GateArgs& args, const at::Tensor& gates, const at::Tensor& dgates, bool want_mean,
                            bool want_weights) {
  const OnDeviceOf device(args.mean);
  kernels::GateBackward p;
  p.forward = parameters(args, gates);
  p.dgates = static_cast<const float*>(dgates.const_data_ptr());
  GateGradients result;
  const auto room = [](const at::Tensor& t) { return empty(t.sizes(), t.scalar_type(), t); };
  if (want_mean) {
    result.mean = room(args.mean);
    p.dmean = static_cast<float*>(result.mean.data_ptr());
  }
  at::Tensor partials;
  if (want_weights) {
    partials = workspace(kernels::gate_partials_bytes(p.forward.rows, p.forward.Dk), args.mean);
    result.w1 = room(args.w1), result.b1 = room(args.b1), result.w2 = room(args.w2), result.b2 = room(args.b2);
    p.partials = static_cast<float*>(start_of(partials));
    p.dw1 = result.w1.data_ptr(), p.db1 = result.b1.data_ptr();
    p.dw2 = result.w2.data_ptr(), p.db2 = result.b2.data_ptr();
  }
  kernels::gate_backward(p, device.stream());
  return result;
}

std::string project_refusal(const EffectiveFlags& flags, const Call& call, const at::Tensor& x,
                            const at::Tensor& gate_weight) {
  std::string reason = nsa::project_refusal(flags, as_served(call));
  if (reason.empty() && gate_weight.scalar_type() != x.scalar_type())
    reason = fmt::format("x is {}, the gate's weights are {}; served: one type", c10::toString(x.scalar_type()),
                         c10::toString(gate_weight.scalar_type()));
  return reason;
}

Projection project(const at::Tensor& x, const ProjectTensors& weights, const at::Tensor& rotations,
                   const ProjectShape& shape) {
  check(x, weights, rotations, shape);
  const OnDeviceOf device(x);
  const variable_list all = Project::apply(x, at::TensorList(weights), rotations.contiguous(), shape);
  Projection result;
  std::copy_n(all.begin(), kProjections, result.heads.begin());
  result.mean = all.back();
  return result;
}

at::Tensor gate(const GateArgs& a) {
  check(a);
  const OnDeviceOf device(a.mean);
  return GateNetwork::apply(a.mean.contiguous(), dense(a.w1), a.b1.contiguous(), a.w2.contiguous(), a.b2.contiguous(),
                            a.tau, a.activation);
}

}  // namespace nsa::cuda
