#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "nsa/reference/reference.hpp"
#include "suites/codes.hpp"
#include "suites/implementation/client.hpp"
#include "suites/oracle/compare.hpp"
#include "suites/oracle/selection.hpp"
#include "suites/parity/cases.hpp"
#include "suites/parity/mistakes.hpp"
#include "suites/probes/autograd_errors.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using oracle::Evaluation;
using oracle::OpCase;

constexpr double kTie = 1e-5, kSharp = 256;
constexpr int kRepeats = 4;

OpCase make_case(const Context& context, const Subject& subject, const OpRun& run, int trial = 0) {
  const oracle::OpShape shape = shape_of(context, subject, run);
  return oracle::make_op_case(run.op, shape, run.dtype, device_of(context), context.seed("inputs", trial));
}

// What a choice has to follow: ours, or what an implementation declares.
struct Rules {
  std::int64_t first = 1, last = 2;  // forced
  bool by_scores = true;             // false: the importance is not the paper's
  std::string ties = "lower";

  [[nodiscard]] bool ours() const { return first == 1 && last == 2 && by_scores; }
};
Rules rules_of(const Subject& subject) {
  Rules rules;
  const auto judged = subject.implementation();
  if (!judged) return rules;
  const implementation::Description& d = judged->describe();
  if (d.forced) rules.first = d.forced->first, rules.last = d.forced->last;
  rules.by_scores = d.importance == "paper";
  rules.ties = d.ties;
  return rules;
}

// `tie`: gap between scores, of a row's largest, within which another choice is as good. `how`: of the
// scores, in words.
void judge_blocks(Context& context, const OpCase& c, const at::Tensor& chosen, const Rules& rules, double tie,
                  const std::string& how = "") {
  const at::Tensor q = c.inputs[0].to(at::kDouble), k_cmp = c.inputs[1].to(at::kDouble);
  const at::Tensor p = nsa::reference::compressed_probabilities(q, k_cmp, c.shape.geometry);
  const at::Tensor scores = nsa::reference::importance(p, c.shape.geometry, c.shape.G, c.shape.S);
  const oracle::SelectionVerdict verdict =
      oracle::judge_selection({.chosen = chosen,
                               .reference = nsa::reference::choose(scores, c.shape.geometry),
                               .scores = scores,
                               .geometry = c.shape.geometry,
                               .tie = tie,
                               .first = rules.first,
                               .last = rules.last,
                               .by_scores = rules.by_scores});
  context.metric("queries with another choice", static_cast<double>(verdict.differing), "queries");
  context.metric("widest excused tie", verdict.widest_tie, "");
  harness::Json evidence = verdict.first;
  const std::string as_if =
      verdict.good() || !rules.ours() ? "" : oracle::mistake_in_choice(chosen, q, k_cmp, c.shape.geometry);
  if (!as_if.empty()) evidence["as_if"] = as_if;
  context.expect("every choice of blocks is justified by the scores", verdict.good(),
                 fmt::format("{}{} of {} queries chose blocks that their scores do not justify; {}{}", how,
                             verdict.unjustified, verdict.queries, verdict.first_fault, told(as_if)),
                 codes::kSelectionDiffers, evidence);
}

// Scores that nobody here knows justify any choice, as long as they are scores: of other queries and keys they choose
// other blocks somewhere. `other`: by other inputs of the same shape.
void judge_own_scores(Context& context, const OpCase& c, const at::Tensor& chosen, const at::Tensor& other,
                      const Rules& rules) {
  const nsa::Geometry& g = c.shape.geometry;
  const std::int64_t first_free = g.n_sel * g.l_sel;  // the first token with more candidates than it may choose
  if (rules.first + rules.last >= g.n_sel || first_free >= c.shape.S) return;
  const at::Tensor moved = chosen.ne(other).any(-1).slice(1, first_free);
  const auto queries = static_cast<double>(moved.numel());
  context.metric("queries with a choice of their own", queries, "queries");
  context.expect("something of the queries and keys decides", moved.any().item<bool>(),
                 fmt::format("with other queries and keys each of {:g} queries that have a choice chooses the same "
                             "blocks: no score decides",
                             queries),
                 codes::kSelectionDiffers, {{"queries", queries}});
}

