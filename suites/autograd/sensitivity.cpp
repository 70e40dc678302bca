// SENS: does the output depend on every parameter, and on none that a flag cuts off?
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "harness/compare.hpp"
#include "suites/autograd/cases.hpp"
#include "suites/autograd/held_choice.hpp"
#include "suites/codes.hpp"

namespace suites::autograd_cases {

namespace {

using harness::Context;
using harness::Json;
using Stages = std::map<std::string, at::Tensor>;

constexpr double kSmallestMove = 1e-3;  // of the stage's RMS; a gate's bias moves it least, by 0.5 % as a rule
constexpr int kDraws = 4;               // one draw may by chance be near the last: nobody is called dead for that

// The stage through which a parameter acts first: there its effect is judged, at the logits only that it arrives.
std::string stage_of(const std::string& parameter) {
  if (parameter == "embedding.weight") return "embedding";
  if (parameter == "norm.weight") return "norm";
  if (parameter == "head.weight") return "logits";
  const std::string layer = parameter.substr(0, parameter.find('.', std::string("layers.").size()));
  return layer + (parameter.find("mlp") == std::string::npos ? ".attention" : ".mlp");
}

Stages run(nsa::LanguageModelImpl& model, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  Stages stages;
  model.runtime->observe = [&](std::string_view name, const at::Tensor& value) {
    stages[std::string(name)] = value.detach();
  };
  (void)model.forward(tokens);
  model.runtime->observe = nullptr;
  return stages;
}

// Root mean square of b - a, relative to that of a.
double relative_move(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = a.to(at::kDouble);
  return ((b.to(at::kDouble) - wide).square().mean() / wide.square().mean()).sqrt().item<double>();
}

// Another draw of the same law: fresh normal values of the parameter's own deviation, or of 0.1 where it is constant.
class Redrawn {
 public:
  Redrawn(at::Tensor parameter, at::Generator& generator) : parameter_(std::move(parameter)) {
    const at::NoGradGuard no_grad;
    before_ = parameter_.detach().clone();
    const at::Tensor wide = before_.to(at::kDouble);
    const double deviation = wide.std(/*unbiased=*/false).item<double>();
    const at::Tensor fresh = at::randn(wide.sizes(), generator, at::TensorOptions(at::kDouble)).to(wide.device());
    parameter_.copy_(deviation > 0 ? wide.mean() + fresh * deviation : wide + fresh * 0.1);
  }
  ~Redrawn() {
    const at::NoGradGuard no_grad;
    parameter_.copy_(before_);
  }
  Redrawn(const Redrawn&) = delete;
  Redrawn& operator=(const Redrawn&) = delete;

 private:
  at::Tensor parameter_, before_;
};

struct Moves {
  Json table = Json::object();
  std::vector<std::string> dead, alive;  // does not move though it should; moves though it should not
  double smallest = INFINITY;
};

struct Move {
  double at_stage = 0;
  bool at_logits = false;
  [[nodiscard]] bool moved() const { return at_logits && harness::at_least(at_stage, kSmallestMove); }
};

Move move_by(const Step& step, const std::string& name, const at::Tensor& parameter, const Stages& before,
             at::Generator& generator) {
  const Redrawn redrawn(parameter, generator);
  const Stages after = run(step.model(), step.tokens);
  const std::string stage = stage_of(name);
  return {relative_move(before.at(stage), after.at(stage)), !at::equal(before.at("logits"), after.at("logits"))};
}

void judge(Moves& moves, const Step& step, const std::string& name, const at::Tensor& parameter, const Stages& before,
           at::Generator& generator) {
  const bool cut = output_is_cut(name, step.model().runtime->flags);
  Move move = move_by(step, name, parameter, before, generator);
  for (int draw = 1; draw < kDraws && !cut && !move.moved(); ++draw)
    move = move_by(step, name, parameter, before, generator);
  moves.table[name] = {
      {"stage", stage_of(name)}, {"move", reports::number(move.at_stage)}, {"reaches_logits", move.at_logits}};
  if (cut) {
    if (move.at_logits || !harness::at_most(move.at_stage, 0)) moves.alive.push_back(name);
    return;
  }
  moves.smallest = std::min(moves.smallest, move.at_stage);
  if (!move.moved()) moves.dead.push_back(name);
}

// With the choice free: which layers choose other blocks when what the choice rests on is redrawn.
std::vector<std::string> deaf_choices(const Step& step, at::Generator& generator) {
  std::vector<std::string> deaf;
  const Stages before = run(step.model(), step.tokens);
  for (auto& item : step.model().named_parameters()) {
    const bool asks = item.key().find("attention.q.weight") != std::string::npos;
    if (!asks && item.key().find("k_cmp") == std::string::npos) continue;
    const std::string layer = stage_of(item.key());
    if (!before.contains(layer + ".blocks")) continue;  // forced to another branch
    const Redrawn redrawn(item.value(), generator);
    if (at::equal(before.at(layer + ".blocks"), run(step.model(), step.tokens).at(layer + ".blocks"))) {
      deaf.push_back(item.key());
    }
  }
  return deaf;
}

std::string list(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace

void sensitivity(Context& context, const Subject& subject, const StepOptions& options) {
  StepOptions longer = options;
  const nsa::Geometry g = subject.config(context).model.nsa;
  longer.S = std::max(2 * g.w + g.l_sel + 3, (g.n_sel + 4) * g.l_sel);  // the choice must have something to choose
  const Step step = make_step(context, subject, longer);
  if (!expect_sound(context, step)) return;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed("redraw"));

  context.phase("choice of blocks");
  const auto deaf = deaf_choices(step, generator);
  context.expect("the choice of blocks depends on queries and compressed keys", deaf.empty(),
                 fmt::format("the choice of blocks is the same when {} is redrawn", list(deaf)), codes::kInsensitive,
                 {{"parameters", deaf}, {"way", options.way}});

  Moves moves;
  {
    context.phase("redraw every parameter");
    const HeldChoice held(*step.model().runtime, step.config.model.n_layers);
    const Stages before = run(step.model(), step.tokens);
    for (auto& item : step.model().named_parameters()) {
      context.progress();
      judge(moves, step, item.key(), item.value(), before, generator);
    }
  }
  context.fact("relative move of the output", moves.table);
  context.metric("smallest relative move", moves.smallest, "1");
  context.expect("every parameter moves the output", moves.dead.empty(),
                 fmt::format("with the choice of blocks held, {} of {} parameters move the output by less than {} of "
                             "its RMS when they are redrawn: {}",
                             moves.dead.size(), moves.table.size(), kSmallestMove, list(moves.dead)),
                 codes::kInsensitive, {{"parameters", moves.dead}, {"way", options.way}, {"moves", moves.table}});
  context.expect("what a flag cuts off does not move the output", moves.alive.empty(),
                 fmt::format("{} parameters move the output although a flag cuts them off: {}", moves.alive.size(),
                             list(moves.alive)),
                 codes::kNotSilenced, {{"parameters", moves.alive}, {"way", options.way}, {"moves", moves.table}});
  if (!options.way.empty()) require_route(step.instance, model_way(options.way));
}

}  // namespace suites::autograd_cases
