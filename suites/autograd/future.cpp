// PERT on the whole model: with other tokens after t, no stage of a row up to t moves by a bit, the chosen blocks
// included. Same shapes, same kernels: nothing excuses a difference.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <set>

#include "suites/autograd/cases.hpp"
#include "suites/codes.hpp"
#include "suites/probes/stages.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;

struct Stage {
  std::string name;
  at::Tensor value;
};

// The stages of a training pass, in order.
std::vector<Stage> stages_of(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::AutoGradMode grad(true);
  std::vector<Stage> stages;
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    stages.push_back({std::string(name), value.detach()});
  };
  (void)model.forward(tokens);
  model.runtime->observe = nullptr;
  return stages;
}

// Every token after t is another one.
at::Tensor with_other_future(const at::Tensor& tokens, std::int64_t t, std::int64_t vocab, at::Generator& generator) {
  at::Tensor changed = tokens.clone();
  at::Tensor future = changed.slice(1, t + 1);
  const at::Tensor shift = at::randint(1, vocab, future.sizes(), generator, at::kLong).to(tokens.device());
  future.copy_((future + shift).remainder(vocab));
  return changed;
}

// Rows of a stage that belong to the tokens up to t: compressed blocks count when they are complete.
std::int64_t rows_up_to(const std::string& stage, const nsa::Geometry& g, std::int64_t t) {
  const bool blocks = stage.ends_with(".cmp.k") || stage.ends_with(".cmp.v");
  return blocks ? probes::allowed_keys("cmp", g, t) : t + 1;
}

struct Leak {
  std::int64_t S = 0, t = -1, row = -1;
  std::string stage;
};

// The first stage, and its first row, that is not bit-equal.
Leak first_leak(const std::vector<Stage>& before, const std::vector<Stage>& after, const nsa::Geometry& g,
                std::int64_t t) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::int64_t rows = rows_up_to(before[i].name, g, t);
    const at::Tensor a = before[i].value.slice(1, 0, rows), b = after.at(i).value.slice(1, 0, rows);
    if (at::equal(a, b)) continue;
    // A NaN that stays a NaN has not moved; that it is there is for others to find.
    const at::Tensor moved = a.ne(b).logical_and(a.isnan().logical_and(b.isnan()).logical_not());
    const at::Tensor where = moved.transpose(0, 1).flatten(1).any(1).nonzero();
    if (where.numel() > 0) return {0, t, where[0].item<std::int64_t>(), before[i].name};
  }
  return {};
}

// Lengths at which a window is full, overfull and twice full, and at which a choice of blocks begins to leave some out.
std::set<std::int64_t> lengths(const nsa::Geometry& g) {
  return {g.w, g.w + 1, 2 * g.w, 3 * g.w, g.n_sel * g.l_sel + 1};
}

std::set<std::int64_t> cuts(const nsa::Geometry& g, std::int64_t S) {
  std::set<std::int64_t> wanted = {0,       g.l - 2, g.l - 1,     g.l,   g.l_sel - 1, g.l_sel,
                                   g.w - 1, g.w,     2 * g.w - 1, S / 2, S - 2},
                         kept;
  for (const std::int64_t t : wanted)
    if (t >= 0 && t + 1 < S) kept.insert(t);
  return kept;
}

void report(Context& context, const Leak& leak, const std::string& way, std::int64_t comparisons) {
  const probes::Stage stage = probes::parse_stage(leak.stage);
  const bool choice = leak.stage.ends_with(".blocks");
  context.expect("no stage of a row depends on later tokens", leak.row < 0,
                 fmt::format("{}: {} {} of {} depends on tokens after {} (S = {})", way,
                             choice ? "the choice of blocks in row" : "row", leak.row, leak.stage, leak.t, leak.S),
                 codes::kFutureLeak,
                 {{"way", way},
                  {"stage", leak.stage},
                  {"layer", stage.layer},
                  {"branch", stage.branch},
                  {"choice_of_blocks", choice},
                  {"row", leak.row},
                  {"tokens_changed_after", leak.t},
                  {"S", leak.S}});
  context.metric("stages compared", static_cast<double>(comparisons), "1");
}

}  // namespace

void future(Context& context, const Subject& subject, const StepOptions& options) {
  const nsa::Geometry g = subject.config(context).model.nsa;
  StepOptions longest = options;
  longest.S = *lengths(g).rbegin();
  const Step step = make_step(context, subject, longest);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("future"));
  Leak leak;
  std::int64_t comparisons = 0;
  for (const std::int64_t S : lengths(g)) {
    context.phase(fmt::format("S={}", S));
    const at::Tensor tokens = step.tokens.slice(1, 0, S);
    const std::vector<Stage> before = stages_of(step.model(), tokens);
    for (const std::int64_t t : cuts(g, S)) {
      if (leak.row >= 0) break;
      context.progress();
      const at::Tensor changed = with_other_future(tokens, t, step.config.model.vocab, generator);
      leak = first_leak(before, stages_of(step.model(), changed), g, t);
      leak.S = S;
      comparisons += static_cast<std::int64_t>(before.size());
    }
  }
  report(context, leak, options.way, comparisons);
  require_route(step.instance, model_way(options.way));
}

}  // namespace suites::autograd_cases
