#include "suites/parity/against_oracle.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "suites/codes.hpp"
#include "suites/oracle/selection.hpp"
#include "suites/probes/stages.hpp"

namespace suites::parity_cases {

namespace {

using harness::Context;
using harness::Json;

constexpr std::int64_t kThreeLayers = 3, kNarrow = 128;

// Each parameter from a generator of its own, so that a configuration with other ones has the same of the rest.
void enliven(const Context& context, nsa::LanguageModelImpl& model) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    at::Tensor& value = parameter.value();
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    auto generator = at::make_generator<at::CPUGeneratorImpl>(context.seed(name));
    const auto normal = [&](double size) {  // drawn in fp32, which takes a quarter of the time
      value.copy_(at::randn(value.sizes(), generator, at::TensorOptions(at::kFloat)) * size);
    };
    const auto uniform = [&](double low, double high) {
      value.copy_(at::rand(value.sizes(), generator, at::TensorOptions(at::kDouble)) * (high - low) + low);
    };
    if (name.starts_with("norm") || ends("norm_attention.weight") || ends("norm_mlp.weight")) {
      uniform(0.5, 1.5);
    } else if (name == "embedding.weight") {
      normal(0.05);  // eps is 4e-4 of its mean square
    } else if (ends("gate.fc2.weight") || ends("bias")) {
      normal(0.5);
    } else if (ends("position")) {
      normal(0.2);
    } else {
      // A projection keeps sizes; those into the stream are small, so that it stays so; queries make attention sharp.
      const double size = ends("attention.o.weight") || ends("mlp.fc2.weight") ? 0.1 : ends("q.weight") ? 2 : 1;
      normal(size / std::sqrt(static_cast<double>(value.size(-1))));
    }
  }
}

std::vector<std::string> names_of(const oracle::Stages& stages) {
  std::vector<std::string> names;
  for (const auto& [name, value] : stages) names.push_back(name);
  return names;
}

at::Tensor stage_of(const oracle::Stages& stages, const std::string& name) {
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const auto& s) { return s.first == name; });
  return found == stages.end() ? at::Tensor() : found->second;
}

// "layers.1.attention.cmp.k" -> "cmp.k"; "" for a stage outside attention.
std::string within_attention(const std::string& stage) {
  const std::string_view inside = ".attention.";
  const auto at = stage.find(inside);
  return at == std::string::npos ? "" : stage.substr(at + inside.size());
}

// Whether two stages of one layer are computed side by side.
bool independent(const std::string& a, const std::string& b) {
  static const std::set<std::string> inputs{"gates", "q", "cmp.k", "cmp.v"}, branches{"cmp.o", "sel.o", "win.o"};
  if (a.substr(0, a.find(".attention.")) != b.substr(0, b.find(".attention."))) return false;
  const std::string x = within_attention(a), y = within_attention(b);
  return (inputs.contains(x) && inputs.contains(y)) || (branches.contains(x) && branches.contains(y));
}

std::int64_t row_dims(const at::Tensor& stage) { return stage.dim() >= 3 ? 2 : 0; }

}  // namespace

nsa::Config three_layers(const Context& context, const Subject& subject, const std::string& model, Stream stream) {
  nsa::Config config = named_config(context, subject, model);
  config.model.n_layers = kThreeLayers;
  if (stream == Stream::narrow) config.model.dim = std::min(config.model.dim, kNarrow);
  return config;
}

oracle::PlainModel Sides::exact() const { return oracle::in_precision(plain, at::kDouble); }

oracle::PlainModel Sides::naive() const {
  oracle::PlainModel model = oracle::in_precision(plain, storage());
  model.angles = at::kFloat;
  return model;
}

