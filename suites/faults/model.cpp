// Mutants of the model: its weights after initialisation, gradients on their way, flags that it does not keep, routes
// that it does not take.
#include <ATen/ATen.h>

#include <random>

#include "suites/codes.hpp"
#include "suites/faults/mutants.hpp"
#include "suites/faults/wrapping.hpp"

namespace suites {

namespace model_mutant {

using at::Tensor;
using nsa::LanguageModelImpl;
using nsa::Ops;

// The parameters whose name holds `part`, with gradients off.
void change(LanguageModelImpl& model, const std::string& part, const std::function<void(Tensor&)>& by) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters())
    if (parameter.key().find(part) != std::string::npos) by(parameter.value());
}
void on_gradient(LanguageModelImpl& model, const std::string& part, const std::function<Tensor(const Tensor&)>& by) {
  for (auto& parameter : model.named_parameters())
    if (parameter.key().find(part) != std::string::npos)
      parameter.value().register_hook([by](const Tensor& gradient) { return by(gradient); });
}
std::string last_layer(const LanguageModelImpl& model) {
  return "layers." + std::to_string(model.config.n_layers - 1) + ".";
}

struct Row {
  const char* name;
  const char* what;
  std::vector<std::string_view> codes;
  std::function<void(LanguageModelImpl&)> change;
  const char* found_by;
  const char* group;
};

