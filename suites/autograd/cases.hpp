// The cases of autograd, one file a family; autograd.cpp plans them.
#pragma once

#include <string>

#include "harness/context.hpp"
#include "suites/oracle/backends.hpp"
#include "suites/subject.hpp"

namespace suites::autograd_cases {

struct OpRun {
  std::string way;  // oracle::way()
  nsa::Op op = nsa::Op::compress;
  nsa::Phi phi = nsa::Phi::avg;
};

// op_gradients.cpp: the backward pass of an op is the derivative of its forward pass; empty rows get exactly 0.
void op_gradients(harness::Context& context, const Subject& subject, const OpRun& run);

// graph.cpp
// Nothing that autograd keeps is overwritten, and no output loses its graph.
void graph(harness::Context& context, const Subject& subject);
// Every parameter gets a finite, non-zero gradient.
void parameter_gradients(harness::Context& context, const Subject& subject);

// anomaly.cpp: torch's own anomaly mode as a second witness.
void anomaly_mode(harness::Context& context, const Subject& subject);

// A fresh model of the configuration in use, two layers, for one of these cases; fp32 on the CPU, bf16 on a GPU.
struct Step {
  nsa::Config config;
  Instance instance;
  at::Tensor tokens;  // [1,S+1] of text: long enough that every branch leaves something out
  [[nodiscard]] nsa::LanguageModelImpl& model() const { return *instance.model.ptr(); }
};
[[nodiscard]] Step make_step(const harness::Context& context, const Subject& subject);

}  // namespace suites::autograd_cases