Sides both_sides(const Context& context, const Subject& subject, const nsa::Config& config, nsa::Precision precision,
                 const nsa::EffectiveFlags& flags) {
  Sides sides{prepare(context, subject, config, precision, flags), {config.model, flags, {}}, precision};
  enliven(context, sides.product.model());
  for (const auto& parameter : sides.product.model().named_parameters())
    sides.plain.parameters[parameter.key()] = parameter.value().detach();
  return sides;
}

std::vector<at::Tensor> Shown::choices(std::int64_t layers) const {
  std::vector<at::Tensor> all;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    all.push_back(stage_of(stages, fmt::format("layers.{}.attention.blocks", layer)));
  return all;
}

Shown step_of(Sides& sides, const at::Tensor& tokens, const nsa::CuSeqlens& cu_seqlens) {
  const at::AutoGradMode gradients(true);
  nsa::LanguageModelImpl& model = sides.product.model();
  Shown shown;
  model.zero_grad();
  {
    const probes::Observing watch(*model.runtime, [&](std::string_view name, const at::Tensor& value) {
      shown.stages.emplace_back(name, value.detach());
    });
    shown.loss = model.loss(tokens, cu_seqlens);
  }
  shown.loss.backward();
  for (const auto& parameter : model.named_parameters()) shown.gradients[parameter.key()] = parameter.value().grad();
  return shown;
}

Shown forward_of(Sides& sides, const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  nsa::LanguageModelImpl& model = sides.product.model();
  Shown shown;
  const probes::Observing watch(*model.runtime, [&](std::string_view name, const at::Tensor& value) {
    shown.stages.emplace_back(name, value.detach());
  });
  (void)model.forward(tokens);
  return shown;
}

Parting first_parting(const oracle::Stages& shown, const oracle::Pass& exact, const oracle::Pass& naive,
                      at::ScalarType storage, std::map<std::string, double>& largest) {
  const auto judge = [&](const std::string& name, const at::Tensor& wanted) {
    oracle::RmsVerdict verdict =
        judge_rms({stage_of(shown, name), wanted, naive.stage(name)}, oracle::rms_law(storage), row_dims(wanted));
    if (name == "loss" && !verdict.missing) {
      // One number may be right by luck. Its error is held to those of the predictions.
      const at::Tensor off = naive.surprise.detach().to(at::kDouble) - exact.surprise.detach();
      verdict.bound = verdict.row_bound = verdict.bound + 2 * rms(off);
      verdict.rows_good = true;
    }
    return verdict;
  };
  Parting first;
  for (const auto& [name, wanted] : exact.stages) {
    if (!wanted.is_floating_point()) continue;  // the choice
    if (!first.stage.empty() && !independent(first.stage, name)) continue;
    const oracle::RmsVerdict verdict = judge(name, wanted);
    if (first.stage.empty()) {
      double& most = largest[name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1)];
      most = std::max(most, verdict.ratio());
    }
    if (verdict.good()) continue;
    if (first.stage.empty())
      first = {name, verdict};
    else
      first.beside.push_back(within_attention(name));
  }
  return first;
}

bool expect_choices(Context& context, const Sides& sides, const Shown& shown, const Compared& compared) {
  const nsa::ModelConfig& model = sides.plain.config;
  for (std::int64_t layer = 0; layer < model.n_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.attention.", layer);
    const at::Tensor blocks = stage_of(shown.stages, prefix + "blocks"), q = stage_of(shown.stages, prefix + "q"),
                     k = stage_of(shown.stages, prefix + "cmp.k");
    if (!blocks.defined()) continue;  // expect_stages says so
    oracle::Documents documents = compared.documents;
    if (documents.empty()) documents.push_back(q.size(1));
    std::int64_t token = 0, block = 0;
    for (const std::int64_t length : documents) {
      const std::int64_t S = std::min(length, q.size(1) - token),
                         count = S < model.nsa.l ? 0 : (S - model.nsa.l) / model.nsa.d + 1;
      if (S <= 0) continue;
      const at::Tensor own_q = q.narrow(1, token, S), chosen = blocks.narrow(1, token, S);
      const at::Tensor scores = oracle::block_scores(own_q, k.narrow(1, block, count), model);
      const oracle::SelectionVerdict verdict =
          oracle::judge_selection({chosen, chosen, scores, model.nsa, compared.tie});
      Json evidence = verdict.first;
      evidence["layer"] = layer;
      const std::string as_if =
          verdict.good() ? "" : oracle::mistake_in_choice(chosen, own_q, k.narrow(1, block, count), model.nsa);
      if (!as_if.empty()) evidence["as_if"] = as_if;
      if (!context.expect("every choice of blocks is justified by the scores", verdict.good(),
                          fmt::format("{}: {}blocks: {} of {} queries; {}{}", compared.what, prefix,
                                      verdict.unjustified, verdict.queries, verdict.first_fault, told(as_if)),
                          codes::kSelectionDiffers, evidence))
        return false;
      token += S;
      block += count;
    }
  }
  return true;
}

