#include "suites/parity/prepared.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

namespace suites::parity_cases {

namespace {

constexpr std::int64_t kLayers = 3;

nsa::ModelConfig small_model() {
  nsa::ModelConfig model;
  model.name = "small";
  model.dim = 48;
  model.n_layers = kLayers;
  model.n_heads = 6;
  model.n_kv_groups = 3;
  model.d_k = 16;
  model.d_v = 12;
  model.nsa = {.l = 8, .d = 4, .l_sel = 16, .n_sel = 4, .w = 32};
  model.phi = nsa::Phi::mlp;
  model.gate = nsa::GateActivation::sigmoid;
  return model;
}

}  // namespace

nsa::Config shallow(const harness::Context& context, const Subject& subject) {
  nsa::Config config = subject.config(context);
  config.model.n_layers = std::min(config.model.n_layers, kLayers);
  return config;
}

nsa::Config named_config(const harness::Context& context, const Subject& subject, const std::string& name) {
  nsa::Config config = shallow(context, subject);
  if (name == "small") {
    config.model = small_model();
  } else if (name != "subject") {
    throw std::logic_error("no model of parity is called " + name);
  }
  return config;
}

Prepared prepare(const harness::Context& context, const Subject& subject, const nsa::Config& config,
                 nsa::Precision precision, const nsa::EffectiveFlags& flags) {
  return {config, subject.model({.config = config.model,
                                 .flags = flags,
                                 .precision = precision,
                                 .device = device_of(context),
                                 .seed = context.seed("model")})};
}

std::int64_t length_of(const nsa::Geometry& g) { return 2 * g.w + g.l_sel + 3; }

at::Tensor prompt(const harness::Context& context, const nsa::Config& config, probes::TokenShape shape) {
  return probes::text_tokens(context, config, shape).slice(1, 0, shape.S).contiguous();  // [B,S]
}

double rms(const at::Tensor& t) { return t.to(at::kDouble).square().mean().sqrt().item<double>(); }

}  // namespace suites::parity_cases