std::vector<Row> weights() {
  return {
      {"gate-zero-in-last-layer",
       "the gate's last layer is zero in the last block alone",
       {codes::kGateZeroInit},
       [](LanguageModelImpl& m) { change(m, last_layer(m) + "attention.gate.fc2", [](Tensor& t) { t.zero_(); }); },
       "init_stats",
       "init"},
      {"gate-decided",
       "the gate's last layer is a hundred times too large",
       {codes::kParameterLaw, codes::kGateEntropy},
       [](LanguageModelImpl& m) { change(m, "gate.fc2.weight", [](Tensor& t) { t.mul_(100); }); },
       "init_stats",
       "init"},
      {"weights-doubled",
       "one matrix of one layer is twice as large",
       {codes::kParameterLaw, codes::kActivationScale},
       [](LanguageModelImpl& m) { change(m, last_layer(m) + "mlp.fc1.weight", [](Tensor& t) { t.mul_(2); }); },
       "init_stats",
       "init"},
      {"weights-ten-percent",
       "one matrix of one layer is a tenth larger",
       {codes::kParameterLaw, codes::kActivationScale},
       [](LanguageModelImpl& m) { change(m, last_layer(m) + "attention.o.weight", [](Tensor& t) { t.mul_(1.1); }); },
       "init_stats",
       "init"},
      {"norm-not-one",
       "the scale of one norm is 1.5",
       {codes::kParameterLaw, codes::kActivationScale},
       [](LanguageModelImpl& m) { change(m, "layers.0.norm_mlp", [](Tensor& t) { t.fill_(1.5); }); },
       "init_stats",
       "init"},
      {"embedding-row-zero",
       "one token's embedding is zero",
       {codes::kParameterLaw},
       [](LanguageModelImpl& m) { change(m, "embedding", [](Tensor& t) { t.select(0, 10).zero_(); }); },
       "init_stats",
       "init"},
      {"stream-used-twice",
       "two matrices were drawn from one random stream",
       {codes::kStreamReused},
       [](LanguageModelImpl& m) {
         const at::NoGradGuard no_grad;
         auto all = m.named_parameters();
         all["layers.0.attention.k_sel.weight"].copy_(all["layers.0.attention.k_win.weight"]);
       },
       "init_stats",
       "init"},
      {"layers-alike",
       "every layer is drawn from one random stream",
       {codes::kStreamReused},
       [](LanguageModelImpl& m) {
         const at::NoGradGuard no_grad;
         auto all = m.named_parameters();
         for (auto& parameter : all) {
           const std::string first =
               "layers.0." + parameter.key().substr(std::min<std::size_t>(9, parameter.key().size()));
           if (parameter.key().starts_with("layers.") && all.contains(first)) parameter.value().copy_(all[first]);
         }
       },
       "init_stats",
       "init"},
      {"seed-not-obeyed",
       "initial values have a part that no seed decides",
       {codes::kSeedBits, codes::kProcessBits},
       [](LanguageModelImpl& m) {
         const double part = 1e-6 * (std::random_device{}() % 1000);
         change(m, "layers.0.mlp.fc2.weight", [part](Tensor& t) { t.add_(part); });
       },
       "init_stats",
       "init"},
      {"weight-nan",
       "one initial value is NaN",
       {codes::kNonFiniteForward, codes::kParameterLaw},
       [](LanguageModelImpl& m) {
         change(m, last_layer(m) + "mlp.fc1.weight",
                [](Tensor& t) { t.flatten().narrow(0, 5, 1).fill_(std::numeric_limits<double>::quiet_NaN()); });
       },
       "init_stats,forward",
       "init"},
      {"dtype-of-one-parameter",
       "one parameter has another dtype than the model",
       {codes::kParameterPlacement},
       [](LanguageModelImpl& m) {
         change(m, "layers.0.norm_mlp",
                [](Tensor& t) { t.set_data(t.to(t.scalar_type() == at::kDouble ? at::kFloat : at::kDouble)); });
       },
       "init_stats",
       "init"},
      {"head-not-registered",
       "the head computes with another matrix than the one that is trained",
       {codes::kNoGradient, codes::kInsensitive},
       [](LanguageModelImpl& m) { m.head->weight = m.head->weight.detach().clone().requires_grad_(); },
       "autograd",
       "autograd"},
      {"parameter-frozen",
       "one matrix is not trained",
       {codes::kNoGradient, codes::kGraphBreak},
       [](LanguageModelImpl& m) {
         change(m, last_layer(m) + "attention.k_sel.weight", [](Tensor& t) { t.requires_grad_(false); });
       },
       "autograd",
       "autograd"},
      {"rope-base-off",
       "rotations have another base than the configuration says",
       {codes::kOutputBudget},
       [](LanguageModelImpl& m) { m.config.rope_base = 500; },
       "parity/whole_step*",
       "kernels"},
      {"rope-scaled",
       "positions are counted twice as fast",
       {codes::kOutputBudget, codes::kFlagsMovedAfterConstruction},
       [](LanguageModelImpl& m) { m.runtime->flags.rope_scale *= 2; },
       "parity/whole_step*",
       "flags"},
      {"uniform-gate-in-force",
       "a model takes uniform gates that nobody asked for",
       {codes::kOutputBudget, codes::kFlagIgnored, codes::kEffectiveFlags, codes::kFlagsMovedAfterConstruction},
       [](LanguageModelImpl& m) {
         m.runtime->flags.uniform_gate = m.runtime->flags.forced_branch == nsa::ForcedBranch::none;
       },
       "flag_matrix",
       "flags"},
      {"stopgrad-in-force",
       "a model cuts its gates from the graph, though nobody asked for it",
       {codes::kNoGradient, codes::kFlagIgnored, codes::kEffectiveFlags, codes::kFlagsMovedAfterConstruction},
       [](LanguageModelImpl& m) { m.runtime->flags.stopgrad_gates = true; },
       "flag_matrix",
       "flags"},
      {"forced-branch-forgotten",
       "a model with a forced branch computes all of them",
       {codes::kFlagIgnored, codes::kModelIdentity, codes::kNotSilenced, codes::kFlagsMovedAfterConstruction},
       [](LanguageModelImpl& m) { m.runtime->flags.forced_branch = nsa::ForcedBranch::none; },
       "flag_matrix",
       "flags"},
  };
}

