#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "suites/codes.hpp"
#include "suites/parity/cases.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using oracle::OpCase;
using oracle::Rows;

std::int64_t rows_up_to(Rows rows, const nsa::Geometry& g, std::int64_t t) {
  return rows == Rows::blocks ? nsa::compressed_blocks(g, t + 1) : t + 1;
}

// The case with fresh values in everything that lies (or ends) after token t.
std::vector<at::Tensor> with_other_future(const OpCase& c, std::int64_t t, at::Generator& generator) {
  std::vector<at::Tensor> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    at::Tensor input = c.inputs[i].clone();
    if (c.input_rows[i] != Rows::none) {
      const std::int64_t kept = std::min(rows_up_to(c.input_rows[i], c.shape.geometry, t), input.size(1));
      at::Tensor future = input.slice(1, kept);
      future.copy_(at::randn(future.sizes(), generator, at::TensorOptions(at::kDouble)) * 3);
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

struct Leak {
  std::int64_t t = -1, row = -1;
  std::string output;
};

}  // namespace

std::int64_t first_moved_row(const at::Tensor& before, const at::Tensor& after, std::int64_t dim, std::int64_t kept) {
  const at::Tensor a = before.slice(dim, 0, kept), b = after.slice(dim, 0, kept);
  if (a.numel() == 0 || at::equal(a, b)) return -1;
  const at::Tensor moved = a.ne(b).logical_and(a.isnan().logical_and(b.isnan()).logical_not());
  const at::Tensor rows = moved.transpose(0, dim).flatten(1).any(1).nonzero();
  return rows.numel() == 0 ? -1 : rows[0].item<std::int64_t>();
}

void causality(Context& context, const Subject& subject, const OpRun& run) {
  const Way& way = way_named(run.way);
  const oracle::OpShape shape = shape_of(context, subject, run);
  const nsa::Geometry& g = shape.geometry;
  const OpCase c = make_op_case(run.op, shape, run.dtype, device_of(context), context.seed("inputs"));
  const nsa::Ops ops = ops_of(subject, way, shape, run.op, run.dtype, device_of(context));
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("future"));
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> before = c.call(ops, c.inputs);

  Leak leak;
  const std::set<std::int64_t> cuts = {0, g.l - 2, g.l - 1, g.l_sel, g.w, 2 * g.w, shape.S - 2};
  for (const std::int64_t t : cuts) {
    if (t < 0 || t >= shape.S || leak.row >= 0) continue;
    context.phase(fmt::format("other tokens after {}", t));
    const std::vector<at::Tensor> after = c.call(ops, with_other_future(c, t, generator));
    for (std::size_t i = 0; i < before.size() && leak.row < 0; ++i) {
      if (!before[i].defined()) continue;
      const bool lse = c.output_names[i] == "lse";
      leak = {t, first_moved_row(before[i], after[i], lse ? 2 : 1, rows_up_to(c.output_rows, g, t)), c.output_names[i]};
    }
  }
  context.expect("rows up to t do not move when tokens after t change", leak.row < 0,
                 fmt::format("{} ({}): {} {} of {} depends on tokens after {}", c.name(), run.way,
                             c.output_rows == Rows::blocks ? "block" : "row", leak.row, leak.output, leak.t),
                 codes::kFutureLeak,
                 {{"op", c.name()},
                  {"branch", c.branch()},
                  {"backend", run.way},
                  {"row", leak.row},
                  {"output", leak.output},
                  {"tokens_changed_after", leak.t}});
}

}  // namespace suites::parity_cases
