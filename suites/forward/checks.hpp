// What a forward pass of an untrained model must give.
#pragma once

#include <ATen/core/Tensor.h>

#include "harness/context.hpp"
#include "suites/subject.hpp"

namespace suites::forward_checks {

using harness::Context;
using harness::Json;

struct Setup {
  nsa::ModelConfig model;
  nsa::EffectiveFlags flags;
  nsa::Precision precision = nsa::Precision::fp32;
  at::Device device = at::kCPU;
};
struct Shape {
  std::int64_t B = 1, S = 1;
};

// Random tokens: logits of shape [B,S,vocab], the parameters' dtype, finite; loss near ln V + 1/6; the model's own loss
// agrees with the one computed here from the logits.
void batch(const Subject& subject, Context& context, const Setup& setup, Shape shape);
// Documents of several lengths laid end to end, empty and one-token documents among them.
void packed(const Subject& subject, Context& context, const Setup& setup);
// Tokens and cu_seqlens that break their contracts must be refused with an exception. CPU only.
void bad_input(const Subject& subject, Context& context, const Setup& setup);

// The parts of `batch` that judge: logits [B,S,vocab] against what was asked for, and a loss.
void judge_logits(Context& context, const Setup& setup, Shape shape, const at::Tensor& logits);
void judge_initial_loss(Context& context, const nsa::ModelConfig& model, double loss);

}  // namespace suites::forward_checks
