#include "suites/s_sweep/swept_model.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

namespace suites::s_sweep_cases {

SweptModel swept_model(const harness::Context& context, const Subject& subject, const SweptOptions& options) {
  SweptModel swept{subject.config(context), {}};
  swept.config.model.n_layers = options.layers;
  if (options.phi) swept.config.model.phi = *options.phi;
  swept.instance = subject.model({.config = swept.config.model,
                                  .flags = options.flags,
                                  .precision = options.precision,
                                  .device = device_of(context),
                                  .seed = context.seed("model")});
  return swept;
}

ScaledLogits::ScaledLogits(nsa::Runtime& runtime, double scale) : runtime_(runtime), before_(runtime.ops) {
  if (scale == 1) return;
  runtime.ops = [inner = before_, scale](const nsa::Call& call) {
    nsa::Ops ops = inner(call);
    ops.replace(&nsa::Ops::attend, [attend = ops.attend, scale](nsa::AttendArgs args) {
      args.q = args.q * scale;
      return attend(args);
    });
    return ops;
  };
}

ScaledLogits::~ScaledLogits() { runtime_.ops = std::move(before_); }

}  // namespace suites::s_sweep_cases