// What follows from a choice that nobody sees is comparable where the choice is the reference's.
void require_our_choice(const Context& context, const Subject& subject) {
  if (const Rules rules = rules_of(subject); !rules.ours())
    context.skip("not_applicable",
                 fmt::format("it chooses by other rules: the first {} and the last {} blocks forced, the others by {}",
                             rules.first, rules.last, rules.by_scores ? "the paper's scores" : "scores of its own"));
}

// By the rules, of exact scores: a query's blocks, ascending, then -1.
std::vector<int> chosen_by(const Rules& rules, const at::Tensor& scores, std::int64_t n) {
  const std::int64_t count = scores.size(0);
  const auto score = scores.accessor<double, 1>();
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (rules.ties == "higher") std::reverse(order.begin(), order.end());
  const auto forced = [&](int block) { return block < rules.first || block >= count - rules.last; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return forced(a) != forced(b) ? forced(a) : !forced(a) && score[a] > score[b];
  });
  order.resize(static_cast<std::size_t>(std::min(n, count)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<std::size_t>(n), -1);
  return order;
}

// An implementation may give a log-sum-exp from some of its functions alone. Where it has but one that can, the claim
// is that one's.
bool claims_lse(const Subject& subject) {
  const auto judged = subject.implementation();
  if (!judged || judged->describe().lse == implementation::LseBase::none) return false;
  const std::array with_lse = {nsa::Op::attend_compressed, nsa::Op::attend_selected, nsa::Op::attend_window};
  return std::count_if(with_lse.begin(), with_lse.end(), [&](nsa::Op op) { return judged->describe().claims(op); }) ==
         1;
}

struct Three {
  Evaluation got, reference, naive;
};

// An undecided row says nothing: another choice is as good there. What is not finite is wrong by any choice.
at::Tensor where_decided(const at::Tensor& rows, const at::Tensor& got, const at::Tensor& reference) {
  if (!rows.defined()) return got;
  const at::Tensor count = oracle::over_heads(rows, got).logical_or(got.isfinite().logical_not());
  return at::where(count, got, reference.to(got.scalar_type()));
}

// The rows of an attention whose choice rounding does not change; undefined: all of them.
at::Tensor rows_that_count(Context& context, const OpCase& c) {
  if (!c.shape.attention) return {};
  constexpr double kMargin = 0.05;  // of a score: bf16 keys move one by less than 0.01
  const nsa::Geometry& g = c.shape.geometry;
  const at::Tensor k_cmp =
      nsa::reference::ops().compress({c.inputs[1].to(at::kDouble), c.inputs[2].to(at::kDouble), g, {}, {}, {}}).k;
  const at::Tensor p = nsa::reference::compressed_probabilities(c.inputs[0].to(at::kDouble), k_cmp, g);
  const at::Tensor rows = oracle::decided(nsa::reference::importance(p, g, c.shape.G, c.shape.S), g, kMargin);
  context.metric("rows that are compared", 100 * rows.to(at::kDouble).mean().item<double>(), "%");
  return rows;
}