bool expect_stages(Context& context, const Sides& sides, const Shown& shown, const oracle::Pass& exact,
                   const oracle::Pass& naive, const Compared& compared) {
  if (!context.expect_equal("the stages that are shown, in their order", names_of(shown.stages), names_of(exact.stages),
                            codes::kOutputContract, {{"model", compared.what}}))
    return false;
  // Gates are fp32 in every model, all else has the storage type.
  const auto other = std::find_if(shown.stages.begin(), shown.stages.end(), [&](const auto& stage) {
    const at::Tensor same = naive.stage(stage.first);
    return same.defined() && same.scalar_type() != stage.second.scalar_type();
  });
  const bool typed = other == shown.stages.end();
  Json types = {{"model", compared.what}};
  if (!typed)
    types.update({{"stage", other->first},
                  {"type", c10::toString(other->second.scalar_type())},
                  {"wanted_type", c10::toString(naive.stage(other->first).scalar_type())}});
  if (!context.expect("every stage has its type", typed,
                      typed ? ""
                            : fmt::format("{}: {} is {}, wanted is {}", compared.what, other->first,
                                          types["type"].get<std::string>(), types["wanted_type"].get<std::string>()),
                      codes::kOutputContract, types))
    return false;
  std::map<std::string, double> largest;
  const Parting parting = first_parting(shown.stages, exact, naive, sides.storage(), largest);
  context.fact("rms error / bound, " + compared.what, Json(largest));
  const oracle::RmsVerdict& v = parting.verdict;
  const probes::Stage where = probes::parse_stage(parting.stage);
  Json evidence = v.evidence();
  evidence.update(compared.evidence);
  evidence["stage"] = parting.stage;
  evidence["layer"] = where.layer;
  evidence["branch"] = where.branch;
  evidence["beside"] = parting.beside;
  evidence["model"] = compared.what;
  std::string as_if;
  if (!parting.stage.empty() && compared.again)
    as_if = mistake_in({parting.stage, stage_of(shown.stages, parting.stage), exact, naive, sides.storage()},
                       sides.exact(), compared.documents, compared.again);
  if (!as_if.empty()) evidence["as_if"] = as_if;
  if (v.missing || !v.shapes_agree) {
    evidence["shape"] = "another than the oracle's";
    return context.expect("every stage is the oracle's", false,
                          fmt::format("{}: {} has not the oracle's shape", compared.what, parting.stage),
                          codes::kOutputContract, evidence);
  }
  return context.expect(
      "every stage is the oracle's", parting.stage.empty(),
      fmt::format("{}: {} is the first stage that parts from the oracle: {:.3g} RMS of {:.3g}, {:.3g} times what is "
                  "allowed; first bad row {} ({:.3g}, allowed {:.3g}){}",
                  compared.what, parting.stage, v.error, v.scale, v.ratio(), v.row, v.row_error, v.row_bound,
                  told(as_if)),
      compared.code, evidence);
}

}  // namespace suites::parity_cases