// Every second backward pass brings no gradient.
std::function<Tensor(const Tensor&)> every_second() {
  return [calls = std::make_shared<int>(0)](const Tensor& g) { return ++*calls % 2 == 0 ? at::zeros_like(g) : g; };
}

std::vector<Row> gradients() {
  return {
      {"gradient-of-layer-off",
       "the gradient of one matrix is 5 % too large",
       {codes::kGradientBudget},
       [](LanguageModelImpl& m) {
         on_gradient(m, "layers.0.attention.q.weight", [](const Tensor& g) { return g * 1.05; });
       },
       "parity/whole_step*",
       "autograd"},
      {"gradient-of-layer-lost",
       "one matrix gets a gradient of zero",
       {codes::kNoGradient, codes::kGradientBudget},
       [](LanguageModelImpl& m) {
         on_gradient(m, "layers.0.mlp.fc1.weight", [](const Tensor& g) { return at::zeros_like(g); });
       },
       "autograd",
       "autograd"},
      {"gradient-noise",
       "the gradient of one matrix has noise of 1 %",
       {codes::kGradientBudget, codes::kTrainingRepeats, codes::kAccumulationDiffers},
       [](LanguageModelImpl& m) {
         on_gradient(m, "layers.0.mlp.fc2.weight", [](const Tensor& g) { return g * (1 + 0.01 * at::randn_like(g)); });
       },
       "parity/whole_step*",
       "autograd"},
      {"gradient-every-second-time",
       "one matrix gets a gradient in every second backward pass alone",
       {codes::kAccumulationDiffers, codes::kSecondBackward, codes::kAccumulation, codes::kGradientBudget,
        codes::kNoGradient},
       [](LanguageModelImpl& m) { on_gradient(m, "layers.0.mlp.fc2.weight", every_second()); },
       "autograd/second_backward[way=sdpa]",
       "training"},
      {"gradient-infinite-once",
       "a gradient is infinite in the second backward pass of a model",
       {codes::kNonFiniteGradientStep, codes::kNonFiniteLoss, codes::kNonFiniteBackward},
       [](LanguageModelImpl& m) {
         const auto calls = std::make_shared<int>(0);
         on_gradient(m, "embedding", [calls](const Tensor& g) { return ++*calls == 2 ? g / 0.0 : g; });
       },
       "training",
       "training"},
      {"gradients-reversed",
       "every gradient has the wrong sign",
       {codes::kLossDoesNotFall, codes::kGradientBudget},
       [](LanguageModelImpl& m) { on_gradient(m, "", [](const Tensor& g) { return -g; }); },
       "training",
       "training"},
      {"weights-moved-in-backward",
       "a backward pass moves a weight a little",
       {codes::kInplaceWrite, codes::kWrongUpdate, codes::kTrainingRepeats, codes::kAccumulationDiffers},
       [](LanguageModelImpl& m) {
         Tensor weight = m.named_parameters()["layers.0.mlp.fc1.weight"];
         weight.register_hook([data = weight.detach()](const Tensor& g) {
           const at::NoGradGuard no_grad;
           data.mul_(1.01);  // bf16 would round a smaller step away
           return g;
         });
       },
       "autograd",
       "training"},
  };
}

// The reference in the place of what was chosen: right, and slow.
Ops silently_by_reference(Ops, const nsa::Call&) { return nsa::backend_ops(nsa::Backend::reference); }

// The window reads the next token's value only where gradients are needed.
OpsMutation leak_in_training() {
  return [](Ops ops, const nsa::Call& call) {
    if (!call.training) return ops;
    return before(&Ops::attend_window, [](nsa::AttendWindowArgs& a) { a.v = at::roll(a.v, -1, 1); })(std::move(ops),
                                                                                                     call);
  };
}
OpsMutation lost_in_training() {
  return [](Ops ops, const nsa::Call& call) {
    if (!call.training) return ops;
    return after(&Ops::attend_selected, [](nsa::Attended& out, const auto&) { out.o = out.o * 0.5; })(std::move(ops),
                                                                                                      call);
  };
}

