#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "suites/autograd/cases.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/gradcheck.hpp"
#include "suites/probes/autograd_errors.hpp"
#include "suites/probes/one_thread.hpp"
#include "suites/probes/stages.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;
using oracle::OpCase;

void report(Context& context, const OpCase& c, const oracle::GradcheckReport& result, const std::string& way) {
  context.metric("difference/allowed", result.worst_ratio, "");
  const std::string input = result.good ? "" : c.input_names[result.input];
  const harness::Json evidence = {{"op", c.name()},
                                  {"backend", way},
                                  {"input", input},
                                  {"index", result.index},
                                  {"numeric", reports::number(result.numeric)},
                                  {"analytic", reports::number(result.analytic)}};
  if (result.detached) {
    context.expect(
        "every input that matters gets a gradient", false,
        fmt::format("{} ({}): no gradient reaches {}, although the output depends on it (numeric {:.6g} at [{}])",
                    c.name(), way, input, result.numeric, fmt::join(result.index, ", ")),
        codes::kGraphBreak, evidence);
    return;
  }
  context.expect("backward is the derivative of forward", result.good,
                 fmt::format("{} ({}): derivative by {} at [{}] is {:.6g} numerically and {:.6g} in the backward pass",
                             c.name(), way, input, fmt::join(result.index, ", "), result.numeric, result.analytic),
                 codes::kGradcheck, evidence);
}

// Queries that may see nothing: their gradient must be exactly 0, as their output is.
std::vector<std::int64_t> empty_rows(const OpCase& c) {
  std::vector<std::int64_t> rows;
  if (c.op == nsa::Op::attend) return rows;  // its window sees each query's own token
  for (std::int64_t t = 0; t < c.shape.S; ++t) {
    const bool empty = c.op == nsa::Op::attend_compressed
                           ? probes::allowed_keys("cmp", c.shape.geometry, t) == 0
                           : c.blocks.defined() && c.blocks.select(1, t).lt(0).all().item<bool>();
    if (empty) rows.push_back(t);
  }
  return rows;
}

bool check_empty_rows(Context& context, const OpCase& c, const nsa::Ops& ops) {
  const std::vector<std::int64_t> rows = empty_rows(c);
  if (rows.empty()) return true;
  const oracle::Evaluation result = evaluate(c, ops, {at::kDouble, true, 7});
  if (!result.gradients[0].defined()) return true;  // reported by gradcheck
  const at::Tensor index = at::tensor(rows, at::kLong).to(c.inputs[0].device());
  const at::Tensor output = result.outputs[0].index_select(1, index);
  const at::Tensor gradient = result.gradients[0].index_select(1, index);
  const bool zero = output.eq(0).all().item<bool>() && gradient.eq(0).all().item<bool>();
  return context.expect("empty rows have output and gradient exactly 0", zero,
                        fmt::format("{}: rows {} see no key, yet their output or the gradient of q is not exactly 0",
                                    c.name(), fmt::join(rows, ", ")),
                        output.isnan().any().item<bool>() || gradient.isnan().any().item<bool>() ? codes::kEmptyRowNan
                                                                                                 : codes::kGradcheck,
                        {{"op", c.name()}, {"branch", c.branch()}, {"rows", rows}});
}

// A text that has no compressed block yet: its queries see nothing, and their gradient is 0, not missing.
bool check_short_text(Context& context, const Subject& subject, const OpRun& run, oracle::OpShape shape) {
  if (run.op != nsa::Op::attend_compressed) return true;
  shape.S = shape.geometry.l - 1;
  const at::Device device = device_of(context);
  const OpCase c = make_op_case(run.op, shape, at::kDouble, device, context.seed("inputs"));
  const nsa::Ops ops = ops_of(subject, way_named(run.way), shape, run.op, at::kDouble, device);
  const oracle::Evaluation result = evaluate(c, ops, {at::kDouble, true, 7});
  const at::Tensor& gradient = result.gradients[0];
  return context.expect("the gradient of a text without a block is 0",
                        gradient.defined() && gradient.eq(0).all().item<bool>(),
                        fmt::format("{}: with S = {} < l no block is there; the gradient of q must be 0, and {}",
                                    c.name(), shape.S, gradient.defined() ? "is another" : "none arrives"),
                        codes::kGraphBreak, {{"op", c.name()}, {"backend", run.way}, {"S", shape.S}});
}

// A whole query row without a block, in every batch and group (random_blocks leaves single ones empty).
void empty_some_rows(OpCase& c) {
  if (c.blocks.defined() && !c.shape.own_block) c.blocks.select(1, c.shape.S / 2).fill_(-1);
}

}  // namespace

void op_gradients(Context& context, const Subject& subject, const OpRun& run) {
  const probes::OneThread one_thread;
  const at::Device device = device_of(context);
  const oracle::OpShape tiny = oracle::tiny_shape();
  oracle::OpShape shape = shape_for(subject, way_named(run.way), run.attention ? as_attention(tiny) : tiny);
  shape.phi = run.phi;
  OpCase c = make_op_case(run.op, shape, at::kDouble, device, context.seed("inputs"));
  empty_some_rows(c);
  const nsa::Ops ops = ops_of(subject, way_named(run.way), shape, run.op, at::kDouble, device);
  const oracle::Function function = [&](const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs = c.call(ops, inputs);
    outputs.resize(c.differentiable_outputs);
    return outputs;
  };
  try {
    context.phase("empty rows");
    if (!check_empty_rows(context, c, ops) || !check_short_text(context, subject, run, shape)) return;
    context.phase("gradcheck");
    oracle::GradcheckOptions options;
    options.seed = context.seed("directions");
    report(context, c, oracle::gradcheck(function, c.inputs, options, [&] { context.progress(); }), run.way);
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error, {{"op", c.name()}, {"backend", run.way}});
  }
}

}  // namespace suites::autograd_cases
