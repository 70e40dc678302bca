#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/documents.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using oracle::OpCase;

// The outputs of document `index`, cut out of the packed ones.
at::Tensor part_of(const OpCase& packed, const at::Tensor& output, const std::string& name, std::size_t index) {
  const auto documents = nsa::documents(packed.shape.cu_seqlens, packed.shape.S);
  if (packed.output_rows == oracle::Rows::tokens) {
    return output.slice(name == "lse" ? 2 : 1, documents[index].first, documents[index].second);
  }
  std::int64_t first = 0;
  const auto blocks = [&](std::size_t i) {
    return nsa::compressed_blocks(packed.shape.geometry, documents[i].second - documents[i].first);
  };
  for (std::size_t i = 0; i < index; ++i) first += blocks(i);
  return output.slice(1, first, first + blocks(index));
}

struct Difference {
  std::int64_t document = -1;
  std::string output;
  oracle::Verdict verdict;
};

Difference first_difference(Context& context, const OpCase& packed, const nsa::Ops& ops, const nsa::Ops& single_ops) {
  const std::vector<at::Tensor> together = packed.call(ops, packed.inputs);
  const auto documents = nsa::documents(packed.shape.cu_seqlens, packed.shape.S);
  const double ulps = packed.inputs[0].scalar_type() == at::kDouble ? 1e4 : 8;
  for (std::size_t index = 0; index < documents.size(); ++index) {
    if (documents[index].first == documents[index].second) continue;
    context.progress();
    const OpCase document = document_of(packed, index);
    const std::vector<at::Tensor> alone = document.call(single_ops, document.inputs);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      if (!alone[i].defined() || !together[i].defined()) continue;
      const at::Tensor part = part_of(packed, together[i], packed.output_names[i], index);
      const oracle::Verdict verdict = packed.differentiable_outputs == 0
                                          ? oracle::near(part.to(at::kDouble), alone[i].to(at::kDouble), 0)
                                          : oracle::near(part, alone[i], ulps);
      if (!verdict.good()) return {static_cast<std::int64_t>(index), packed.output_names[i], verdict};
    }
  }
  return {};
}

// Whether each document of a packed batch is what it is alone. `before`: those of the packed batch before this one.
bool judge_documents(Context& context, const Subject& subject, const OpRun& run, const OpCase& c,
                     const std::vector<std::int64_t>& lengths, const std::vector<std::int64_t>& before) {
  const Way& way = way_named(run.way);
  harness::Json evidence = {
      {"op", c.name()}, {"branch", c.branch()}, {"backend", run.way}, {"document_lengths", lengths}};
  if (!before.empty()) evidence["before"] = fmt::format("{}", fmt::join(before, "+"));
  bool as_alone = false;
  report_cu_seqlens(context, evidence, [&] {
    const nsa::Ops ops = ops_of(subject, way, c.shape, run.op, run.dtype, device_of(context));
    oracle::OpShape single = c.shape;
    single.cu_seqlens = {};
    const Way& plain = way.needs_cuda ? way_named("sdpa") : way;
    const nsa::Ops single_ops = ops_of(subject, plain, single, run.op, run.dtype, device_of(context));
    const Difference difference = first_difference(context, c, ops, single_ops);
    as_alone = difference.document < 0;
    if (!as_alone) (void)c.call(ops, c.inputs);  // a finding repeats the last call (with_repro.hpp)
    const std::int64_t row = difference.verdict.index.size() > 1 ? difference.verdict.index[1] : -1;
    harness::Json details = evidence;
    details.update(difference.verdict.evidence());
    details["document"] = difference.document;
    details["output"] = difference.output;
    context.expect(
        fmt::format("packed equals document by document{}", before.empty() ? "" : ", also in the opposite order"),
        as_alone,
        fmt::format("{} ({}): {} of document {} differs at row {} by {:.3g}{}", c.name(), run.way, difference.output,
                    difference.document, row, difference.verdict.error,
                    before.empty() ? "" : "; behind a packed batch of as many documents and tokens that was right"),
        codes::kPackedDiffers, details);
  });
  return as_alone;
}

}  // namespace

void packed(Context& context, const Subject& subject, const OpRun& run) {
  oracle::OpShape shape = shape_of(context, subject, run);
  std::vector<std::int64_t> lengths = document_lengths(shape.geometry);
  if (!shape.empty_documents) std::erase(lengths, 0);
  shape.B = 1;
  shape.S = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const auto case_of = [&](const std::vector<std::int64_t>& documents) {
    shape.cu_seqlens = cumulative(documents);
    return make_op_case(run.op, shape, run.dtype, device_of(context), context.seed("inputs"));
  };
  const OpCase c = case_of(lengths);
  const at::NoGradGuard no_grad;
  context.phase("packed and one by one");
  if (judge_documents(context, subject, run, c, lengths, {})) {
    // As many documents and tokens, which end elsewhere: what is remembered of a packed batch must not be taken for it.
    const std::vector<std::int64_t> reversed(lengths.rbegin(), lengths.rend());
    context.phase("the same documents in the opposite order");
    (void)judge_documents(context, subject, run, case_of(reversed), reversed, lengths);
  }

  // Its gradients too: of our own backends others look at them.
  if (run.way == kImplementation && run.op != nsa::Op::select && !run.attention)
    report_cu_seqlens(context, {{"op", c.name()}, {"backend", run.way}},
                      [&] { against_reference(context, subject, run, c); });
}

}  // namespace suites::parity_cases