struct OnTable {
  const char* name;
  const char* what;
  std::vector<std::string_view> codes;
  OpsMutation change;
  const char* found_by;
  const char* group;
};
std::vector<OnTable> tables() {
  return {
      {"silently-by-reference",
       "every function is the reference's, whatever was asked for",
       {codes::kFlagIgnored, codes::kRouteRecord},
       silently_by_reference,
       "flag_matrix",
       "flags"},
      {"future-leak-in-training",
       "the window reads the next token's value where gradients are needed",
       {codes::kLossBelowFloor, codes::kSuspiciousFall, codes::kFutureLeak},
       leak_in_training(),
       "training",
       "training"},
      {"selected-halved-in-training",
       "the selected branch is halved where gradients are needed",
       {codes::kOutputBudget, codes::kGradientBudget, codes::kValidationLoss},
       lost_in_training(),
       "parity,training",
       "training"},
      {"attend-last-row-lost",
       "attention's last row is zero",
       {codes::kOutputBudget},
       after(&Ops::attend,
             [](Tensor& o, const nsa::AttendArgs&) {
               const std::int64_t S = o.size(1);
               o = o * at::arange(S, o.options().dtype(at::kLong)).ne(S - 1).view({1, S, 1, 1}).to(o.scalar_type());
             }),
       "parity/*op=attend]",
       "attention"},
      {"attend-heads-swapped",
       "two heads of attention's output are swapped",
       {codes::kOutputBudget},
       after(&Ops::attend, [](Tensor& o, const nsa::AttendArgs&) { o = at::roll(o, 1, 2); }),
       "parity/*op=attend]",
       "attention"},
      {"attend-double",
       "attention computes in fp64 and returns it",
       {codes::kOutputContract},
       after(&Ops::attend, [](Tensor& o, const nsa::AttendArgs&) { o = o.to(at::kDouble); }),
       "parity/*op=attend]",
       "attention"},
      {"attend-nan-hidden",
       "NaN in attention's output is replaced by 0",
       {codes::kNonFiniteMask, codes::kHiddenNonFinite},
       after(&Ops::attend, [](Tensor& o, const nsa::AttendArgs&) { o = at::nan_to_num(o); }),
       "parity/*op=attend]",
       "attention"},
      {"attend-memory-not-written",
       "attention's output begins as memory that nobody has written",
       {codes::kUninitialisedRead, codes::kOutputBudget, codes::kNonFiniteForward},
       after(&Ops::attend,
             [](Tensor& o, const nsa::AttendArgs&) {
               if (o.size(1) > 3) o = at::cat({at::empty_like(o.narrow(1, 0, 1)), o.narrow(1, 1, o.size(1) - 1)}, 1);
             }),
       "s_sweep",
       "attention"},
      {"attend-writes-its-input",
       "attention scales its queries in place and back",
       {codes::kInplaceWrite},
       after(&Ops::attend,
             [](Tensor&, const nsa::AttendArgs& a) {
               const at::NoGradGuard no_grad;
               a.q.detach().mul_(1.0);
             }),
       "autograd",
       "attention"},
  };
}

}  // namespace model_mutant

std::vector<Planted> model_mutants(const std::shared_ptr<Seams>& seams) {
  namespace m = model_mutant;
  std::vector<Planted> all;
  for (const auto& rows : {m::weights(), m::gradients()})
    for (const m::Row& row : rows) {
      const auto plant = [seams, by = row.change](const harness::FaultSite&) { seams->model.push_back(by); };
      all.push_back({{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant}, row.group, row.found_by});
    }
  for (const m::OnTable& row : m::tables())
    all.push_back({{row.name, row.what, {row.codes.begin(), row.codes.end()}, plant_in_ops(seams, row.change)},
                   row.group,
                   row.found_by});
  return all;
}

}  // namespace suites