void compare(Context& context, const OpCase& c, const Three& three, const oracle::Budget& budget,
             const at::Tensor& rows, bool ours, bool lse_is_claimed) {
  // An error in it is the relative error of a probability, which somebody else may keep in 16 bits.
  oracle::Budget of_lse = budget;
  if (!ours && c.inputs[0].itemsize() == 2) of_lse.floor_ulps = 128;
  for (std::size_t i = 0; i < c.output_names.size(); ++i) {
    if (!three.got.outputs[i].defined() && i >= c.differentiable_outputs) {  // a backend without LSE
      if (lse_is_claimed)
        context.expect(c.name() + ".lse: exists", false,
                       fmt::format("{}: there is no lse, although one is claimed", c.name()),
                       codes::kImplementationForm, {{"kind", "shape"}, {"said", "no lse is returned"}});
      continue;
    }
    const at::Tensor& reference = three.reference.outputs[i];
    const at::ScalarType own = three.got.outputs[i].scalar_type(), due = three.naive.outputs[i].scalar_type();
    if (i < c.differentiable_outputs)
      context.expect(c.output_names[i] + ": type", own == due,
                     fmt::format("{}: {} is {}, wanted is {}", c.name(), c.output_names[i], c10::toString(own),
                                 c10::toString(due)),
                     codes::kOutputContract, {{"op", c.name()}, {"output", c.output_names[i]}});
    expect_good(context,
                judge({where_decided(rows, three.got.outputs[i], reference), reference,
                       where_decided(rows, three.naive.outputs[i], reference)},
                      c.output_names[i] == "lse" ? of_lse : budget),
                {c.name(), c.output_names[i], false});
  }
  for (std::size_t i = 0; i < three.got.gradients.size(); ++i) {
    expect_good(context,
                judge({three.got.gradients[i], three.reference.gradients[i], three.naive.gradients[i]}, budget),
                {c.name(), c.input_names[i], true});
  }
}

// With every score near -30,000 the weights are as with every score 0. Where what may not be seen gets a large negative
// number instead of -inf, it outweighs everything then.
void scores_far_below_zero(Context& context, const OpCase& c, const nsa::Ops& ops, at::ScalarType dtype,
                           const oracle::Budget& budget) {
  constexpr double kScore = -30000;
  const bool attends = c.op == nsa::Op::attend || !c.branch().empty();
  if (!attends || c.shape.attention) return;  // a choice among equal scores is another question
  context.phase("scores far below zero");
  OpCase deep = c;
  const double size = std::sqrt(-kScore / std::sqrt(static_cast<double>(c.shape.Dk)));
  for (std::size_t i = 0; i < deep.inputs.size(); ++i) {
    const std::string& name = deep.input_names[i];
    if (name.starts_with("q")) deep.inputs[i] = at::full_like(c.inputs[i], size);
    if (name.starts_with("k")) deep.inputs[i] = at::full_like(c.inputs[i], -size);
  }
  const at::Tensor got = evaluate(deep, ops, {dtype, false, 1}).outputs[0],
                   reference = evaluate(deep, nsa::reference::ops(), {at::kDouble, false, 1}).outputs[0];
  const oracle::Verdict verdict = judge({got, reference, reference.to(dtype)}, budget);
  harness::Json evidence = verdict.evidence();
  evidence.update({{"op", c.name()}, {"output", c.output_names[0]}, {"scores", kScore}});
  context.expect("scores far below zero hide nothing and show nothing", verdict.good(),
                 fmt::format("{}: with every score near {:g}, {} is {:.3g} at [{}] instead of {:.3g}", c.name(), kScore,
                             c.output_names[0], verdict.value, fmt::join(verdict.index, ", "), verdict.wanted),
                 codes::kOutputBudget, evidence);
}

// What becomes of a NaN in the first element of row `row` of input i: how many values depend on the element (they move
// in the reference when it moves; its NaN would also reach rows that give it the probability 0), and how many of those
// are finite.
struct Poisoned {
  std::int64_t depend = 0, hidden = 0;
};
Poisoned poison(OpCase c, std::size_t i, std::int64_t row, const nsa::Ops& ops, at::ScalarType dtype,
                const std::vector<at::Tensor>& still) {
  c.inputs[i] = c.inputs[i].clone();
  const at::Tensor element = c.inputs[i].select(0, 0).select(0, row).flatten()[0];
  element.add_(1.0);
  const std::vector<at::Tensor> moved = evaluate(c, nsa::reference::ops(), {at::kDouble, false, 1}).outputs;
  element.fill_(std::numeric_limits<double>::quiet_NaN());
  const std::vector<at::Tensor> got = evaluate(c, ops, {dtype, false, 1}).outputs;
  Poisoned result;
  for (std::size_t k = 0; k < still.size(); ++k) {
    if (!got[k].defined()) continue;  // a backend without an LSE
    const at::Tensor depends = moved[k].ne(still[k]).to(got[k].device());
    result.depend += depends.sum().item<std::int64_t>();
    result.hidden += got[k].isfinite().logical_and(depends).sum().item<std::int64_t>();
  }
  return result;
}

