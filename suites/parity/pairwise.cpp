// Each backend against each other, not only each against the reference: outputs, log-sum-exps and gradients of an op on
// the same inputs, dense and packed; choices by the scores.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/oracle/selection.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/documents.hpp"
#include "suites/parity/prepared.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using harness::Json;
using oracle::Evaluation;
using oracle::OpCase;

struct Answer {
  std::string way;
  Evaluation evaluation;
};

std::vector<const Way*> serving(const Context& context, const OpRun& run, bool packed) {
  std::vector<const Way*> result;
  for (const Way& way : ways()) {
    const auto has = [](const auto& list, const auto& item) {
      return std::find(list.begin(), list.end(), item) != list.end();
    };
    if (!has(way.ops, run.op) || !has(way.dtypes, run.dtype) || (way.needs_cuda && !context.cuda())) continue;
    if (packed && !way.packed) continue;
    result.push_back(&way);
  }
  return result;
}

OpCase case_for(const Context& context, const Subject& subject, const OpRun& run, bool packed, bool flash) {
  oracle::OpShape shape = oracle::parity_shape(subject.config(context).model.nsa);
  shape.B = 1;
  shape.phi = run.phi;
  if (packed) {
    const std::vector<std::int64_t> lengths = document_lengths(shape.geometry);
    shape.S = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    shape.cu_seqlens = cumulative(lengths);
  }
  if (flash) shape.Dk = shape.Dv = 64;  // what FlashAttention-2 takes
  return make_op_case(run.op, shape, run.dtype, device_of(context), context.seed(packed ? "packed" : "dense"));
}

struct Table {
  Context& context;
  const OpCase& c;
  oracle::Budget budget;
  Evaluation exact, naive;  // the reference in fp64 and in the dtype of the case
  Json rows = Json::array();
};

// Two answers to the same question may be apart by what each may be from the truth.
bool compare(Table& table, const Answer& a, const Answer& b, const std::string& name, bool gradient, std::size_t i) {
  const auto of = [&](const Evaluation& e) { return gradient ? e.gradients[i] : e.outputs[i]; };
  const at::Tensor one = of(a.evaluation), other = of(b.evaluation);
  if (!gradient && i >= table.c.differentiable_outputs && !(one.defined() && other.defined())) return true;  // no LSE
  const double own = judge({one, of(table.exact), of(table.naive)}, table.budget).bound;
  oracle::Verdict verdict = oracle::near(one, other, 0);
  verdict.bound = 2 * own;
  Json evidence = verdict.evidence();
  evidence.update({{"op", table.c.name()}, {"backends", {a.way, b.way}}, {gradient ? "gradient" : "output", name}});
  table.rows.push_back({{"backends", a.way + ", " + b.way},
                        {gradient ? "gradient" : "output", name},
                        {"packed", table.c.shape.cu_seqlens.has_value()},
                        {"error", reports::number(verdict.error)},
                        {"bound", reports::number(verdict.bound)}});
  return table.context.expect(
      fmt::format("{} of {} and {} agree{}", name, a.way, b.way, table.c.shape.cu_seqlens ? " (packed)" : ""),
      verdict.good(),
      fmt::format("{}: {}{} of {} and of {} differ by {:.3g} at [{}]; allowed {:.3g}", table.c.name(),
                  gradient ? "the gradient of " : "", name, a.way, b.way, verdict.error, fmt::join(verdict.index, ", "),
                  verdict.bound),
      codes::kBackendsDiffer, evidence);
}

void compare_all(Table& table, const std::vector<Answer>& answers) {
  for (std::size_t a = 0; a < answers.size(); ++a) {
    for (std::size_t b = a + 1; b < answers.size(); ++b) {
      for (std::size_t i = 0; i < table.c.output_names.size(); ++i)
        (void)compare(table, answers[a], answers[b], table.c.output_names[i], false, i);
      const std::size_t shared =
          std::min(answers[a].evaluation.gradients.size(), answers[b].evaluation.gradients.size());
      for (std::size_t i = 0; i < shared; ++i)
        (void)compare(table, answers[a], answers[b], table.c.input_names[i], true, i);
    }
  }
}

// Choices, document by document: two may differ where the scores tie.
void compare_choices(Context& context, const OpCase& c, const std::vector<Answer>& answers) {
  const auto documents = nsa::documents(c.shape.cu_seqlens, c.shape.S);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const auto [begin, end] = documents[d];
    if (begin == end) continue;
    const OpCase own = document_of(c, d);
    const at::Tensor p = nsa::reference::compressed_probabilities(own.inputs[0].to(at::kDouble),
                                                                  own.inputs[1].to(at::kDouble), c.shape.geometry);
    const at::Tensor scores = nsa::reference::importance(p, c.shape.geometry, c.shape.G, end - begin);
    for (std::size_t a = 0; a < answers.size(); ++a) {
      for (std::size_t b = a + 1; b < answers.size(); ++b) {
        const auto cut = [&, first = begin, count = end - begin](const Answer& answer) {
          return answer.evaluation.outputs[0].narrow(1, first, count);
        };
        const oracle::SelectionVerdict verdict =
            oracle::judge_selection({cut(answers[b]), cut(answers[a]), scores, c.shape.geometry});
        Json evidence = verdict.first;
        evidence["backends"] = {answers[a].way, answers[b].way};
        context.expect(fmt::format("choices of {} and {} agree or tie, document {}", answers[a].way, answers[b].way, d),
                       verdict.good(),
                       fmt::format("{} chose other blocks than {} without a tie; {}", answers[b].way, answers[a].way,
                                   verdict.first_fault),
                       codes::kSelectionDiffers, evidence);
      }
    }
  }
}

