// The cases of autograd, one file a family; suite.cpp plans them.
#pragma once

#include <optional>
#include <string>

#include "harness/context.hpp"
#include "suites/autograd/model_ways.hpp"
#include "suites/oracle/backends.hpp"
#include "suites/subject.hpp"

namespace suites::autograd_cases {

struct OpRun {
  std::string way;  // way_named()
  nsa::Op op = nsa::Op::compress;
  nsa::Phi phi = nsa::Phi::avg;
  bool attention = false;  // attend, with a choice of its own (oracle::OpShape::attention)
};

// Which model a case makes.
struct StepOptions {
  std::string way = {};                          // model_way(); "": the flags of the process's environment
  std::int64_t layers = 0;                       // 0: two, or as many as the model has when that is fewer
  std::int64_t B = 1, S = 0;                     // S = 0: long enough that every branch leaves something out
  std::optional<nsa::Precision> precision = {};  // absent: fp32 on the CPU, bf16 on a GPU
};

// op_gradients.cpp: the backward pass of an op is the derivative of its forward pass; empty rows get exactly 0.
void op_gradients(harness::Context& context, const Subject& subject, const OpRun& run);
// double_backward.cpp: so is the backward pass of the backward pass, or it is refused by name.
void double_backward(harness::Context& context, const Subject& subject, const OpRun& run);
// keys.cpp: every key and value reaches exactly the rows that may see it.
void keys(harness::Context& context, const Subject& subject, const OpRun& run);

// graph.cpp
// Nothing that autograd keeps is overwritten, and no output loses its graph.
void graph(harness::Context& context, const Subject& subject, const StepOptions& options);
// Every parameter gets a finite, non-zero gradient; what a flag cuts off gets none.
void parameter_gradients(harness::Context& context, const Subject& subject, const StepOptions& options);

// anomaly.cpp: torch's own anomaly mode as a second witness.
void anomaly_mode(harness::Context& context, const Subject& subject, const StepOptions& options);

// sensitivity.cpp: redrawing a parameter moves the output, unless a flag cuts it off: then not by a bit.
void sensitivity(harness::Context& context, const Subject& subject, const StepOptions& options);

// future.cpp: no stage of a row, and no choice of blocks, depends on later tokens.
void future(harness::Context& context, const Subject& subject, const StepOptions& options);

// arrivals.cpp: every gradient arrives exactly once a backward pass.
void arrivals(harness::Context& context, const Subject& subject, const StepOptions& options);

// recomputation.cpp: recomputing activations changes memory and nothing else; `packed`: with documents.
void recomputation(harness::Context& context, const Subject& subject, bool packed);

// frozen.cpp: where some parameters are frozen the others learn as they did, and the frozen ones do not.
void frozen(harness::Context& context, const Subject& subject, const StepOptions& options);

// accumulation.cpp
// Gradients of accumulated batches are those of one large batch.
void accumulation(harness::Context& context, const Subject& subject, const StepOptions& options);
// A second backward pass adds to .grad, a third through a freed graph is refused.
void second_backward(harness::Context& context, const Subject& subject, const StepOptions& options);

// A fresh model of the configuration in use, for one of these cases.
struct Step {
  nsa::Config config;
  Instance instance;
  at::Tensor tokens;  // [B,S+1] of text
  [[nodiscard]] nsa::LanguageModelImpl& model() const { return *instance.model.ptr(); }
};
[[nodiscard]] Step make_step(const harness::Context& context, const Subject& subject, const StepOptions& options = {});
// Whether the step is finite, forward and backward; a finding that locates it when it is not. Comparisons of gradients
// come after it, so that a NaN is told for what it is. Gradients are cleared.
[[nodiscard]] bool expect_sound(harness::Context& context, const Step& step);

}  // namespace suites::autograd_cases