// Whether any output that `ops` gives depends on this input at all. A window of one key takes that key's value,
// whatever query and key are.
bool decides_anything(OpCase c, std::size_t i, const nsa::Ops& ops, at::ScalarType dtype,
                      const std::vector<at::Tensor>& still) {
  const std::vector<at::Tensor> given = evaluate(c, ops, {dtype, false, 1}).outputs;
  c.inputs[i] = c.inputs[i] * 1.5;
  const std::vector<at::Tensor> moved = evaluate(c, nsa::reference::ops(), {at::kDouble, false, 1}).outputs;
  for (std::size_t k = 0; k < still.size(); ++k)
    if (given[k].defined() && !at::equal(moved[k], still[k])) return true;
  return false;
}

// One element of what comes back to an output, in a row that counts.
at::Tensor element_of(const at::Tensor& cotangent, const at::Tensor& rows) {
  std::int64_t row = cotangent.size(1) / 3;
  if (rows.defined())  // of the first head, as rows are by group
    while (row + 1 < cotangent.size(1) && !rows[0][row][0].item<bool>()) ++row;
  return cotangent.select(0, 0).select(0, row).flatten()[0];
}

// Backward, the same as nan_stays_visible() asks forward. A pass back is linear in what comes back: who depends on an
// element is who gets a gradient from it alone.
void nan_stays_visible_backward(Context& context, const OpCase& c, const nsa::Ops& ops, at::ScalarType dtype) {
  constexpr double kCancelled = 1e-9;  // of an input's largest gradient: what cancels leaves a rounding
  const at::Tensor rows = rows_that_count(context, c);
  for (std::size_t i = 0; i < c.differentiable_outputs; ++i) {
    context.phase("NaN in what comes back to " + c.output_names[i]);
    const auto alone = [&](std::size_t output, const at::Tensor& cotangent) {
      cotangent.zero_();
      if (output == i) element_of(cotangent, rows).fill_(1.0);
    };
    const auto poisoned = [&](std::size_t output, const at::Tensor& cotangent) {
      if (output == i) element_of(cotangent, rows).fill_(std::numeric_limits<double>::quiet_NaN());
    };
    const auto due = evaluate(c, nsa::reference::ops(), {at::kDouble, true, 1, rows}, alone).gradients;
    const auto got = evaluate(c, ops, {dtype, true, 1, rows}, poisoned).gradients;
    std::int64_t depend = 0, hidden = 0;
    std::string first;
    for (std::size_t k = 0; k < due.size(); ++k) {
      if (!due[k].defined() || due[k].numel() == 0) continue;
      const at::Tensor size = due[k].abs(), depends = size.gt(kCancelled * size.max());
      const at::Tensor finite = got[k].defined() ? got[k].isfinite().to(size.device()) : at::ones_like(depends);
      const std::int64_t here = finite.logical_and(depends).sum().item<std::int64_t>();
      if (here > 0 && first.empty()) first = ", first in the gradient of " + c.input_names[k];
      depend += depends.sum().item<std::int64_t>();
      hidden += here;
    }
    context.expect(fmt::format("a NaN in what comes back to {} is not hidden", c.output_names[i]),
                   hidden == 0 && depend > 0,
                   fmt::format("{}: {} gradients depend on one value that is NaN of what comes back to {}, of which {} "
                               "came out finite{}",
                               c.name(), depend, c.output_names[i], hidden, first),
                   codes::kNonFiniteMask, {{"op", c.name()}, {"cotangent of", c.output_names[i]}, {"hidden", hidden}});
  }
}

}  // namespace

oracle::OpShape shape_of(const Context& context, const Subject& subject, const OpRun& run) {
  oracle::OpShape shape = oracle::parity_shape(subject.config(context).model.nsa);
  if (run.attention) shape = oracle::as_attention(shape);
  shape = shape_for(subject, way_named(run.way), shape);
  shape.phi = run.phi;
  if (run.S > 0) shape.S = run.S;
  return shape;
}