void run_pairs(Context& context, const Subject& subject, const OpRun& run, bool packed, Json& rows) {
  std::vector<const Way*> ways = serving(context, run, packed);
  const bool flash = std::any_of(ways.begin(), ways.end(), [](const auto* way) { return way->needs_cuda; });
  const OpCase c = case_for(context, subject, run, packed, flash);
  std::erase_if(ways, [&](const auto* way) {
    return !oracle::refusal(*way, c.shape, run.op, run.dtype, device_of(context)).empty();
  });
  const bool differentiable = c.differentiable_outputs > 0;
  std::vector<Answer> answers;
  for (const Way* way : ways) {
    context.phase(fmt::format("{}{}", way->name, packed ? ", packed" : ""));
    const nsa::Ops ops = ops_of(subject, *way, c.shape, run.op, run.dtype, device_of(context));
    answers.push_back({way->name, evaluate(c, ops, {run.dtype, way->gradients && differentiable, 1})});
  }
  context.expect("at least two backends serve it", answers.size() >= 2,
                 fmt::format("{}: only {} backends were compared", c.name(), answers.size()), codes::kBackendsDiffer);
  if (run.op == nsa::Op::select) return compare_choices(context, c, answers);
  context.phase("reference in fp64");
  oracle::Budget budget = oracle::budget(run.dtype, context.settings().real("parity.budget_factor"));
  if (run.dtype == at::kDouble) budget.floor_ulps = 1e4;  // the reference in fp64 has no error to be measured by
  Table table{context,
              c,
              budget,
              evaluate(c, nsa::reference::ops(), {at::kDouble, differentiable, 1}),
              evaluate(c, nsa::reference::ops(), {run.dtype, differentiable, 1}),
              Json::array()};
  compare_all(table, answers);
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
}

}  // namespace

void pairwise(Context& context, const Subject& subject, const OpRun& run) {
  Json rows = Json::array();
  for (const bool packed : {false, true}) {
    if (packed && run.op == nsa::Op::combine) continue;  // knows no documents
    run_pairs(context, subject, run, packed, rows);
  }
  if (!rows.empty()) context.fact("pairs", rows);
}

// The whole model's loss and every parameter's gradient by each backend, in fp64.
void model_pairwise(Context& context, const Subject& subject, const std::string& model) {
  const nsa::Config config = named_config(context, subject, model);
  const at::Tensor text = prompt(context, config, {2, length_of(config.model.nsa) + 1});
  const nsa::EffectiveFlags own = subject.flags(), masked = way_named("sdpa_masked").flags(own),
                            reference = way_named("reference").flags(own);

  std::optional<Prepared> first;
  at::Tensor first_loss;
  for (const auto& [name, flags] :
       {std::pair{"own flags", own}, {"masked selection", masked}, {"reference", reference}}) {
    context.phase(name);
    Prepared prepared = prepare(context, subject, config, nsa::Precision::fp64, flags);
    const at::Tensor loss = prepared.model().loss(text);
    loss.backward();
    if (!first) {
      first = std::move(prepared);
      first_loss = loss.detach();
      continue;
    }
    const auto expect = [&, way = std::string(name)](const std::string& what, const at::Tensor& value,
                                                     const at::Tensor& wanted) {
      const oracle::Verdict verdict = oracle::near(value, wanted, 1e6);
      Json evidence = verdict.evidence();
      evidence["of"] = what;
      evidence["backends"] = {"own flags", way};
      return context.expect(what + " by " + way, verdict.good(),
                            fmt::format("model: {} by {} differs from that by the subject's own flags by {:.3g}", what,
                                        way, verdict.error),
                            codes::kBackendsDiffer, evidence);
    };
    bool good = expect("loss", loss.detach(), first_loss);
    const auto wanted = first->model().named_parameters();
    for (const auto& parameter : prepared.model().named_parameters()) {
      if (!good) break;  // the first is enough
      const at::Tensor other = wanted[parameter.key()].grad();
      if (!other.defined() && !parameter.value().grad().defined()) continue;  // not computed by either
      good = expect("gradient of " + parameter.key(), parameter.value().grad(), other);
    }
  }
}

}  // namespace suites::parity_cases