void against_reference(Context& context, const Subject& subject, const OpRun& run) {
  against_reference(context, subject, run, make_case(context, subject, run));
}

void against_reference(Context& context, const Subject& subject, const OpRun& run, const OpCase& c) {
  const Way& way = way_named(run.way);
  const nsa::Ops ops = ops_of(subject, way, c.shape, run.op, run.dtype, device_of(context));
  const bool gradients = oracle::gives_gradients(subject, way) && c.differentiable_outputs > 0;
  if (!way.gradients) {  // what an earlier call left in a reused workspace must not matter
    context.phase("earlier call");
    (void)evaluate(make_case(context, subject, run, 1), ops, {run.dtype, false, 1});
  }
  if (run.attention) require_our_choice(context, subject);
  const at::Tensor rows = rows_that_count(context, c);
  context.phase("backend");
  Three three;
  try {
    three.got = evaluate(c, ops, {run.dtype, gradients, 1, rows});
  } catch (const c10::Error& error) {
    probes::report_inplace_write(context, error, {{"op", c.name()}, {"backend", run.way}});
    return;
  }
  if (run.op == nsa::Op::select) {
    const Rules rules = rules_of(subject);
    judge_blocks(context, c, three.got.outputs[0], rules, kTie);
    if (!rules.by_scores) {
      const OpCase other = make_case(context, subject, run, 1);
      judge_own_scores(context, c, three.got.outputs[0], evaluate(other, ops, {run.dtype, false, 1}).outputs[0], rules);
    }
    // exp() of such scores is infinite where a softmax does not take the largest off first. Rounding moves a
    // probability by more here.
    context.phase("large scores");
    OpCase sharp = c;
    sharp.inputs[0] = c.inputs[0] * kSharp;
    judge_blocks(context, sharp, evaluate(sharp, ops, {run.dtype, false, 1}).outputs[0], rules, kSharp * kTie,
                 fmt::format("with q {} times as large, ", kSharp));
    return;
  }
  context.phase("reference in fp64");
  three.reference = evaluate(c, nsa::reference::ops(), {at::kDouble, gradients, 1, rows});
  context.phase("reference in the backend's dtype");
  three.naive = evaluate(c, nsa::reference::ops(), {run.dtype, gradients, 1, rows});
  const oracle::Budget budget = oracle::budget(run.dtype, context.settings().real("parity.budget_factor"));
  compare(context, c, three, budget, rows, run.way != kImplementation, claims_lse(subject));
  scores_far_below_zero(context, c, ops, run.dtype, budget);
}

void nan_stays_visible(Context& context, const Subject& subject, const OpRun& run) {
  const OpCase clean = make_case(context, subject, run);
  const nsa::Ops ops = ops_of(subject, way_named(run.way), clean.shape, run.op, run.dtype, device_of(context));
  constexpr std::int64_t kMostRows = 16;
  const std::vector<at::Tensor> still = evaluate(clean, nsa::reference::ops(), {at::kDouble, false, 1}).outputs;
  for (std::size_t i = 0; i < clean.inputs.size(); ++i) {
    context.phase("NaN in " + clean.input_names[i]);
    const std::int64_t rows = clean.inputs[i].size(1), first = rows / 3;
    Poisoned result;  // of the first row on which something depends: one that sees one key alone moves no output
    for (std::int64_t row = first; row < std::min(first + kMostRows, rows) && result.depend == 0; ++row)
      result = poison(clean, i, row, ops, run.dtype, still);
    const auto [depend, hidden] = result;
    if (depend == 0 && !decides_anything(clean, i, ops, run.dtype, still)) {
      context.fact("a NaN cannot show in " + clean.input_names[i], "no output depends on it");
      continue;
    }
    context.expect(fmt::format("a NaN in {} is not hidden", clean.input_names[i]), hidden == 0 && depend > 0,
                   fmt::format("{}: {} values depend on one of {} that is NaN, of which {} came out finite",
                               clean.name(), depend, clean.input_names[i], hidden),
                   codes::kNonFiniteMask, {{"op", clean.name()}, {"input", clean.input_names[i]}, {"hidden", hidden}});
  }
  const Way& way = way_named(run.way);
  const bool comparable = !run.attention || rules_of(subject).ours();  // as require_our_choice() says
  if (run.way == kImplementation && comparable && oracle::gives_gradients(subject, way))
    nan_stays_visible_backward(context, clean, ops, run.dtype);
}

void repeatable(Context& context, const Subject& subject, const OpRun& run) {
  const OpCase c = make_case(context, subject, run);
  const nsa::Ops ops = ops_of(subject, way_named(run.way), c.shape, run.op, run.dtype, device_of(context));
  if (const auto judged = subject.implementation(); judged && !judged->describe().repeatable)
    context.skip("not_applicable", "it does not claim to give the same bits each time");
  const bool gradients = oracle::gives_gradients(subject, way_named(run.way)) && c.differentiable_outputs > 0;
  const Evaluation first = evaluate(c, ops, {run.dtype, gradients, 1});
  std::string differs;
  const auto compare_with = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                                const std::vector<std::string>& names, const char* what) {
    for (std::size_t i = 0; i < a.size() && differs.empty(); ++i)
      if (a[i].defined() != b[i].defined() ||
          (a[i].defined() && !at::equal(a[i].nan_to_num(0.125), b[i].nan_to_num(0.125))))
        differs = what + names[i];
  };
  for (int again = 0; again < kRepeats; ++again) {
    context.progress();
    const Evaluation other = evaluate(c, ops, {run.dtype, gradients, 1});
    compare_with(first.outputs, other.outputs, c.output_names, "");
    compare_with(first.gradients, other.gradients, c.input_names, "the gradient of ");
  }
  context.expect("the same inputs give the same bits", differs.empty(),
                 fmt::format("{} ({}): {} is another in one of {} calls with the same inputs", c.name(), run.way,
                             differs, kRepeats + 1),
                 codes::kImplementationBits, {{"op", c.name()}, {"what", differs}});
}

// Note [Exact ties]
// With q = 0 every visible block has probability 1/N. Where N is a power of two that is exact, and so is every sum of
// such terms in any order: all backends must see the same ties and take the lower blocks.
void equal_scores(Context& context, const Subject& subject, const OpRun& run) {
  const Rules rules = rules_of(subject);
  if (rules.ties == "any" || !rules.by_scores)
    context.skip("not_applicable", "it does not claim which of two blocks with the paper's same score is chosen");
  OpCase c = make_case(context, subject, run);
  c.inputs[0].zero_();
  const nsa::Ops ops = ops_of(subject, way_named(run.way), c.shape, run.op, run.dtype, device_of(context));
  const at::Tensor got = evaluate(c, ops, {run.dtype, false, 1}).outputs[0].cpu();
  const nsa::Geometry& g = c.shape.geometry;
  const at::Tensor p =
      nsa::reference::compressed_probabilities(c.inputs[0].to(at::kDouble), c.inputs[1].to(at::kDouble), g);
  const at::Tensor scores = nsa::reference::importance(p, g, c.shape.G, c.shape.S).cpu();
  std::int64_t judged = 0, first_bad = -1;
  for (std::int64_t t = 0; t < c.shape.S; ++t) {
    const std::int64_t visible = nsa::compressed_blocks(c.shape.geometry, t + 1);
    if (visible == 0 || (visible & (visible - 1)) != 0) continue;
    ++judged;
    const at::Tensor row = scores[0][t][0].slice(0, 0, t / g.l_sel + 1);  // the same of every entry and group
    const at::Tensor wanted = at::tensor(chosen_by(rules, row, g.n_sel), at::kInt);
    if (first_bad < 0 && !got.select(1, t).eq(wanted).all().item<bool>()) first_bad = t;
  }
  context.metric("queries with exact ties", static_cast<double>(judged), "queries");
  context.expect(fmt::format("ties go to the {} block", rules.ties), first_bad < 0,
                 fmt::format("query {} sees only equal scores and does not take the {} blocks", first_bad,
                             rules.ties == "higher" ? "highest" : "lowest"),
                 codes::kSelectionDiffers, {{"query", first_bad}});
}

}  // namespace suites::parity_cases
